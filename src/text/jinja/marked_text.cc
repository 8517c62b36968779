// Marked strings: building, characters, white space, splitting, case.
#include "text/jinja/marked_text.h"

#include <utf8proc.h>

#include <algorithm>

namespace kvasir::text::jinja {

bool Text::from_input_at(std::size_t pos) const {
  const auto span = std::upper_bound(spans_.begin(), spans_.end(), pos,
                                     [](std::size_t p, const Span& s) { return p < s.end; });
  return span != spans_.end() && span->from_input;
}

void Text::append(std::string_view bytes, bool from_input) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!spans_.empty() && spans_.back().from_input == from_input) {
    spans_.back().end = bytes_.size();
  } else {
    spans_.push_back({bytes_.size(), from_input});
  }
}

void Text::append(const Text& other, std::size_t begin, std::size_t end) {
  auto span = std::upper_bound(other.spans_.begin(), other.spans_.end(), begin,
                               [](std::size_t p, const Span& s) { return p < s.end; });
  while (begin < end && span != other.spans_.end()) {
    const std::size_t stop = std::min(end, span->end);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), span->from_input);
    begin = stop;
    ++span;
  }
}

Character character_at(std::string_view text, std::size_t pos) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  if (lead < 0x80) return {pos, pos + 1, lead};
  utf8proc_int32_t code_point = -1;
  const auto n_left = static_cast<utf8proc_ssize_t>(std::min<std::size_t>(4, text.size() - pos));
  const utf8proc_ssize_t n = utf8proc_iterate(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data() + pos), n_left, &code_point);
  if (n <= 0) return {pos, pos + 1, -1};
  return {pos, pos + static_cast<std::size_t>(n), code_point};
}

std::size_t count_characters(std::string_view text) {
  std::size_t n = 0;
  for (std::size_t pos = 0; pos < text.size(); pos = character_at(text, pos).end) ++n;
  return n;
}

std::vector<std::size_t> character_offsets(Budget& budget, std::string_view text) {
  budget.bytes(text.size() * sizeof(std::size_t), text.size() * sizeof(std::size_t));
  std::vector<std::size_t> offsets;
  for (std::size_t pos = 0; pos < text.size(); pos = character_at(text, pos).end) {
    offsets.push_back(pos);
  }
  offsets.push_back(text.size());
  return offsets;
}

std::size_t offset_of_character(std::string_view text, std::int64_t n) {
  std::size_t pos = 0;
  for (; n > 0 && pos < text.size(); --n) pos = character_at(text, pos).end;
  return pos;
}

void append_utf8(std::int32_t code_point, std::string& out) {
  if (!utf8proc_codepoint_valid(code_point)) code_point = 0xFFFD;
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t n = utf8proc_encode_char(code_point, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
}

bool is_space(std::int32_t c) {
  // The characters of bidirectional type WS, B or S and those of category Zs.
  if ((c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0) return true;
  return c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_alphabetic(std::int32_t c) {
  if (c < 0) return false;
  const utf8proc_category_t category = utf8proc_category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_numeric(std::int32_t c) {
  if (c < 0) return false;
  return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_printable(std::int32_t c) {
  if (c == ' ') return true;
  if (c < 0) return false;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_upper(std::int32_t c) { return c >= 0 && utf8proc_category(c) == UTF8PROC_CATEGORY_LU; }

bool is_lower(std::int32_t c) { return c >= 0 && utf8proc_category(c) == UTF8PROC_CATEGORY_LL; }

Range strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  const auto goes = [&](const Character& c) {
    if (!chars) return is_space(c.code_point);
    const std::string_view bytes = text.substr(c.begin, c.end - c.begin);
    for (std::size_t pos = 0; pos < chars->size();) {
      const Character other = character_at(*chars, pos);
      if (chars->substr(pos, other.end - pos) == bytes) return true;
      pos = other.end;
    }
    return false;
  };
  Range range{0, text.size()};
  if (side != Side::kRight) {
    while (range.begin < range.end) {
      const Character c = character_at(text, range.begin);
      if (!goes(c)) break;
      range.begin = c.end;
    }
  }
  if (side != Side::kLeft) {
    while (range.end > range.begin) {
      // The last character starts at most four bytes back; step over continuation bytes.
      std::size_t start = range.end - 1;
      while (start > range.begin && range.end - start < 4 && (text[start] & 0xC0) == 0x80) --start;
      if (character_at(text, start).end != range.end) start = range.end - 1;
      if (!goes(character_at(text.substr(0, range.end), start))) break;
      range.end = start;
    }
  }
  return range;
}

namespace {

std::vector<Range> split_words(Budget& budget, std::string_view text, std::int64_t n_max) {
  std::vector<Range> parts;
  std::size_t pos = 0;
  while (true) {
    pos += strip(text.substr(pos), Side::kLeft, std::nullopt).begin;
    if (pos == text.size()) return parts;
    if (n_max >= 0 && static_cast<std::int64_t>(parts.size()) >= n_max) {
      parts.push_back({pos, text.size()});
      return parts;
    }
    budget.step();
    const std::size_t begin = pos;
    while (pos < text.size()) {
      const Character c = character_at(text, pos);
      if (is_space(c.code_point)) break;
      pos = c.end;
    }
    parts.push_back({begin, pos});
  }
}

}  // namespace

std::vector<Range> split(Budget& budget, std::string_view text, std::string_view separator,
                         std::int64_t n_max) {
  budget.bytes(text.size(), text.size());
  if (separator.empty()) return split_words(budget, text, n_max);
  std::vector<Range> parts;
  std::size_t begin = 0;
  while (n_max < 0 || static_cast<std::int64_t>(parts.size()) < n_max) {
    const std::size_t cut = text.find(separator, begin);
    if (cut == std::string_view::npos) break;
    budget.step();
    parts.push_back({begin, cut});
    begin = cut + separator.size();
  }
  parts.push_back({begin, text.size()});
  return parts;
}

std::vector<Range> split_from_right(Budget& budget, std::string_view text,
                                    std::string_view separator, std::int64_t n_max) {
  budget.bytes(text.size(), text.size());
  std::vector<Range> parts;
  if (separator.empty()) {
    parts = split_words(budget, text, -1);
    if (n_max >= 0 && static_cast<std::int64_t>(parts.size()) > n_max) {
      // What precedes the last n_max words stays one part, leading white space included.
      const auto n_joined = parts.size() - static_cast<std::size_t>(n_max);
      const Range first{0, parts[n_joined - 1].end};
      parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(n_joined));
      parts.insert(parts.begin(), first);
    }
    return parts;
  }
  std::size_t end = text.size();
  while (n_max < 0 || static_cast<std::int64_t>(parts.size()) < n_max) {
    if (end < separator.size()) break;
    const std::size_t cut = text.rfind(separator, end - separator.size());
    if (cut == std::string_view::npos) break;
    budget.step();
    parts.push_back({cut + separator.size(), end});
    end = cut;
  }
  parts.push_back({0, end});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Range> split_lines(Budget& budget, std::string_view text) {
  budget.bytes(text.size(), text.size());
  std::vector<Range> lines;
  std::size_t begin = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    const Character c = character_at(text, pos);
    const std::int32_t p = c.code_point;
    const bool ends = (p >= 0x0A && p <= 0x0D) || (p >= 0x1C && p <= 0x1E) || p == 0x85 ||
                      p == 0x2028 || p == 0x2029;
    if (!ends) {
      pos = c.end;
      continue;
    }
    budget.step();
    lines.push_back({begin, pos});
    pos = c.end;
    if (p == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    begin = pos;
  }
  if (begin < text.size()) lines.push_back({begin, text.size()});
  return lines;
}

namespace {

constexpr std::int32_t kSharpS = 0xDF;  // the one common letter whose upper case is two letters

void append_upper(std::int32_t c, bool title, std::string& out) {
  if (c == kSharpS) {
    out += title ? "Ss" : "SS";
  } else {
    append_utf8(title ? utf8proc_totitle(c) : utf8proc_toupper(c), out);
  }
}

}  // namespace

Text change_case(const Text& text, Case to, Budget& budget) {
  TextBuilder out(budget);
  bool after_letter = false;
  std::string mapped;
  const std::string_view view = text.view();
  for (std::size_t pos = 0; pos < view.size();) {
    const Character c = character_at(view, pos);
    mapped.clear();
    const bool starts = to == Case::kTitle ? !after_letter : pos == 0;
    if (c.code_point < 0) {
      mapped = view.substr(c.begin, c.end - c.begin);
    } else if (to == Case::kUpper || (to == Case::kSwap && is_lower(c.code_point))) {
      append_upper(c.code_point, false, mapped);
    } else if (starts && (to == Case::kTitle || to == Case::kCapitalize)) {
      append_upper(c.code_point, true, mapped);
    } else {
      append_utf8(utf8proc_tolower(c.code_point), mapped);
    }
    after_letter = is_upper(c.code_point) || is_lower(c.code_point);
    out.append(mapped, text.from_input_at(pos));
    pos = c.end;
  }
  return out.take();
}

std::string lower(std::string_view text) {
  std::string out;
  for (std::size_t pos = 0; pos < text.size();) {
    const Character c = character_at(text, pos);
    if (c.code_point < 0) {
      out += text.substr(c.begin, c.end - c.begin);
    } else {
      append_utf8(utf8proc_tolower(c.code_point), out);
    }
    pos = c.end;
  }
  return out;
}

}  // namespace kvasir::text::jinja
