// Strings of a running template: bytes in which every stretch remembers whether a user wrote it.
//
// Positions are byte offsets; "characters" are code points as in Python, and a byte that is not
// part of valid UTF-8 counts as one character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/budget.h"

namespace kvasir::text::jinja {

/// Invariant: spans are in order, adjacent ones differ in mark, the last one ends at size().
class Text {
 public:
  struct Span {
    std::size_t end = 0;
    bool from_input = false;
  };
  Text() = default;
  explicit Text(std::string bytes, bool from_input = false) : bytes_(std::move(bytes)) {
    if (!bytes_.empty()) spans_.push_back({bytes_.size(), from_input});
  }

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Span>& spans() const { return spans_; }

  /// True for what `safe` and `escape` give: adding a plain string to it escapes that string.
  bool is_markup() const { return is_markup_; }
  void set_markup() { is_markup_ = true; }

  /// The mark of the byte at `pos`; false at or past the end.
  bool from_input_at(std::size_t pos) const;

  void append(std::string_view bytes, bool from_input);
  /// Bytes [begin, end) of `other` with their marks.
  void append(const Text& other, std::size_t begin, std::size_t end);

 private:
  std::string bytes_;
  std::vector<Span> spans_;
  bool is_markup_ = false;
};

/// Grows a Text and pays for it.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : budget_(budget) {}
  void append(std::string_view bytes, bool from_input = false) {
    budget_.bytes(text_.size() + bytes.size(), bytes.size() + kSpanBytes);
    text_.append(bytes, from_input);
  }
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, std::size_t begin, std::size_t end) {
    budget_.bytes(text_.size() + (end - begin),
                  end - begin + kSpanBytes * (1 + other.spans().size()));
    text_.append(other, begin, end);
  }
  const Text& text() const { return text_; }
  Text take() { return std::move(text_); }

 private:
  static constexpr std::size_t kSpanBytes = 2;
  Budget& budget_;
  Text text_;
};

/// Bytes [begin, end) of a string.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// One character: where it is and its code point (-1: an invalid byte).
struct Character {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t code_point = -1;
};
/// Requires: pos < text.size().
Character character_at(std::string_view text, std::size_t pos);
std::size_t count_characters(std::string_view text);
/// Byte offsets where characters start, and the size at the end. Eight bytes for every byte of the
/// text at worst, which the budget must allow.
std::vector<std::size_t> character_offsets(Budget& budget, std::string_view text);
/// Where character `n` starts; the size if there are not so many.
std::size_t offset_of_character(std::string_view text, std::int64_t n);
void append_utf8(std::int32_t code_point, std::string& out);

/// As str.isspace() of Python.
bool is_space(std::int32_t code_point);
bool is_alphabetic(std::int32_t code_point);
bool is_numeric(std::int32_t code_point);
bool is_printable(std::int32_t code_point);
bool is_upper(std::int32_t code_point);
bool is_lower(std::int32_t code_point);

enum class Side { kLeft, kRight, kBoth };
/// What is left after white space (or any of `chars`) is taken off the ends.
Range strip(std::string_view text, Side side, std::optional<std::string_view> chars);

/// The parts between separators; `separator` empty: runs of white space, as str.split(None).
/// `n_max` < 0: no limit on the number of cuts.
std::vector<Range> split(Budget& budget, std::string_view text, std::string_view separator,
                         std::int64_t n_max);
std::vector<Range> split_from_right(Budget& budget, std::string_view text,
                                    std::string_view separator, std::int64_t n_max);
std::vector<Range> split_lines(Budget& budget, std::string_view text);

enum class Case { kUpper, kLower, kTitle, kCapitalize, kSwap };
/// Changes case character by character and keeps each character's mark. kTitle: every word's first
/// letter, as str.title().
Text change_case(const Text& text, Case to, Budget& budget);
std::string lower(std::string_view text);

}  // namespace kvasir::text::jinja
