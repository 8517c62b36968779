// An open page file whose header was checked; internal.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/result.h"
#include "cache/prefix/page_key.h"
#include "cache/tier/file_system.h"
#include "cache/tier/page_file.h"

namespace kvasir::cache {

/// Closes on destruction. Move-only.
class OpenDescriptor {
 public:
  OpenDescriptor(FileSystem& fs, int fd) : fs_(&fs), fd_(fd) {}
  ~OpenDescriptor();
  OpenDescriptor(OpenDescriptor&& other) noexcept;
  OpenDescriptor& operator=(OpenDescriptor&&) = delete;
  /// All of `out` from `offset` on. Errors: kIo; kCorruption when the file ends before.
  Status read(std::uint64_t offset, std::span<std::uint8_t> out) const;

 private:
  FileSystem* fs_;
  int fd_;  // -1: moved from
};

class PageReader {
 public:
  /// Reads the header of the file at `path`; the payload stays where it is.
  /// Errors: kNotFound; kIo; kUnsupported, written by another version; kCorruption, also when it is
  /// whole but the page of a key other than `key`, or its size is not the one its header says.
  static Result<PageReader> open(FileSystem& fs, const std::string& path, const PageKey& key);

  const PageHeader& header() const { return header_; }
  const FileInfo& info() const { return info_; }

  /// Requires: out.size() == header().payload_bytes. Errors: kIo, kCorruption, kCancelled:
  /// `is_wanted` (none: always), asked now and then, has said no; `out` then holds anything.
  Status read_payload(std::span<std::uint8_t> out,
                      const std::function<bool()>& is_wanted = {}) const;

 private:
  PageReader(OpenDescriptor descriptor, const FileInfo& info, PageHeader header);

  OpenDescriptor descriptor_;
  FileInfo info_;
  PageHeader header_;
};

}  // namespace kvasir::cache
