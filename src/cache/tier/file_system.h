// What the disk tier asks of a file system, one system call a function: a test fails any of them.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvasir::cache {

/// How a system call ended: 0, or its errno.
struct [[nodiscard]] IoStatus {
  int error = 0;
  bool ok() const { return error == 0; }
};

template <class T>
struct [[nodiscard]] IoResult {
  T value{};  ///< of no meaning unless ok()
  int error = 0;
  bool ok() const { return error == 0; }
};

enum class FileKind : std::uint8_t { kFile, kDirectory, kOther };

struct FileInfo {
  FileKind kind = FileKind::kOther;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< since 1970
  std::uint32_t owner = 0;       ///< user id
  std::uint32_t mode = 0;        ///< permission bits
};

struct OpenedFile {
  int fd = -1;
  FileInfo info;
};

/// Calls that a signal interrupts go on by themselves. Threads: any.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// For reading. Follows no symbolic link at the end of `path` (ELOOP) and waits for no pipe; what
  /// it opened may be no regular file, `info` says.
  virtual IoResult<OpenedFile> open_read(const std::string& path) = 0;
  /// A new file for writing, for its owner only. EEXIST where the name is taken.
  virtual IoResult<int> create(const std::string& path) = 0;
  /// How many bytes came, which may be fewer than asked; 0 at the end of the file.
  virtual IoResult<std::size_t> read_at(int fd, std::uint64_t offset,
                                        std::span<std::uint8_t> out) = 0;
  /// How many bytes went, which may be fewer than given.
  virtual IoResult<std::size_t> write(int fd, std::span<const std::uint8_t> bytes) = 0;
  /// The content, and what it takes to read it back, is on the device afterwards.
  virtual IoStatus sync(int fd) = 0;
  virtual void close(int fd) = 0;

  /// Replaces what is at `to`.
  virtual IoStatus rename(const std::string& from, const std::string& to) = 0;
  virtual IoStatus remove(const std::string& path) = 0;
  /// For its owner only. EEXIST where the name is taken.
  virtual IoStatus make_directory(const std::string& path) = 0;
  /// The names in a directory, in no order, without "." and "..".
  virtual IoResult<std::vector<std::string>> list(const std::string& path) = 0;
  virtual IoResult<FileInfo> stat(const std::string& path) = 0;
  /// Sets the time of the last change to now.
  virtual IoStatus touch(const std::string& path) = 0;
  /// Adds one to a number kept with the file, for people: two processes at once may add only one.
  /// ENOTSUP where a file system keeps none.
  virtual IoStatus count_use(const std::string&) { return {.error = ENOTSUP}; }
  /// That number; 0 of a file that was never counted.
  virtual IoResult<std::uint64_t> use_count(const std::string&) {
    return {.value = 0, .error = ENOTSUP};
  }

  /// The clock of `modified_ns`: nanoseconds since 1970. May jump.
  virtual std::int64_t now_ns() = 0;
  /// The user whose rights the calls have.
  virtual std::uint32_t user() = 0;

  /// The real file system.
  static FileSystem& posix();
};

}  // namespace kvasir::cache
