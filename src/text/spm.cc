#include "text/spm.h"

#include <algorithm>
#include <bit>

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

/// A character of an SPM text: a code point, or a byte that is part of none.
struct Character {
  std::int32_t code = 0;  // bytes lie beyond the code points
  std::uint32_t size = 1;
};

Character character_at(std::string_view text, std::size_t pos) {
  const Decoded decoded = decode_utf8(text, pos);
  if (decoded.status == Utf8Status::kValid) {
    return {static_cast<std::int32_t>(decoded.code_point), decoded.size};
  }
  return {0x110000 + static_cast<std::uint8_t>(text[pos]), 1};
}

}  // namespace

SpmEncoder::SpmEncoder(const Vocabulary& vocabulary, SpacePrefix space_prefix)
    : vocabulary_(vocabulary), space_prefix_(space_prefix) {
  ranks_.reserve(static_cast<std::size_t>(vocabulary.size()));
  std::vector<std::uint64_t> pairs;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    ranks_.push_back(rank_of_score(vocabulary.score(id)));
    const std::string_view text = vocabulary.text(id);
    std::int32_t previous = -1;
    for (std::size_t pos = 0; pos < text.size();) {
      const Character character = character_at(text, pos);
      pos += character.size;
      if (previous >= 0) {
        pairs.push_back(std::uint64_t{static_cast<std::uint32_t>(previous)} << 32 |
                        static_cast<std::uint32_t>(character.code));
      }
      previous = character.code;
    }
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  std::vector<MergeTable::Item> items;
  items.reserve(pairs.size());
  for (const std::uint64_t pair : pairs) {
    items.push_back(
        {static_cast<std::int32_t>(pair >> 32), static_cast<std::int32_t>(pair), {0, 0}});
  }
  neighbours_ = MergeTable(items);
}

std::string SpmEncoder::escaped(std::string_view text) const {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  if (space_prefix_ == SpacePrefix::kYes) out.append(kEscapedSpace);
  for (const char c : text) {
    if (c == ' ') {
      out.append(kEscapedSpace);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

void SpmEncoder::encode(std::string_view text, std::vector<TokenId>* out) const {
  const std::string owned = escaped(text);
  const std::string_view all = owned;
  MergeQueue queue;
  std::vector<Symbol> symbols;
  const auto merge = [&] {
    queue.run(&symbols, [&](const Symbol& left, const Symbol& right) {
      const TokenId id = vocabulary_.find(all.substr(left.begin, left.size + right.size));
      return id < 0 ? Merge{} : Merge{ranks_[static_cast<std::size_t>(id)], id};
    });
    append_ids(all, symbols, out);
    symbols.clear();
  };
  std::int32_t previous = -1;
  for (std::size_t pos = 0; pos < all.size();) {
    const Character character = character_at(all, pos);
    if (neighbours_.find(previous, character.code).rank == Merge::kNever) merge();
    symbols.push_back({static_cast<std::uint32_t>(pos), character.size,
                       vocabulary_.find(all.substr(pos, character.size))});
    previous = character.code;
    pos += character.size;
  }
  merge();
}

void SpmEncoder::append_ids(std::string_view text, const std::vector<Symbol>& symbols,
                            std::vector<TokenId>* out) const {
  for (const Symbol& symbol : symbols) {
    if (symbol.size == 0) continue;
    if (symbol.id >= 0) {
      out->push_back(symbol.id);
      continue;
    }
    // A character without a token of its own: its bytes, or else one unknown token.
    for (std::uint32_t i = 0; i < symbol.size; ++i) {
      const TokenId byte =
          vocabulary_.byte_token(static_cast<std::uint8_t>(text[symbol.begin + i]));
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
