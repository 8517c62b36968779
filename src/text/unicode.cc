#include "text/unicode.h"

#include <utf8proc.h>

namespace kvasir::text {
namespace {

/// What may follow a lead byte: how many bytes, and the range of the first of them.
struct Lead {
  std::uint8_t n_following = 0;
  std::uint8_t first_low = 0x80;
  std::uint8_t first_high = 0xBF;
};

Lead lead_of(std::uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {};
}

bool is_white_space(char32_t code_point) {
  if (code_point < 0x80) return code_point == ' ' || (code_point >= 0x09 && code_point <= 0x0D);
  switch (code_point) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return code_point >= 0x2000 && code_point <= 0x200A;
  }
}

CharClass category_class(char32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kCaseless;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return kSymbol;
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
      return kControl;
    default:
      return kOther;
  }
}

}  // namespace

Decoded decode_utf8(std::string_view text, std::size_t pos) {
  const auto byte_at = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte_at(pos);
  if (first < 0x80) return {first, 1, Utf8Status::kValid};
  const Lead lead = lead_of(first);
  if (lead.n_following == 0) return {};
  char32_t code_point = first & (0x3Fu >> lead.n_following);
  for (std::uint8_t i = 1; i <= lead.n_following; ++i) {
    if (pos + i >= text.size()) return {kReplacement, i, Utf8Status::kTruncated};
    const std::uint8_t byte = byte_at(pos + i);
    const std::uint8_t low = i == 1 ? lead.first_low : 0x80;
    const std::uint8_t high = i == 1 ? lead.first_high : 0xBF;
    if (byte < low || byte > high) return {kReplacement, i, Utf8Status::kInvalid};
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  return {code_point, static_cast<std::uint8_t>(lead.n_following + 1), Utf8Status::kValid};
}

void append_utf8(std::string* out, char32_t code_point) {
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (surrogate || code_point > 0x10FFFF) code_point = kReplacement;
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80 | (code_point >> shift & 0x3Fu));
  };
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->append({static_cast<char>(0xC0 | code_point >> 6), tail(0)});
  } else if (code_point < 0x10000) {
    out->append({static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)});
  } else {
    out->append({static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)});
  }
}

CharClass char_class(char32_t code_point) {
  return is_white_space(code_point) ? kSpace : category_class(code_point);
}

}  // namespace kvasir::text
