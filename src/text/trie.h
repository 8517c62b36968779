// Longest match of a set of texts at a position: special tokens, and the word pieces of WordPiece.
//
// Thread safety: immutable after construction; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace kvasir::text {

class Trie {
 public:
  /// Texts longer than this never match: it bounds the cost of one position.
  static constexpr std::size_t kTextBytesMax = 1024;

  struct Item {
    std::string_view text;
    TokenId id = -1;
  };
  struct Match {
    TokenId id = -1;       ///< -1: no match
    std::size_t size = 0;  ///< bytes
  };

  Trie() = default;
  /// Of equal texts the first one given is kept. Empty texts are ignored. The texts need not
  /// outlive the trie. Memory: about 12 bytes for each distinct prefix.
  explicit Trie(std::span<const Item> items);

  bool empty() const { return nodes_.size() <= 1; }
  /// The longest text that `text` has at `pos`. Requires: pos < text.size().
  /// Cost: O(min(longest text, kTextBytesMax)); O(1) where no text begins with that byte.
  Match longest_match(std::string_view text, std::size_t pos) const;

 private:
  struct Node {
    std::uint32_t first_child = 0;  // children are contiguous and sorted by byte
    std::uint16_t n_children = 0;
    std::uint8_t byte = 0;
    TokenId id = -1;
  };
  std::uint32_t child(std::uint32_t node, std::uint8_t byte) const;

  std::vector<Node> nodes_;                 // [0] is the root
  std::array<std::uint32_t, 256> roots_{};  // child of the root by byte; 0: none
};

}  // namespace kvasir::text
