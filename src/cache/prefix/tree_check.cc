// The invariants of tree.h, walked.
#include "cache/prefix/tree.h"

namespace kvasir::cache {

void PrefixTree::check_invariants() const {
  for (Index index = 0; index < nodes_.size(); ++index) check_node(index);
  check_roots();
  check_sums();
}

void PrefixTree::check_node(Index index) const {
  const Node& node = nodes_[index];
  KVASIR_CHECK(node.is_candidate == is_evictable(node));  // I3
  if (node.state != State::kInTree) {                     // I6
    KVASIR_CHECK(node.tokens.empty() && node.pages.empty() && node.children.empty());
    KVASIR_CHECK(node.parent == kNone && !node.is_root && !node.is_pinned && node.n_pins == 0);
    KVASIR_CHECK((node.n_locks > 0) == (node.state == State::kOut));
    return;
  }
  check_children(index);
  if (node.is_root) {
    const auto found = roots_.find(node.key);
    KVASIR_CHECK(found != roots_.end() && found->second == index);
    KVASIR_CHECK(node.parent == kNone && node.tokens.empty() && !node.children.empty());  // I2
    return;
  }
  const Node& parent = nodes_[node.parent];
  KVASIR_CHECK(parent.state == State::kInTree);
  KVASIR_CHECK(find_place(parent, node.tokens).nearest == index);
  KVASIR_CHECK(node.key == next_key(parent.key, node.tokens));  // I1
  KVASIR_CHECK(!evicted_keys_.contains(node.key));              // I5
  if (node.is_candidate) {                                      // I3
    KVASIR_CHECK(candidates_.contains(rank(index)));
    KVASIR_CHECK(expiries_.contains(expiry_rank(node.stats, index)) == (node.ttl_seconds > 0));
  }
}

void PrefixTree::check_children(Index index) const {
  const Node& node = nodes_[index];
  std::uint32_t n_pins = node.is_pinned ? 1 : 0;
  const std::vector<TokenId>* previous = nullptr;
  for (const Index child_idx : node.children) {
    const Node& child = nodes_[child_idx];
    KVASIR_CHECK(child.state == State::kInTree && child.parent == index);
    KVASIR_CHECK(previous == nullptr || *previous < child.tokens);  // I1
    previous = &child.tokens;
    n_pins += child.n_pins;
  }
  KVASIR_CHECK(node.is_root || node.n_pins == n_pins);  // I4
}

void PrefixTree::check_roots() const {
  for (const auto& [key, index] : roots_) {
    KVASIR_CHECK(index < nodes_.size() && nodes_[index].is_root && nodes_[index].key == key);
  }
}

void PrefixTree::check_sums() const {
  std::uint64_t n_nodes = 0, n_free = 0, bytes = 0, pinned_bytes = 0;
  std::size_t n_candidates = 0, n_expiries = 0;
  for (const Node& node : nodes_) {
    n_free += node.state == State::kFree ? 1 : 0;
    if (node.state != State::kInTree || node.is_root) continue;
    ++n_nodes;
    bytes += node.stats.bytes;
    pinned_bytes += node.n_pins > 0 ? node.stats.bytes : 0;
    n_candidates += node.is_candidate ? 1 : 0;
    n_expiries += node.is_candidate && node.ttl_seconds > 0 ? 1 : 0;
  }
  KVASIR_CHECK(n_nodes == n_nodes_ && bytes == bytes_ && pinned_bytes == pinned_bytes_);  // I4
  KVASIR_CHECK(pinned_bytes_ <= options_.pin_budget_bytes);
  KVASIR_CHECK(n_candidates == candidates_.size() && n_expiries == expiries_.size());  // I3
  KVASIR_CHECK(n_free == free_slots_.size());
  for (const Index index : free_slots_) KVASIR_CHECK(nodes_[index].state == State::kFree);
  KVASIR_CHECK(evicted_keys_.size() <= options_.n_evicted_keys);
}

}  // namespace kvasir::cache
