// Code points: strict UTF-8 decoding, and the character classes that pre-tokenizers speak of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::text {

inline constexpr char32_t kReplacement = 0xFFFD;

enum class Utf8Status {
  kValid,
  kInvalid,    ///< `size` bytes are a maximal subpart of an ill-formed sequence
  kTruncated,  ///< the text ends inside what so far is a well-formed sequence
};

struct Decoded {
  char32_t code_point = kReplacement;
  std::uint8_t size = 1;  ///< bytes, 1..4
  Utf8Status status = Utf8Status::kInvalid;
};

/// The code point at byte `pos`. Requires: pos < text.size().
/// Source: Unicode 15, table 3-7 (well-formed sequences) and section 3.9 (maximal subparts).
Decoded decode_utf8(std::string_view text, std::size_t pos);

/// Appends `code_point`; one that UTF-8 cannot express is appended as U+FFFD.
void append_utf8(std::string* out, char32_t code_point);

/// A set of character classes; every code point is in at least one.
using CharClass = std::uint16_t;

inline constexpr CharClass kUpper = 1u << 0;     ///< Lu, Lt
inline constexpr CharClass kLower = 1u << 1;     ///< Ll
inline constexpr CharClass kCaseless = 1u << 2;  ///< Lm, Lo
inline constexpr CharClass kLetter = kUpper | kLower | kCaseless;
inline constexpr CharClass kMark = 1u << 3;         ///< M
inline constexpr CharClass kNumber = 1u << 4;       ///< N
inline constexpr CharClass kPunctuation = 1u << 5;  ///< P
inline constexpr CharClass kSymbol = 1u << 6;       ///< S
inline constexpr CharClass kSpace = 1u << 7;        ///< the property White_Space
inline constexpr CharClass kControl = 1u << 8;      ///< Cc, Cf, Co, Cs
inline constexpr CharClass kOther = 1u << 9;        ///< none of the above

CharClass char_class(char32_t code_point);

}  // namespace kvasir::text
