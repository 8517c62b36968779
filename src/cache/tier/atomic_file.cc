#include "cache/tier/atomic_file.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cache/tier/directory.h"

namespace kvasir::cache {
namespace {

/// Temporary names that a process with our id, killed or in another container, may have left.
constexpr int kNamesMax = 1000;

Status check_existing(FileSystem& fs, const std::string& path, AtomicFile::Existing existing) {
  const IoResult<FileInfo> info = fs.stat(path);
  if (info.error == ENOENT) return {};
  if (!info.ok()) return io_error(path, "look at the file", info.error);
  if (info.value.kind != FileKind::kFile) {
    return Error{ErrorCode::kInvalidArgument, path + ": exists; want a file or a new name"};
  }
  if (existing == AtomicFile::Existing::kReplace) return {};
  return Error{ErrorCode::kInvalidArgument,
               path + ": exists; want a new name, or to be told to replace it"};
}

}  // namespace

AtomicFile::AtomicFile(FileSystem& fs, std::string path, std::string temporary, int fd,
                       Existing existing)
    : fs_(&fs),
      path_(std::move(path)),
      temporary_(std::move(temporary)),
      fd_(fd),
      existing_(existing) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : fs_(other.fs_),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)),
      existing_(other.existing_) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) fs_->close(fd_);
  if (!temporary_.empty()) (void)fs_->remove(temporary_);
}

Result<AtomicFile> AtomicFile::create(FileSystem& fs, std::string path, Existing existing) {
  KVASIR_RETURN_IF_ERROR(check_existing(fs, path, existing));
  for (int attempt = 0; attempt < kNamesMax; ++attempt) {
    std::string temporary = fmt::format("{}.tmp-{}-{}", path, ::getpid(), attempt);
    const IoResult<int> created = fs.create(temporary);
    if (created.ok()) {
      return AtomicFile(fs, std::move(path), std::move(temporary), created.value, existing);
    }
    if (created.error != EEXIST) return io_error(temporary, "create the file", created.error);
  }
  return io_error(path, "create a temporary file beside it", EEXIST);
}

Status AtomicFile::write(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const IoResult<std::size_t> written = fs_->write(fd_, bytes);
    if (!written.ok()) return io_error(temporary_, "write", written.error);
    if (written.value == 0) return io_error(temporary_, "write", ENOSPC);
    bytes = bytes.subspan(written.value);
  }
  return {};
}

Status AtomicFile::commit() {
  const IoStatus synced = fs_->sync(fd_);
  fs_->close(std::exchange(fd_, -1));
  if (!synced.ok()) return io_error(temporary_, "sync", synced.error);
  KVASIR_RETURN_IF_ERROR(check_existing(*fs_, path_, existing_));  // somebody may have been faster
  const IoStatus renamed = fs_->rename(temporary_, path_);
  if (!renamed.ok()) return io_error(path_, "rename a temporary file to it", renamed.error);
  temporary_.clear();
  return {};
}

}  // namespace kvasir::cache
