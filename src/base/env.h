// Files, through one seam: everything that reads or writes the disk goes through here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace kvasir {

/// A whole file mapped read-only. Threads: any.
class FileMapping {
 public:
  virtual ~FileMapping() = default;
  virtual std::span<const std::uint8_t> bytes() const = 0;
  /// Tells the system that `[offset, offset + size)` will not be read again, so its memory can go.
  virtual void drop(std::uint64_t offset, std::uint64_t size) = 0;
};

/// The file system. Tests put a faulty or an in-memory one in its place.
class Env {
 public:
  virtual ~Env() = default;
  /// Errors: kNotFound, kIo (a directory, a pipe, a device; no permission; ...). An empty file maps
  /// to no bytes.
  virtual Result<std::unique_ptr<FileMapping>> map_file(const std::string& path) = 0;
  /// Errors: kNotFound, kIo (as of map_file); kExhausted when the file is larger than `max_bytes`.
  virtual Result<std::string> read_file(const std::string& path, std::uint64_t max_bytes) = 0;
  /// Writes `path` so that a reader sees the old content or all of the new: temporary name, sync,
  /// rename. Errors: kIo; the old file is then intact and the temporary one gone.
  virtual Status write_file_atomic(const std::string& path,
                                   std::span<const std::uint8_t> bytes) = 0;

  /// The real file system.
  static Env& posix();
};

}  // namespace kvasir
