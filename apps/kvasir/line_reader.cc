#include "line_reader.h"

#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>

#include "command.h"
#include "console.h"

namespace kvasir::cli {
namespace {

constexpr int kHistoryLines = 1000;
constexpr int kPollMilliseconds = 100;
constexpr int kPasteMilliseconds = 30;  // what is pasted is there; nobody types that fast
constexpr wchar_t kQuoteNext = 0x16;    // Ctrl-V: the next character is text, not a command
constexpr wchar_t kReplacement = 0xFFFD;

/// The window changed, or the process came back from a stop: the terminal must be set up again.
volatile std::sig_atomic_t g_terminal_changed = 0;
void on_terminal_change(int) { g_terminal_changed = 1; }

LineReader* reader_of(EditLine* editor) {
  void* data = nullptr;
  el_get(editor, EL_CLIENTDATA, &data);
  return static_cast<LineReader*>(data);
}

bool is_command(EditLine* editor) {
  const LineInfoW* info = el_wline(editor);
  return info->buffer != info->lastchar && *info->buffer == L'/';
}

void set_up_again(EditLine* editor) {
  g_terminal_changed = 0;
  el_resize(editor);
  el_set(editor, EL_PREP_TERM, 0);  // else it believes that nothing has changed
  el_set(editor, EL_PREP_TERM, 1);
  write_stderr("\r\x1b[K");  // over the line that stands there
  el_set(editor, EL_REFRESH);
}

/// False at Ctrl-C.
bool wait_for_input(EditLine* editor) {
  while (!interrupted().load()) {
    if (is_readable_within(STDIN_FILENO, kPollMilliseconds)) return true;
    if (g_terminal_changed != 0) set_up_again(editor);
  }
  return false;
}

LineReader::Outcome read_plain(std::string& line) {
  char* buffer = nullptr;
  std::size_t capacity = 0;
  const ssize_t n = ::getline(&buffer, &capacity, stdin);
  const int code = errno;
  const bool was_interrupted = n < 0 && code == EINTR;
  if (n > 0) line.assign(buffer, static_cast<std::size_t>(n));
  std::free(buffer);
  if (was_interrupted) std::clearerr(stdin);
  if (was_interrupted) return LineReader::Outcome::kInterrupted;
  if (n < 0 && std::ferror(stdin) != 0) {
    report({ErrorCode::kIo, fmt::format("stdin: cannot read; {}", std::strerror(code))});
    return LineReader::Outcome::kFailed;
  }
  if (n < 0) return LineReader::Outcome::kEnd;
  if (line.back() == '\n') line.pop_back();
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return LineReader::Outcome::kLine;
}

}  // namespace

LineReader::LineReader() {
  if (!stdin_is_terminal() || !stderr_is_terminal() || std::getenv("TERM") == nullptr) return;
  std::setlocale(LC_CTYPE, "C.UTF-8");  // what is typed is UTF-8, whatever LANG says
  struct sigaction action {};
  action.sa_handler = on_terminal_change;
  ::sigaction(SIGCONT, &action, nullptr);
  ::sigaction(SIGWINCH, &action, nullptr);
  editor_.reset(el_init("kvasir", stdin, stderr, stderr));
  history_.reset(history_init());
  if (!editor_ || !history_) {
    editor_.reset();
    return;
  }
  HistEvent event;
  history(history_.get(), &event, H_SETSIZE, kHistoryLines);
  history(history_.get(), &event, H_SETUNIQUE, 1);
  el_set(editor_.get(), EL_CLIENTDATA, this);
  el_set(editor_.get(), EL_EDITOR, "emacs");
  el_set(editor_.get(), EL_HIST, history, history_.get());
  el_set(editor_.get(), EL_PROMPT, &LineReader::prompt_of);
  el_wset(editor_.get(), EL_GETCFN, &LineReader::read_char);
}

char* LineReader::prompt_of(EditLine* editor) { return reader_of(editor)->prompt_.data(); }

int LineReader::read_char(EditLine* editor, wchar_t* out) {
  LineReader* self = reader_of(editor);
  if (self->owes_newline_) {
    self->owes_newline_ = false;
    *out = L'\n';
    return 1;
  }
  std::mbstate_t state{};
  while (true) {
    if (!wait_for_input(editor)) return -1;
    char byte = 0;
    const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return static_cast<int>(n);
    const std::size_t n_bytes = std::mbrtowc(out, &byte, 1, &state);
    if (n_bytes == static_cast<std::size_t>(-2)) continue;  // more bytes of it to come
    if (n_bytes == static_cast<std::size_t>(-1)) *out = kReplacement;
    break;
  }
  const bool is_newline = *out == L'\r' || *out == L'\n';
  if (is_newline && !is_command(editor) && is_readable_within(STDIN_FILENO, kPasteMilliseconds)) {
    self->owes_newline_ = true;  // a pasted one: part of the text
    *out = kQuoteNext;
  }
  return 1;
}

LineReader::Outcome LineReader::read_edited(std::string& line) {
  int n = 0;
  const char* text = el_gets(editor_.get(), &n);
  if (text == nullptr || n <= 0) {
    owes_newline_ = false;
    const bool was_interrupted = interrupted().load();
    el_reset(editor_.get());
    write_stderr("\n");
    return was_interrupted ? Outcome::kInterrupted : Outcome::kEnd;
  }
  line.assign(text, static_cast<std::size_t>(n));
  if (!line.empty() && line.back() == '\n') line.pop_back();
  HistEvent event;
  if (!line.empty()) history(history_.get(), &event, H_ENTER, line.c_str());
  return Outcome::kLine;
}

LineReader::Outcome LineReader::read(const char* prompt, std::string& line) {
  line.clear();
  interrupted().store(false);
  if (editor_) {
    prompt_ = prompt;
    return read_edited(line);
  }
  if (stdin_is_terminal()) write_stderr(prompt);
  const Outcome outcome = read_plain(line);
  if (outcome == Outcome::kInterrupted) write_stderr("\n");
  return outcome;
}

}  // namespace kvasir::cli
