#include "console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "base/clock.h"
#include "base/units.h"
#include "command.h"

namespace kvasir::cli {
namespace {

constexpr int kPollMilliseconds = 100;

// What a signal handler may touch.
std::atomic<bool> g_interrupted{false};
std::atomic<bool> g_second_ends_process{true};

void on_interrupt(int) {
  if (g_interrupted.exchange(true) && g_second_ends_process.load()) {
    std::_Exit(static_cast<int>(Exit::kInterrupted));
  }
}

/// 0, or the errno of what went wrong.
int write_all(int fd, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

/// `code` is an errno.
Error io_error(const std::string& name, const char* action, int code) {
  return {code == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
          fmt::format("{}: cannot {}; {}", name, action, std::strerror(code))};
}

Error interrupted_error(const std::string& name) {
  return {ErrorCode::kCancelled, name + ": interrupted"};
}

Result<std::string> read_all(int fd, const std::string& name) {
  std::string content;
  char buffer[1 << 16];
  while (!interrupted().load()) {
    if (!is_readable_within(fd, kPollMilliseconds)) continue;
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n == 0) return content;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(name, "read", errno);
    content.append(buffer, static_cast<std::size_t>(n));
    if (content.size() > kInputBytesMax) {
      return Error{ErrorCode::kExhausted, fmt::format("{}: too long; got more than {}, want less",
                                                      name, format_bytes(kInputBytesMax))};
    }
  }
  return interrupted_error(name);
}

std::size_t stderr_columns() {
  struct winsize size {};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

}  // namespace

void occupy_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1) continue;
    // The wrong way round, so that reading stdin or writing the others is an error as before. The
    // lowest free number is `fd` itself: those below it are in use by now.
    (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void write_stderr(std::string_view text) noexcept { (void)write_all(STDERR_FILENO, text); }

std::string printable(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      safe += fmt::format("\\x{:02x}", byte);
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string head_of(std::string_view text, std::size_t n_bytes) {
  if (text.size() <= n_bytes) return std::string(text);
  constexpr unsigned kContinuationMask = 0xC0, kContinuation = 0x80;
  while (n_bytes > 0 &&
         (static_cast<unsigned char>(text[n_bytes]) & kContinuationMask) == kContinuation) {
    --n_bytes;
  }
  return std::string(text.substr(0, n_bytes)) + "...";
}

void print(std::string_view text) {
  const int code = write_all(STDOUT_FILENO, text);
  if (code == 0) return;
  if (code == EPIPE) std::_Exit(141);  // as a process killed by SIGPIPE would
  std::_Exit(static_cast<int>(report(io_error("stdout", "write", code))));
}

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) != 0 && !(term != nullptr && std::string_view(term) == "dumb");
}

bool stdin_is_terminal() { return ::isatty(STDIN_FILENO) != 0; }

Result<std::string> read_stdin() { return read_all(STDIN_FILENO, "stdin"); }

Result<std::string> read_input(const std::string& path) {
  if (path == "-") return read_stdin();
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // a named pipe waits for its writer
  if (fd < 0 && interrupted().load()) return interrupted_error(path);
  if (fd < 0) return io_error(path, "open", errno);
  auto content = read_all(fd, path);
  ::close(fd);
  return content;
}

Status check_output_file(const char* flag, const std::string& path) {
  struct stat there {};
  const bool exists = ::stat(path.c_str(), &there) == 0;
  if ((exists && !S_ISREG(there.st_mode)) || path.ends_with('/')) {
    return Error{ErrorCode::kIo,
                 fmt::format("{}: cannot write; got {}, which is {}, want a file", flag, path,
                             !exists || S_ISDIR(there.st_mode) ? "a directory"
                                                               : "a pipe, a device or a socket")};
  }
  // Permissions are not all that may be in the way: only a try tells.
  const std::string probe = fmt::format("{}.probe-{}", path, ::getpid());
  const int fd = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && errno != EEXIST) {
    const std::size_t slash = path.rfind('/');
    return Error{
        ErrorCode::kIo,
        fmt::format("{}: cannot write; got {} ({}), want a file in a directory that can be "
                    "written into",
                    flag, slash == std::string::npos ? path : path.substr(0, slash + 1),
                    std::strerror(errno))};
  }
  if (fd >= 0) {
    ::close(fd);
    ::unlink(probe.c_str());
  }
  return {};
}

std::string utc_time() {
  char buffer[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return std::string(buffer, std::strftime(buffer, sizeof(buffer), "%Y-%m-%dT%H:%M:%SZ", &utc));
}

bool is_readable_within(int fd, int milliseconds) {
  struct pollfd wanted {
    fd, POLLIN, 0
  };
  return ::poll(&wanted, 1, milliseconds) > 0;
}

std::atomic<bool>& interrupted() { return g_interrupted; }

void set_second_interrupt(SecondInterrupt policy) {
  g_second_ends_process.store(policy == SecondInterrupt::kEndsProcess);
}

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // `print` notices and leaves quietly
}

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), started_(SteadyClock().now_seconds()) {}

ProgressBar::~ProgressBar() {
  if (shown_) write_stderr("\r\x1b[K");
}

void ProgressBar::update(double share, const std::string& note) {
  if (!stderr_is_terminal() || SteadyClock().now_seconds() - started_ < 1.0) return;
  shown_ = true;
  constexpr int kWidth = 30;
  std::string bar(static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * kWidth), '#');
  bar.resize(kWidth, '.');
  // What matters least comes last: a narrow terminal cuts it off.
  std::string line = fmt::format("{} {:3.0f} %{}{} [{}]", label_, share * 100,
                                 note.empty() ? "" : "  ", note, bar);
  line.resize(std::min(line.size(), stderr_columns() - 1));
  say("\r\x1b[K{}", line);
}

}  // namespace kvasir::cli
