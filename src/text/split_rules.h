// The scanners behind the rules of a pre-tokenizer; internal to the room.
#pragma once

#include <cstdint>
#include <vector>

#include "text/pretokenizer.h"
#include "text/unicode.h"

namespace kvasir::text {

/// A text as code points; an invalid byte is U+FFFD of class kSymbol.
struct CodePoints {
  std::vector<char32_t> code_points;
  std::vector<CharClass> classes;
  std::vector<std::uint32_t> offsets;  ///< byte offset of each, and one more for the end
};

/// Cuts the piece `[begin, end)` (code point indices) by `rule`; what it does not match stays
/// together between two matches. Appends the ends of the new pieces. Requires: begin < end.
void split_piece(const CodePoints& text, SplitRule rule, std::uint32_t begin, std::uint32_t end,
                 std::vector<std::uint32_t>* ends);

}  // namespace kvasir::text
