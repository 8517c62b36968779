// A file that gets its name when it is whole: temporary name, sync, rename.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "cache/tier/file_system.h"

namespace kvasir::cache {

/// Removes what it wrote on destruction, unless `commit` succeeded. Move-only.
class AtomicFile {
 public:
  enum class Existing : std::uint8_t { kRefuse, kReplace };

  /// A new file beside `path`, for its owner only.
  /// Errors: kInvalidArgument, `path` exists and may not be replaced, or is no regular file; kIo,
  /// kNotFound. `fs` must outlive this.
  static Result<AtomicFile> create(FileSystem& fs, std::string path, Existing existing);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  /// Appends all of `bytes`. Errors: kIo.
  Status write(std::span<const std::uint8_t> bytes);
  /// Gives the file its name. Errors: as create. Call once, and nothing else afterwards.
  Status commit();

 private:
  AtomicFile(FileSystem& fs, std::string path, std::string temporary, int fd, Existing existing);

  FileSystem* fs_;
  std::string path_, temporary_;
  int fd_;  // -1: closed
  Existing existing_;
};

}  // namespace kvasir::cache
