#include "text/word_piece.h"

#include <utf8proc.h>

#include <array>

#include "text/spm.h"
#include "text/unicode.h"

namespace kvasir::text {
namespace {

constexpr std::string_view kWordBegin = "\xE2\x96\x81";  // U+2581

/// Blocks of ideographs, each of which is a word of its own.
bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/// Whether the code point is a word by itself: punctuation, ASCII symbols, ideographs.
bool stands_alone(char32_t code_point, CharClass char_class) {
  return (char_class & kPunctuation) != 0 || (code_point < 0x80 && (char_class & kSymbol) != 0) ||
         is_ideograph(code_point);
}

/// Canonical decomposition (NFD) of one code point; at most four code points in Unicode 15.
class Decomposition {
 public:
  explicit Decomposition(char32_t code_point) {
    int boundary = 0;
    const auto n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), code_points_.data(),
                                code_points_.size(), UTF8PROC_DECOMPOSE, &boundary);
    if (n >= 1 && static_cast<std::size_t>(n) <= code_points_.size()) {
      size_ = static_cast<std::size_t>(n);
    } else {
      code_points_[0] = static_cast<utf8proc_int32_t>(code_point);
      size_ = 1;
    }
  }
  const utf8proc_int32_t* begin() const { return code_points_.data(); }
  const utf8proc_int32_t* end() const { return code_points_.data() + size_; }

 private:
  std::array<utf8proc_int32_t, 16> code_points_{};
  std::size_t size_ = 0;
};

}  // namespace

WordPieceEncoder::WordPieceEncoder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
  std::vector<Trie::Item> items;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.text(id);
    if (vocabulary.find(text) == id) items.push_back({text, id});
  }
  pieces_ = Trie(items);
}

void WordPieceEncoder::encode(std::string_view text, std::vector<TokenId>* out) const {
  std::string word(kWordBegin);
  const auto end_word = [&] {
    if (word.size() > kWordBegin.size()) encode_word(word, out);
    word.assign(kWordBegin);
  };
  for (std::size_t pos = 0; pos < text.size();) {
    const Decoded decoded = decode_utf8(text, pos);
    pos += decoded.size;
    if (decoded.status != Utf8Status::kValid) continue;
    for (const utf8proc_int32_t part : Decomposition(decoded.code_point)) {
      const auto code_point = static_cast<char32_t>(part);
      const CharClass char_class = text::char_class(code_point);
      if ((char_class & kSpace) != 0) {
        end_word();
        continue;
      }
      const bool is_dropped =
          code_point == 0 || code_point == kReplacement || (char_class & (kControl | kMark)) != 0;
      if (is_dropped) continue;
      const bool alone = stands_alone(code_point, char_class);
      if (alone) end_word();
      append_utf8(&word, static_cast<char32_t>(utf8proc_tolower(part)));
      if (alone) end_word();
    }
  }
  end_word();
}

void WordPieceEncoder::encode_word(std::string_view word, std::vector<TokenId>* out) const {
  const std::size_t n_before = out->size();
  for (std::size_t pos = 0; pos < word.size();) {
    const Trie::Match match = pieces_.longest_match(word, pos);
    if (match.id < 0) {
      // One piece without a token makes the whole word unknown.
      out->resize(n_before);
      if (vocabulary_.unknown()) out->push_back(*vocabulary_.unknown());
      return;
    }
    out->push_back(match.id);
    pos += match.size;
  }
}

std::string WordPieceEncoder::piece(TokenId token) const {
  return unescape_spaces(vocabulary_.text(token));
}

}  // namespace kvasir::text
