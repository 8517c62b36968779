#include "text/spm.h"

#include <bit>

#include "text/merge_queue.h"
#include "text/unicode.h"

namespace kvasir::text {
namespace {

constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";  // U+2581

/// Orders like the score, highest first. Requires: not NaN.
std::uint32_t rank_of_score(float score) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(score + 0.0f);  // -0 becomes 0
  const std::uint32_t ascending = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

}  // namespace

SpmEncoder::SpmEncoder(const Vocabulary& vocabulary, SpacePrefix space_prefix)
    : vocabulary_(vocabulary), space_prefix_(space_prefix) {
  ranks_.reserve(static_cast<std::size_t>(vocabulary.size()));
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    ranks_.push_back(rank_of_score(vocabulary.score(id)));
  }
}

void SpmEncoder::encode(std::string_view text, std::vector<TokenId>* out) const {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 2);
  if (space_prefix_ == SpacePrefix::kYes) escaped.append(kEscapedSpace);
  for (const char c : text) {
    if (c == ' ') {
      escaped.append(kEscapedSpace);
    } else {
      escaped.push_back(c);
    }
  }
  const std::string_view all = escaped;
  std::vector<Symbol> symbols;
  symbols.reserve(all.size());
  for (std::size_t pos = 0; pos < all.size();) {
    const Decoded decoded = decode_utf8(all, pos);
    const std::size_t size = decoded.status == Utf8Status::kValid ? decoded.size : 1;
    symbols.push_back({.begin = static_cast<std::uint32_t>(pos),
                       .size = static_cast<std::uint32_t>(size),
                       .id = vocabulary_.find(all.substr(pos, size))});
    pos += size;
  }
  MergeQueue queue;
  queue.run(&symbols, [&](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
    const TokenId id = vocabulary_.find(all.substr(left.begin, left.size + right.size));
    if (id < 0) return std::nullopt;
    return Merge{ranks_[static_cast<std::size_t>(id)], id};
  });
  for (const Symbol& symbol : symbols) {
    if (symbol.size == 0) continue;
    if (symbol.id >= 0) {
      out->push_back(symbol.id);
      continue;
    }
    // A character without a token of its own: its bytes, or else one unknown token.
    for (std::uint32_t i = 0; i < symbol.size; ++i) {
      const TokenId byte = vocabulary_.byte_token(static_cast<std::uint8_t>(all[symbol.begin + i]));
      if (byte >= 0) {
        out->push_back(byte);
      } else if (vocabulary_.unknown()) {
        out->push_back(*vocabulary_.unknown());
        break;
      }
    }
  }
}

std::string SpmEncoder::piece(TokenId token) const {
  return unescape_spaces(vocabulary_.text(token));
}

std::string unescape_spaces(std::string_view text) {
  std::string out;
  for (std::size_t pos = 0; pos < text.size();) {
    const bool space = text.substr(pos, kEscapedSpace.size()) == kEscapedSpace;
    out.push_back(space ? ' ' : text[pos]);
    pos += space ? kEscapedSpace.size() : 1;
  }
  return out;
}

}  // namespace kvasir::text
