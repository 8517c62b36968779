#include "text/trie.h"

#include <algorithm>

namespace kvasir::text {
namespace {

/// Items `[begin, end)` of the sorted list share the `depth` bytes that lead to `node`.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t depth = 0;
  std::uint32_t node = 0;
};

}  // namespace

Trie::Trie(std::span<const Item> items) {
  std::vector<Item> sorted;
  for (const Item& item : items) {
    if (!item.text.empty() && item.text.size() <= kTextBytesMax) sorted.push_back(item);
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Item& a, const Item& b) { return a.text < b.text; });
  nodes_.emplace_back();
  std::vector<Range> queue{{0, sorted.size(), 0, 0}};
  for (std::size_t at = 0; at < queue.size(); ++at) {  // breadth first: siblings lie together
    Range range = queue[at];
    // Those that end here sort first; the first of them was given first.
    if (range.begin < range.end && sorted[range.begin].text.size() == range.depth) {
      nodes_[range.node].id = sorted[range.begin].id;
      while (range.begin < range.end && sorted[range.begin].text.size() == range.depth) {
        ++range.begin;
      }
    }
    nodes_[range.node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (range.begin < range.end) {
      const char byte = sorted[range.begin].text[range.depth];
      std::size_t end = range.begin;
      while (end < range.end && sorted[end].text[range.depth] == byte) ++end;
      queue.push_back(
          {range.begin, end, range.depth + 1, static_cast<std::uint32_t>(nodes_.size())});
      nodes_.push_back({.byte = static_cast<std::uint8_t>(byte)});
      ++nodes_[range.node].n_children;
      range.begin = end;
    }
  }
  const Node& root = nodes_[0];
  for (std::uint32_t i = 0; i < root.n_children; ++i) {
    roots_[nodes_[root.first_child + i].byte] = root.first_child + i;
  }
}

std::uint32_t Trie::child(std::uint32_t node, std::uint8_t byte) const {
  const Node& parent = nodes_[node];
  const auto first = nodes_.begin() + parent.first_child;
  const auto last = first + parent.n_children;
  const auto it = std::lower_bound(
      first, last, byte, [](const Node& n, std::uint8_t wanted) { return n.byte < wanted; });
  if (it == last || it->byte != byte) return 0;
  return static_cast<std::uint32_t>(it - nodes_.begin());
}

Trie::Match Trie::longest_match(std::string_view text, std::size_t pos) const {
  Match best;
  if (nodes_.empty()) return best;
  std::uint32_t node = roots_[static_cast<std::uint8_t>(text[pos])];
  for (std::size_t size = 1; node != 0; ++size) {
    if (nodes_[node].id >= 0) best = {nodes_[node].id, size};
    if (pos + size >= text.size()) break;
    node = child(node, static_cast<std::uint8_t>(text[pos + size]));
  }
  return best;
}

}  // namespace kvasir::text
