// Lines from a person: edited with libedit at a terminal, plain from anything else.
#pragma once

#include <histedit.h>

#include <memory>
#include <string>

namespace kvasir::cli {

class LineReader {
 public:
  LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Outcome { kLine, kInterrupted, kEnd, kFailed };
  /// One line without its end. At a terminal lines that are pasted together come together, joined
  /// by newlines, except behind a line that begins with '/'. A Ctrl-C before the call is forgotten;
  /// one during it gives kInterrupted and drops what was typed. kFailed has been reported.
  Outcome read(const char* prompt, std::string& line);

 private:
  struct Free {
    void operator()(EditLine* editor) const { el_end(editor); }
    void operator()(History* history) const { history_end(history); }
  };
  Outcome read_edited(std::string& line);
  static int read_char(EditLine* editor, wchar_t* out);
  static char* prompt_of(EditLine* editor);

  std::string prompt_;
  bool owes_newline_ = false;  ///< the second half of a quoted newline
  std::unique_ptr<History, Free> history_;
  std::unique_ptr<EditLine, Free> editor_;  ///< null: not a terminal
};

}  // namespace kvasir::cli
