#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string_view>

#include "cache/tier/file_system.h"

namespace kvasir::cache {
namespace {

constexpr mode_t kOwnersFile = 0600;
constexpr mode_t kOwnersDirectory = 0700;
/// An extended attribute: decimal digits, so that getfattr shows it.
constexpr const char* kUseCountName = "user.kvasir.hits";
constexpr std::size_t kUseCountDigitsMax = 20;

/// Calls `call` until no signal interrupts it.
template <class Call>
auto retry(const Call& call) {
  while (true) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

IoStatus status_of(int result) { return {.error = result < 0 ? errno : 0}; }

std::int64_t nanoseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

FileInfo info_of(const struct stat& from) {
  FileInfo info;
  info.kind = S_ISREG(from.st_mode)   ? FileKind::kFile
              : S_ISDIR(from.st_mode) ? FileKind::kDirectory
                                      : FileKind::kOther;
  info.bytes = static_cast<std::uint64_t>(from.st_size);
  info.modified_ns = nanoseconds(from.st_mtim);
  info.owner = from.st_uid;
  info.mode = from.st_mode & 07777;
  return info;
}

class PosixFileSystem final : public FileSystem {
 public:
  IoResult<OpenedFile> open_read(const std::string& path) override {
    const int fd =
        retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
    if (fd < 0) return {.error = errno};
    struct stat info {};
    if (::fstat(fd, &info) != 0) {
      const int error = errno;
      ::close(fd);
      return {.error = error};
    }
    // A scan reads headers only, and payloads come in one piece: nothing to guess for the kernel.
    (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    return {.value = {.fd = fd, .info = info_of(info)}};
  }

  IoResult<int> create(const std::string& path) override {
    const int fd = retry(
        [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOwnersFile); });
    if (fd < 0) return {.error = errno};
    return {.value = fd};
  }

  IoResult<std::size_t> read_at(int fd, std::uint64_t offset,
                                std::span<std::uint8_t> out) override {
    const ssize_t n =
        retry([&] { return ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset)); });
    if (n < 0) return {.error = errno};
    return {.value = static_cast<std::size_t>(n)};
  }

  IoResult<std::size_t> write(int fd, std::span<const std::uint8_t> bytes) override {
    const ssize_t n = retry([&] { return ::write(fd, bytes.data(), bytes.size()); });
    if (n < 0) return {.error = errno};
    return {.value = static_cast<std::size_t>(n)};
  }

  IoStatus sync(int fd) override {
    return status_of(retry([&] { return ::fdatasync(fd); }));
  }

  void close(int fd) override { ::close(fd); }  // synced before: nothing is left that could fail

  IoStatus rename(const std::string& from, const std::string& to) override {
    return status_of(::rename(from.c_str(), to.c_str()));
  }

  IoStatus remove(const std::string& path) override { return status_of(::unlink(path.c_str())); }

  IoStatus make_directory(const std::string& path) override {
    return status_of(::mkdir(path.c_str(), kOwnersDirectory));
  }

  IoResult<std::vector<std::string>> list(const std::string& path) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
    if (directory == nullptr) return {.error = errno};
    IoResult<std::vector<std::string>> names;
    while (true) {
      errno = 0;
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.value.emplace_back(name);
    }
    names.error = errno;
    return names;
  }

  IoResult<FileInfo> stat(const std::string& path) override {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return {.error = errno};
    return {.value = info_of(info)};
  }

  IoStatus touch(const std::string& path) override {
    return status_of(::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW));
  }

  IoStatus count_use(const std::string& path) override {
    const IoResult<std::uint64_t> count = use_count(path);
    if (!count.ok()) return {.error = count.error};
    const std::string digits = std::to_string(count.value + 1);
    return status_of(::lsetxattr(path.c_str(), kUseCountName, digits.data(), digits.size(), 0));
  }

  IoResult<std::uint64_t> use_count(const std::string& path) override {
    std::array<char, kUseCountDigitsMax> digits{};
    const ssize_t n = ::lgetxattr(path.c_str(), kUseCountName, digits.data(), digits.size());
    if (n < 0 && errno != ENODATA && errno != ERANGE) return {.value = 0, .error = errno};
    std::uint64_t count = 0;  // also where somebody wrote no number
    if (n > 0) std::from_chars(digits.data(), digits.data() + n, count);
    return {.value = count};
  }

  std::int64_t now_ns() override {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return nanoseconds(now);
  }

  std::uint32_t user() override { return ::geteuid(); }
};

}  // namespace

FileSystem& FileSystem::posix() {
  static PosixFileSystem file_system;  // stateless
  return file_system;
}

}  // namespace kvasir::cache
