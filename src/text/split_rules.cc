#include "text/split_rules.h"

#include <algorithm>
#include <array>
#include <utility>

namespace kvasir::text {
namespace {

using Index = std::uint32_t;
using Range = std::pair<char32_t, char32_t>;

/// Beyond every code point: what lies past the end of the piece.
constexpr char32_t kNone = 0xFFFFFFFF;

/// A piece; reading past its end gives no class and no code point, as a regex at the end of its
/// text.
struct Piece {
  const CodePoints& text;
  Index end;

  char32_t code_point(Index at) const { return at < end ? text.code_points[at] : kNone; }
  CharClass char_class(Index at) const { return at < end ? text.classes[at] : CharClass{0}; }
  bool is(Index at, CharClass classes) const { return (char_class(at) & classes) != 0; }
  bool is_newline(Index at) const { return code_point(at) == '\r' || code_point(at) == '\n'; }

  /// First index from `at` on that is not of these classes.
  Index skip(Index at, CharClass classes) const {
    while (is(at, classes)) ++at;
    return at;
  }
  Index skip_not(Index at, CharClass classes) const {
    while (at < end && !is(at, classes)) ++at;
    return at;
  }
  Index skip_newlines(Index at) const {
    while (is_newline(at)) ++at;
    return at;
  }
};

// Every match_* returns the end of the match that begins at `at`, or `at` when there is none.

enum class Case { kSensitive, kInsensitive };

// 's|'t|'re|'ve|'m|'ll|'d
Index match_contraction(const Piece& piece, Index at, Case letter_case) {
  if (piece.code_point(at) != '\'') return at;
  const auto letter = [&](Index i) {
    const char32_t c = piece.code_point(i);
    return letter_case == Case::kInsensitive && c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  };
  const char32_t first = letter(at + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  const char32_t second = letter(at + 2);
  const bool matches = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
                       (first == 'l' && second == 'l');
  return matches ? at + 3 : at;
}

// \s+(?!\S)|\s+
Index match_space(const Piece& piece, Index at) {
  const Index end = piece.skip(at, kSpace);
  // The last one is left to the word that follows, unless it is the only one.
  return end - at > 1 && end < piece.end ? end - 1 : end;
}

// \s*[\r\n]+
Index match_space_to_newline(const Piece& piece, Index at) {
  Index last_newline_end = at;
  for (Index i = at; piece.is(i, kSpace); ++i) {
    if (piece.is_newline(i)) last_newline_end = i + 1;
  }
  return last_newline_end;
}

// [^\r\n\p{L}\p{N}]?letters+
Index match_led_letters(const Piece& piece, Index at, CharClass letters) {
  if (!piece.is(at, kLetter | kNumber) && !piece.is_newline(at) && piece.is(at + 1, letters)) {
    return piece.skip(at + 1, letters);
  }
  return piece.skip(at, letters);
}

//  ?[^excluded]+
Index match_spaced_not(const Piece& piece, Index at, CharClass excluded) {
  const Index begin = at + (piece.code_point(at) == ' ' ? 1 : 0);
  const Index end = piece.skip_not(begin, excluded);
  return end > begin ? end : at;
}

//  ?classes+
Index match_spaced(const Piece& piece, Index at, CharClass classes) {
  const Index begin = at + (piece.code_point(at) == ' ' ? 1 : 0);
  const Index end = piece.skip(begin, classes);
  return end > begin ? end : at;
}

Index match_numbers(const Piece& piece, Index at, Index n_max) {
  Index end = at;
  while (end - at < n_max && piece.is(end, kNumber)) ++end;
  return end;
}

Index match_gpt2(const Piece& piece, Index at) {
  Index end = match_contraction(piece, at, Case::kSensitive);
  if (end == at) end = match_spaced(piece, at, kLetter);
  if (end == at) end = match_spaced(piece, at, kNumber);
  if (end == at) end = match_spaced_not(piece, at, kSpace | kLetter | kNumber);
  if (end == at) end = match_space(piece, at);
  return end;
}

/// llama3, qwen2, qwen35: the same but for the numbers in a group and what counts as a letter.
Index match_llama3(const Piece& piece, Index at, Index n_numbers_max, CharClass letters) {
  Index end = match_contraction(piece, at, Case::kInsensitive);
  if (end == at) end = match_led_letters(piece, at, letters);
  if (end == at) end = match_numbers(piece, at, n_numbers_max);
  if (end == at) {
    end = match_spaced_not(piece, at, kSpace | letters | kNumber);
    if (end > at) end = piece.skip_newlines(end);
  }
  if (end == at) end = match_space_to_newline(piece, at);
  if (end == at) end = match_space(piece, at);
  return end;
}

constexpr CharClass kNotLower = kUpper | kCaseless | kMark;
constexpr CharClass kNotUpper = kLower | kCaseless | kMark;

// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
Index match_upper_then_lower(const Piece& piece, Index at) {
  Index upper_end = piece.skip(at, kNotLower);
  const Index end = piece.skip(upper_end, kNotUpper);
  if (end > upper_end) return end;
  // The first part gives back until the second has something: one that is in both sets.
  while (upper_end > at && !piece.is(upper_end - 1, kNotUpper)) --upper_end;
  return upper_end;
}

// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
Index match_upper_and_lower(const Piece& piece, Index at) {
  const Index upper_end = piece.skip(at, kNotLower);
  return upper_end > at ? piece.skip(upper_end, kNotUpper) : at;
}

/// A word cut where lower case meets upper case, with one leading [^\r\n\p{L}\p{N}].
Index match_cased_word(const Piece& piece, Index at) {
  const bool may_lead = at < piece.end && !piece.is(at, kLetter | kNumber) && !piece.is_newline(at);
  for (const auto matcher : {match_upper_then_lower, match_upper_and_lower}) {
    if (may_lead) {
      if (const Index end = matcher(piece, at + 1); end > at + 1) return end;
    }
    if (const Index end = matcher(piece, at); end > at) return end;
  }
  return at;
}

Index match_gpt4o(const Piece& piece, Index at, Index n_numbers_max, bool with_contraction) {
  Index end = match_cased_word(piece, at);
  if (end > at) {
    return with_contraction ? match_contraction(piece, end, Case::kInsensitive) : end;
  }
  end = match_numbers(piece, at, n_numbers_max);
  if (end == at) {
    end = match_spaced_not(piece, at, kSpace | kLetter | kNumber);
    if (end > at) {
      while (piece.is_newline(end) || piece.code_point(end) == '/') ++end;
    }
  }
  if (end == at) end = match_space_to_newline(piece, at);
  if (end == at) end = match_space(piece, at);
  return end;
}

bool is_ascii_letter(char32_t c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

// [ascii punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
// \s*[\r\n]+|\s+(?!\S)|\s+
Index match_deepseek3(const Piece& piece, Index at) {
  if (is_ascii_punctuation(piece.code_point(at)) && is_ascii_letter(piece.code_point(at + 1))) {
    Index end = at + 1;
    while (is_ascii_letter(piece.code_point(end))) ++end;
    return end;
  }
  Index end = at;
  if (!piece.is(at, kLetter | kPunctuation | kSymbol) && !piece.is_newline(at) &&
      piece.is(at + 1, kLetter | kMark)) {
    end = piece.skip(at + 1, kLetter | kMark);
  }
  if (end == at) end = piece.skip(at, kLetter | kMark);
  if (end == at) {
    end = match_spaced(piece, at, kPunctuation | kSymbol);
    if (end > at) end = piece.skip_newlines(end);
  }
  if (end == at) end = match_space_to_newline(piece, at);
  if (end == at) end = match_space(piece, at);
  return end;
}

// The cased letters (Lu, Ll, Lt) of the scripts that deepseek-llm's tokenizer.json lists.
constexpr auto kDeepseekLetterRanges = std::to_array<Range>(
    {{0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},
     {0xD8, 0xF6},       {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},
     {0x295, 0x2AF},     {0x370, 0x373},     {0x376, 0x377},     {0x37B, 0x37D},
     {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},     {0x38C, 0x38C},
     {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},     {0x48A, 0x52F},
     {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},
     {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},
     {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},
     {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},
     {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
     {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},
     {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},
     {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},
     {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},   {0x2128, 0x2128},
     {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
     {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},
     {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},
     {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},
     {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},
     {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
     {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943}});
constexpr auto kDeepseekPunctRanges = std::to_array<Range>({{0x21, 0x2F},
                                                            {0x3A, 0x7E},
                                                            {0x2018, 0x201F},
                                                            {0x3000, 0x3002},
                                                            {0xFF01, 0xFF0F},
                                                            {0xFF1A, 0xFF5E}});
constexpr auto kDeepseekCjkRanges = std::to_array<Range>({{0x800, 0x9FA5}, {0xAC00, 0xD7FF}});
constexpr auto kDeepseek3CjkRanges = std::to_array<Range>({{0x3040, 0x30FF}, {0x4E00, 0x9FA5}});

template <class Ranges>
bool in_ranges(const Ranges& ranges, char32_t code_point) {
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                   [](char32_t c, const Range& range) { return c < range.first; });
  return it != ranges.begin() && code_point <= std::prev(it)->second;
}

template <class Ranges>
Index match_ranges(const Piece& piece, Index at, const Ranges& ranges) {
  while (at < piece.end && in_ranges(ranges, piece.code_point(at))) ++at;
  return at;
}

// \s?[ranges]+
template <class Ranges>
Index match_spaced_ranges(const Piece& piece, Index at, const Ranges& ranges) {
  if (piece.is(at, kSpace)) {
    // White space may itself be in the set (U+3000), so the optional part may also give way.
    const Index end = match_ranges(piece, at + 1, ranges);
    if (end > at + 1) return end;
  }
  return match_ranges(piece, at, ranges);
}

// \s?classes+
Index match_any_spaced(const Piece& piece, Index at, CharClass classes) {
  const Index begin = at + (piece.is(at, kSpace) ? 1 : 0);
  const Index end = piece.skip(begin, classes);
  return end > begin ? end : at;
}

// [\p{P}$+<=>^~|]+ and, for falcon, `
Index match_symbols(const Piece& piece, Index at, std::u32string_view symbols) {
  while (at < piece.end && (piece.is(at, kPunctuation) ||
                            symbols.find(piece.code_point(at)) != std::u32string_view::npos)) {
    ++at;
  }
  return at;
}

Index match_three_digits(const Piece& piece, Index at) {
  for (Index i = at; i < at + 3; ++i) {
    if (piece.code_point(i) < '0' || piece.code_point(i) > '9') return at;
  }
  return at + 3;
}

Index match(const Piece& piece, SplitRule rule, Index at) {
  switch (rule) {
    case SplitRule::kGpt2:
      return match_gpt2(piece, at);
    case SplitRule::kLlama3:
      return match_llama3(piece, at, 3, kLetter);
    case SplitRule::kQwen2:
      return match_llama3(piece, at, 1, kLetter);
    case SplitRule::kQwen35:
      return match_llama3(piece, at, 1, kLetter | kMark);
    case SplitRule::kTekken:
      return match_gpt4o(piece, at, 1, false);
    case SplitRule::kGpt4o:
      return match_gpt4o(piece, at, 3, true);
    case SplitRule::kDeepseek3:
      return match_deepseek3(piece, at);
    case SplitRule::kEachNumber:
      return match_numbers(piece, at, 1);
    case SplitRule::kThreeNumbers:
      return match_numbers(piece, at, 3);
    case SplitRule::kNumbers:
      return piece.skip(at, kNumber);
    case SplitRule::kThreeDigits:
      return match_three_digits(piece, at);
    case SplitRule::kEachNewline:
      return piece.is_newline(at) ? at + 1 : at;
    case SplitRule::kFalconSymbols:
      return match_symbols(piece, at, U"$+<=>^~|`");
    case SplitRule::kDefaultSymbols:
      return match_symbols(piece, at, U"$+<=>^~|");
    case SplitRule::kSpacedLetters:
      return match_any_spaced(piece, at, kLetter);
    case SplitRule::kSpacedPunct:
      return match_any_spaced(piece, at, kPunctuation);
    case SplitRule::kDeepseekLetters:
      return match_spaced_ranges(piece, at, kDeepseekLetterRanges);
    case SplitRule::kDeepseekPunct:
      return match_spaced_ranges(piece, at, kDeepseekPunctRanges);
    case SplitRule::kDeepseekCjk:
      return match_ranges(piece, at, kDeepseekCjkRanges);
    case SplitRule::kDeepseek3Cjk:
      return match_ranges(piece, at, kDeepseek3CjkRanges);
    case SplitRule::kTrailingSpace:
      return at;  // needs to look from the end: split_piece does it
  }
  return at;
}

}  // namespace

void split_piece(const CodePoints& text, SplitRule rule, std::uint32_t begin, std::uint32_t end,
                 std::vector<std::uint32_t>* ends) {
  const Piece piece{text, end};
  if (rule == SplitRule::kTrailingSpace) {
    Index space_begin = end;
    while (space_begin > begin && piece.is(space_begin - 1, kSpace)) --space_begin;
    if (space_begin > begin && space_begin < end) ends->push_back(space_begin);
    ends->push_back(end);
    return;
  }
  Index unmatched_begin = begin;
  for (Index at = begin; at < end;) {
    const Index match_end = match(piece, rule, at);
    if (match_end == at) {
      ++at;
      continue;
    }
    if (at > unmatched_begin) ends->push_back(at);
    ends->push_back(match_end);
    at = unmatched_begin = match_end;
  }
  if (unmatched_begin < end) ends->push_back(end);
}

}  // namespace kvasir::text
