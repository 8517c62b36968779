#include "base/env.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace kvasir {
namespace {

/// Other writers of the same file, and what a killed one left, may hold that many names.
constexpr int kTemporaryNamesMax = 1000;

Error io_error(const std::string& path, const char* action) {
  const int code = errno;
  return Error{code == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
               fmt::format("{}: cannot {}; {}", path, action, std::strerror(code))};
}

/// Closes on destruction; `release` gives the descriptor up.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// O_NONBLOCK: opening a named pipe must not wait for a writer; regular files do not care.
Fd open_to_read(const std::string& path) {
  return Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

/// A pipe or a device may keep a reader for ever.
Status check_regular(const Fd& fd, const std::string& path, const char* action, struct stat& info) {
  if (::fstat(fd.get(), &info) != 0) return io_error(path, "stat");
  if (S_ISREG(info.st_mode)) return {};
  return Error{ErrorCode::kIo,
               fmt::format("{}: cannot {}; got {}, want a regular file", path, action,
                           S_ISDIR(info.st_mode)    ? "a directory"
                           : S_ISFIFO(info.st_mode) ? "a named pipe"
                                                    : "a device or socket")};
}

/// Makes a rename survive a power cut. Best effort: the file itself is already whole, and some file
/// systems cannot sync a directory.
void sync_directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) (void)::fsync(fd.get());
}

class PosixMapping final : public FileMapping {
 public:
  PosixMapping(void* address, std::size_t size) : address_(address), size_(size) {}
  ~PosixMapping() override {
    if (address_ != nullptr) ::munmap(address_, size_);
  }
  std::span<const std::uint8_t> bytes() const override {
    return {static_cast<const std::uint8_t*>(address_), size_};
  }
  void drop(std::uint64_t offset, std::uint64_t size) override {
    if (address_ == nullptr || offset >= size_) return;
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t begin = round_up(offset, page);  // whole pages only: neighbours stay
    const std::uint64_t end =
        (offset + std::min<std::uint64_t>(size, size_ - offset)) / page * page;
    if (begin >= end) return;
    (void)::madvise(static_cast<std::uint8_t*>(address_) + begin, end - begin, MADV_DONTNEED);
  }

 private:
  void* address_;
  std::size_t size_;
};

class PosixEnv final : public Env {
 public:
  Result<std::unique_ptr<FileMapping>> map_file(const std::string& path) override {
    const Fd fd = open_to_read(path);
    if (!fd.valid()) return io_error(path, "open");
    struct stat info {};
    KVASIR_RETURN_IF_ERROR(check_regular(fd, path, "map", info));
    const auto size = static_cast<std::size_t>(info.st_size);
    void* address = nullptr;
    if (size > 0) {
      address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
      if (address == MAP_FAILED) return io_error(path, "map");
    }
    return std::unique_ptr<FileMapping>(std::make_unique<PosixMapping>(address, size));
  }

  Result<std::string> read_file(const std::string& path, std::uint64_t max_bytes) override {
    const Fd fd = open_to_read(path);
    if (!fd.valid()) return io_error(path, "open");
    struct stat info {};
    KVASIR_RETURN_IF_ERROR(check_regular(fd, path, "read", info));
    std::string content;
    char buffer[1 << 16];
    while (true) {
      const ssize_t n_read = ::read(fd.get(), buffer, sizeof(buffer));
      if (n_read < 0 && errno == EINTR) continue;
      if (n_read < 0) return io_error(path, "read");
      if (n_read == 0) return content;
      content.append(buffer, static_cast<std::size_t>(n_read));
      if (content.size() > max_bytes) {
        return Error{ErrorCode::kExhausted,
                     fmt::format("{}: file too large; want at most {} B", path, max_bytes)};
      }
    }
  }

  Status write_file_atomic(const std::string& path, std::span<const std::uint8_t> bytes) override {
    struct stat old {};
    if (::stat(path.c_str(), &old) == 0 && !S_ISREG(old.st_mode)) {  // not to be replaced
      return Error{ErrorCode::kIo, fmt::format("{}: not a regular file", path)};
    }
    // Not mkstemp: its 0600 would override the user's umask.
    std::string temporary;
    int raw_fd = -1;
    for (int attempt = 0; attempt < kTemporaryNamesMax && raw_fd < 0; ++attempt) {
      temporary = fmt::format("{}.tmp-{}-{}", path, ::getpid(), attempt);
      raw_fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (raw_fd < 0 && errno != EEXIST) break;
    }
    const Fd fd(raw_fd);
    if (!fd.valid()) return io_error(path, "create a temporary file beside it");
    const auto fail = [&](const char* action) {
      Error error = io_error(path, action);
      ::unlink(temporary.c_str());
      return error;
    };
    std::size_t n_written = 0;
    while (n_written < bytes.size()) {
      const ssize_t n = ::write(fd.get(), bytes.data() + n_written, bytes.size() - n_written);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return fail("write");
      n_written += static_cast<std::size_t>(n);
    }
    if (::fsync(fd.get()) != 0) return fail("sync");
    if (::rename(temporary.c_str(), path.c_str()) != 0) return fail("rename");
    sync_directory_of(path);
    return {};
  }
};

}  // namespace

Env& Env::posix() {
  static PosixEnv env;  // stateless
  return env;
}

}  // namespace kvasir
