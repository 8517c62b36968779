// The lexer: data and tags outside, an expression's tokens inside.
#include "text/jinja/lexer.h"

#include <cctype>

#include <fmt/format.h>

#include "text/jinja/marked_text.h"

namespace kvasir::text::jinja {

namespace {

bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80);
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit(c); }

/// "\r\n" and "\r" become "\n"; one newline at the very end goes (keep_trailing_newline=False).
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : normalized_(normalize_newlines(source)) {
    source_ = normalized_;
  }

  std::vector<Token> run() {
    while (pos_ < source_.size()) outside();
    add(TokenKind::kEnd, "", source_.size());
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(std::string message, std::size_t at) {
    locate(at);
    throw TemplateError{ErrorCode::kInvalidModel, std::move(message), line_, column_};
  }

  /// Moves the line counter to `at`; calls come in rising order but for errors.
  void locate(std::size_t at) {
    if (at < located_) {
      line_ = 1;
      located_ = 0;
      line_begin_ = 0;
    }
    for (; located_ < at; ++located_) {
      if (source_[located_] == '\n') {
        ++line_;
        line_begin_ = located_ + 1;
      }
    }
    column_ = static_cast<int>(at - line_begin_) + 1;
  }

  void add(TokenKind kind, std::string text, std::size_t at) {
    locate(at);
    tokens_.push_back({kind, std::move(text), line_, column_});
  }

  bool starts(std::string_view what, std::size_t at) const {
    return source_.substr(at, what.size()) == what;
  }

  std::size_t skip_space(std::size_t at) const {
    while (at < source_.size()) {
      const Character c = character_at(source_, at);
      if (!is_space(c.code_point)) break;
      at = c.end;
    }
    return at;
  }

  /// The next "{{", "{%" or "{#" from `at`, or the end.
  std::size_t find_tag(std::size_t at) const {
    for (; at + 1 < source_.size(); ++at) {
      const char next = source_[at + 1];
      if (source_[at] == '{' && (next == '{' || next == '%' || next == '#')) return at;
    }
    return source_.size();
  }

  /// Adds source [begin, end) as data after the sign of the tag that follows has had its say.
  void add_data(std::size_t begin, std::size_t end, char sign, bool tag_may_strip) {
    std::string_view text = source_.substr(begin, end - begin);
    if (sign == '-') {
      text = text.substr(0, strip(text, Side::kRight, std::nullopt).end);
    } else if (sign != '+' && tag_may_strip) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      const bool is_line_start = line > 0 || at_line_start_;
      if (is_line_start && skip_space(begin + line) >= end) text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::kData, std::string(text), begin);
  }

  char sign_at(std::size_t at) const {
    const char c = at < source_.size() ? source_[at] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  /// If a tag's end ("%}" or "#}", signs included) is at `at`: where the text after it begins.
  std::size_t end_of_tag(std::string_view end, std::size_t at, bool trims_newline) const {
    const char sign = sign_at(at);
    if (sign && starts(end, at + 1)) {
      if (sign == '-') return skip_space(at + 1 + end.size());
      return end == "}}" ? std::string_view::npos : at + 1 + end.size();
    }
    if (!starts(end, at)) return std::string_view::npos;
    at += end.size();
    return trims_newline && starts("\n", at) ? at + 1 : at;
  }

  void set_pos(std::size_t pos) {
    at_line_start_ = pos > 0 && source_[pos - 1] == '\n';
    pos_ = pos;
  }

  void outside() {
    const std::size_t tag = find_tag(pos_);
    if (tag == source_.size()) {
      add_data(pos_, tag, '+', false);
      pos_ = tag;
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    add_data(pos_, tag, sign, kind != '{');
    const std::size_t inside = tag + (sign ? 3 : 2);
    if (kind == '#') return comment(tag, inside);
    if (kind == '%' && raw(tag, inside)) return;
    add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "", tag);
    expression(inside, kind == '{');
  }

  void comment(std::size_t tag, std::size_t inside) {
    for (std::size_t at = inside; at < source_.size(); ++at) {
      const std::size_t end = end_of_tag("#}", at, true);
      if (end != std::string_view::npos) return set_pos(end);
    }
    error("missing end of comment tag", tag);
  }

  /// {% raw %} ... {% endraw %}; false if the tag at hand is another one.
  bool raw(std::size_t tag, std::size_t inside) {
    std::size_t at = skip_space(inside);
    if (!starts("raw", at)) return false;
    at = skip_space(at + 3);
    const std::size_t begin =
        sign_at(at) == '+' ? std::string_view::npos : end_of_tag("%}", at, false);
    if (begin == std::string_view::npos) return false;
    at_line_start_ = begin > 0 && source_[begin - 1] == '\n';
    for (std::size_t end = source_.find("{%", begin); end != std::string_view::npos;
         end = source_.find("{%", end + 2)) {
      const char sign = sign_at(end + 2);
      std::size_t close = skip_space(end + (sign ? 3 : 2));
      if (!starts("endraw", close)) continue;
      close = end_of_tag("%}", skip_space(close + 6), true);
      if (close == std::string_view::npos) continue;
      add_data(begin, end, sign, true);
      set_pos(close);
      return true;
    }
    error("missing end of raw tag", tag);
  }

  /// Tokens up to the end of the tag. Inside brackets the end is not looked for.
  void expression(std::size_t at, bool variable) {
    std::string open;  // brackets
    while (at < source_.size()) {
      if (open.empty()) {
        const std::size_t end = end_of_tag(variable ? "}}" : "%}", at, !variable);
        if (end != std::string_view::npos) {
          add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "", at);
          return set_pos(end);
        }
      }
      const std::size_t after = skip_space(at);
      at = after > at ? after : token(at, open);
    }
    pos_ = at;
  }

  std::size_t token(std::size_t at, std::string& open) {
    const char c = source_[at];
    if (is_digit(c)) return number(at);
    if (is_name_start(c)) {
      std::size_t end = at;
      while (end < source_.size() && is_name_char(source_[end])) ++end;
      add(TokenKind::kName, std::string(source_.substr(at, end - at)), at);
      return end;
    }
    if (c == '\'' || c == '"') return string(at);
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    std::size_t n = 1;
    for (const std::string_view two : kTwo) {
      if (starts(two, at)) n = 2;
    }
    if (std::string_view("+-/*%~[](){}<>=.:|,;!").find(c) == std::string_view::npos ||
        (c == '!' && n == 1)) {
      error(fmt::format("unexpected character; got byte 0x{:02x}", static_cast<unsigned char>(c)),
            at);
    }
    if (c == '(' || c == '[' || c == '{') {
      open += c;
    } else if (c == ')' || c == ']' || c == '}') {
      const char wanted = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != wanted) error(fmt::format("unexpected '{}'", c), at);
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(source_.substr(at, n)), at);
    return at + n;
  }

  /// Digits with single underscores between them.
  std::size_t skip_digits(std::size_t at) const {
    while (at < source_.size() &&
           (is_digit(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() &&
                                      is_digit(source_[at + 1]) && is_digit(source_[at - 1])))) {
      ++at;
    }
    return at;
  }

  bool digit_at(std::size_t at) const { return at < source_.size() && is_digit(source_[at]); }

  std::size_t number(std::size_t begin) {
    std::size_t end = skip_digits(begin);
    TokenKind kind = TokenKind::kInteger;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';
    if (!after_dot) {
      if (starts(".", end) && digit_at(end + 1)) {
        kind = TokenKind::kFloat;
        end = skip_digits(end + 1);
      }
      if (starts("e", end) || starts("E", end)) {
        const std::size_t digits = end + (sign_at(end + 1) ? 2 : 1);
        if (digit_at(digits)) {
          kind = TokenKind::kFloat;
          end = skip_digits(digits);
        }
      }
    }
    std::string text;
    for (const char c : source_.substr(begin, end - begin)) {
      if (c != '_') text += c;
    }
    add(kind, std::move(text), begin);
    return end;
  }

  std::size_t string(std::size_t begin) {
    const char quote = source_[begin];
    std::string text;
    std::size_t at = begin + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] == '\\') {
        at = escape(at, text);
      } else {
        text += source_[at++];
      }
    }
    if (at >= source_.size()) error("missing end of string", begin);
    add(TokenKind::kString, std::move(text), begin);
    return at + 1;
  }

  /// Resolves the escape at `at` as Python's string literals do; an unknown one stands for itself.
  std::size_t escape(std::size_t at, std::string& text) {
    if (at + 1 >= source_.size()) error("missing end of string", at);
    const char c = source_[at + 1];
    if (c == '\n') return at + 2;  // a line continued
    constexpr std::string_view kFrom = "\\'\"abfnrtv";
    constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    const std::size_t simple = kFrom.find(c);
    if (simple != std::string_view::npos) {
      text += kTo[simple];
      return at + 2;
    }
    if (c >= '0' && c <= '7') {
      std::size_t end = at + 1;
      int value = 0;
      while (end < source_.size() && end < at + 4 && source_[end] >= '0' && source_[end] <= '7') {
        value = value * 8 + (source_[end++] - '0');
      }
      append_utf8(value, text);
      return end;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      std::uint32_t value = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const char digit = at + 2 + i < source_.size() ? source_[at + 2 + i] : '\0';
        if (!std::isxdigit(static_cast<unsigned char>(digit))) error("truncated escape", at);
        const int low = digit | 0x20;
        value =
            value * 16 + static_cast<std::uint32_t>(is_digit(digit) ? digit - '0' : low - 'a' + 10);
      }
      append_utf8(value > 0x10FFFF ? -1 : static_cast<std::int32_t>(value), text);
      return at + 2 + n;
    }
    if (c == 'N') error("named characters are not supported in strings", at);
    text += '\\';
    return at + 1;
  }

  const std::string normalized_;
  std::string_view source_;
  std::vector<Token> tokens_;
  std::size_t pos_ = 0;
  bool at_line_start_ = true;
  // Where line_ and column_ were last computed.
  std::size_t located_ = 0;
  std::size_t line_begin_ = 0;
  int line_ = 1;
  int column_ = 1;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace kvasir::text::jinja
