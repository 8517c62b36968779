// What the process shares with its terminal: standard streams, Ctrl-C, progress.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace kvasir::cli {

/// Puts /dev/null where a standard stream is closed, so that no file gets its number; using the
/// stream still fails. Call first in main.
void occupy_standard_streams();

/// Writes to stderr. What cannot be written is lost: there is no one left to tell.
void write_stderr(std::string_view text) noexcept;

/// The one way to stderr; never throws, whatever stderr is.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    write_stderr(fmt::format(format, std::forward<Args>(args)...));
  } catch (...) {  // no memory for a message
  }
}

/// Control characters as \x1b: an echoed argument must not move the cursor or set colours.
std::string printable(std::string_view text);

/// The first `n_bytes` at most, cut between code points, and "..." where that is not all.
std::string head_of(std::string_view text, std::size_t n_bytes);

/// Writes to stdout. A closed pipe ends the process quietly (141), any other failure with a message
/// (1): nobody gets what the rest of the work would give.
void print(std::string_view text);

/// True when messages may use colour and moving bars.
bool stderr_is_terminal();
bool stdin_is_terminal();

/// At most this much of a prompt, a text or a conversation is read; it is held outside the budget.
constexpr std::uint64_t kInputBytesMax = std::uint64_t{64} << 20;

/// Whole standard input. Errors: kIo, kExhausted (too long), kCancelled (Ctrl-C).
Result<std::string> read_stdin();
/// A file, or standard input for "-". Errors: also kNotFound.
Result<std::string> read_input(const std::string& path);

/// For a file that is written after minutes of work: whether Env::write_file_atomic could write it
/// now. What is there stays as it is. Errors: kIo, when it is no regular file, or none can be made
/// beside it.
Status check_output_file(const char* flag, const std::string& path);

/// Now, as 2026-07-01T12:00:00Z.
std::string utc_time();

/// Waits for input, its end or an error. False after `milliseconds` without, or at a signal.
bool is_readable_within(int fd, int milliseconds);

/// Set by SIGINT, cleared by whoever acted on it.
std::atomic<bool>& interrupted();
/// What a SIGINT does while the one before it has not been acted on.
enum class SecondInterrupt { kEndsProcess, kChangesNothing };
void set_second_interrupt(SecondInterrupt policy);
/// Installs the handlers; a second SIGINT ends the process. Call once in main.
void install_signal_handlers();

/// A bar on a terminal's stderr, shown once the work has taken a second; nothing elsewhere.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  void update(double share, const std::string& note = {});

 private:
  std::string label_;
  double started_;
  bool shown_ = false;
};

}  // namespace kvasir::cli
