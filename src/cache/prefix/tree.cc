// What is in the tree: match, insert, remove. Who leaves first: tree_eviction.cc.
#include "cache/prefix/tree.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvasir::cache {

namespace {

/// Of the first tokens how many are equal; the first `n` are known to be.
std::size_t equal_run(std::span<const TokenId> a, std::span<const TokenId> b, std::size_t n) {
  const std::size_t limit = std::min(a.size(), b.size());
  while (n < limit && a[n] == b[n]) ++n;
  return n;
}

}  // namespace

PrefixTree::PrefixTree(const Options& options)
    : options_(options), evicted_keys_(options.n_evicted_keys) {
  KVASIR_CHECK(options.page_tokens > 0);
}

const PrefixTree::Node& PrefixTree::checked(NodeId id) const {
  KVASIR_CHECK(id.index < nodes_.size());
  const Node& node = nodes_[id.index];
  KVASIR_CHECK(node.generation == id.generation);
  KVASIR_CHECK(node.state != State::kFree && !node.is_root);
  return node;
}

const PrefixTree::Node& PrefixTree::in_tree(NodeId id) const {
  const Node& node = checked(id);
  KVASIR_CHECK(node.state == State::kInTree);
  return node;
}

bool PrefixTree::is_in_tree(NodeId node) const { return checked(node).state == State::kInTree; }

// A binary search that remembers how far the neighbours on both sides agree: whatever lies between
// them agrees at least as far as the worse of them, and in the end the better of them is the
// longest.
PrefixTree::Place PrefixTree::find_place(const Node& parent,
                                         std::span<const TokenId> tokens) const {
  const std::vector<Index>& children = parent.children;
  std::size_t low = 0, high = children.size();  // children[low - 1] < tokens <= children[high]
  std::size_t n_low = 0, n_high = 0;            // tokens that those two agree
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    const std::vector<TokenId>& other = nodes_[children[middle]].tokens;
    const std::size_t n = equal_run(other, tokens, std::min(n_low, n_high));
    if (n == tokens.size() || tokens[n] < other[n]) {
      high = middle;
      n_high = n;
    } else {
      low = middle + 1;
      n_low = n;
    }
  }
  if (low > 0 && n_low >= n_high) {
    return {.child_idx = low, .nearest = children[low - 1], .n_equal = n_low};
  }
  const Index nearest = high < children.size() ? children[high] : kNone;
  return {.child_idx = low, .nearest = nearest, .n_equal = n_high};
}

Match PrefixTree::match(const PageKey& root, std::span<const TokenId> tokens) const {
  const auto page_tokens = static_cast<std::size_t>(options_.page_tokens);
  const auto reusable = tokens.first(tokens.empty() ? 0 : tokens.size() - 1);
  Match match;
  std::size_t position = 0;
  PageKey key = root;
  Place place;
  const auto found = roots_.find(root);
  for (Index at = found == roots_.end() ? kNone : found->second; at != kNone;) {
    const std::size_t n = std::min(page_tokens, reusable.size() - position);
    place = find_place(nodes_[at], reusable.subspan(position, n));
    if (place.n_equal < page_tokens) break;
    at = place.nearest;
    key = nodes_[at].key;
    match.nodes.push_back(id_of(at));
    position += page_tokens;
  }
  const auto rest = tokens.subspan(position);  // what the next page would hold
  if (place.n_equal > 0) match.partial = id_of(place.nearest);
  match.n_partial = static_cast<int>(place.n_equal);
  position += place.n_equal;
  match.position = static_cast<Position>(position);
  if (position == reusable.size()) {
    match.end = MatchEnd::kLastToken;
  } else if (evicted_keys_.size() > 0 && rest.size() >= page_tokens &&
             evicted_keys_.contains(next_key(key, rest.first(page_tokens)))) {
    match.end = MatchEnd::kEvicted;
  } else if (place.nearest != kNone) {
    match.end = MatchEnd::kFirstDifference;
    match.cached = nodes_[place.nearest].tokens[place.n_equal];
    match.wanted = tokens[position];
  }
  return match;
}

PrefixTree::Insert PrefixTree::insert(const PageKey& root, const SealedPage& page,
                                      double now_seconds) {
  const auto [entry, is_new_root] = roots_.try_emplace(root, kNone);
  if (is_new_root) {
    const Index index = take_slot();
    nodes_[index].key = root;
    nodes_[index].is_root = true;
    nodes_[index].state = State::kInTree;
    entry->second = index;
  }
  return insert_after(entry->second, page, now_seconds);
}

PrefixTree::Insert PrefixTree::insert(NodeId parent, const SealedPage& page, double now_seconds) {
  if (!is_in_tree(parent)) return {};
  return insert_after(parent.index, page, now_seconds);
}

PrefixTree::Insert PrefixTree::insert_after(Index parent, const SealedPage& page,
                                            double now_seconds) {
  KVASIR_CHECK(page.tokens.size() == static_cast<std::size_t>(options_.page_tokens));
  KVASIR_CHECK(page.bytes > 0 && page.compute_seconds >= 0 && std::isfinite(page.compute_seconds));
  const Place place = find_place(nodes_[parent], page.tokens);
  if (place.n_equal < page.tokens.size()) {
    const Index index = add_node(parent, place.child_idx, page, now_seconds);
    return {.node = id_of(index), .is_new = true};
  }
  Node& old = nodes_[place.nearest];
  const bool is_endless = old.ttl_seconds == 0 || page.retention.ttl_seconds == 0;
  const Retention longer = {
      .priority = std::max(old.stats.priority, page.retention.priority),
      .ttl_seconds = is_endless ? 0 : std::max(old.ttl_seconds, page.retention.ttl_seconds)};
  unlist(place.nearest);
  retain(old, longer);
  use(old, now_seconds);
  list(place.nearest);
  return {.node = id_of(place.nearest), .is_new = false};
}

PrefixTree::Index PrefixTree::add_node(Index parent, std::size_t child_idx, const SealedPage& page,
                                       double now_seconds) {
  const Index index = take_slot();  // may move the nodes
  Node& node = nodes_[index];
  node.key = next_key(nodes_[parent].key, page.tokens);
  node.tokens.assign(page.tokens.begin(), page.tokens.end());
  node.pages.assign(page.pages.begin(), page.pages.end());
  node.parent = parent;
  node.state = State::kInTree;
  node.stats.last_use_seconds = now_seconds;
  node.stats.compute_seconds = page.compute_seconds;
  node.stats.bytes = page.bytes;
  retain(node, page.retention);
  use(node, now_seconds);
  unlist(parent);  // no leaf any more
  std::vector<Index>& siblings = nodes_[parent].children;
  siblings.insert(siblings.begin() + static_cast<std::ptrdiff_t>(child_idx), index);
  if (const auto last_use_seconds = evicted_keys_.forget(node.key)) {
    note_gap(now_seconds - *last_use_seconds);
  }
  ++n_nodes_;
  bytes_ += page.bytes;
  list(index);
  return index;
}

PrefixTree::Index PrefixTree::take_slot() {
  if (!free_slots_.empty()) {
    const Index index = free_slots_.back();
    free_slots_.pop_back();
    return index;
  }
  KVASIR_CHECK(nodes_.size() < kNone);
  nodes_.emplace_back();
  return static_cast<Index>(nodes_.size() - 1);
}

void PrefixTree::free_slot(Index index) {
  const std::uint32_t generation = nodes_[index].generation + 1;
  nodes_[index] = Node{};
  nodes_[index].generation = generation;
  free_slots_.push_back(index);
}

Evicted PrefixTree::remove_leaf(Index index) {
  Node& node = nodes_[index];
  KVASIR_CHECK(node.state == State::kInTree && !node.is_root && node.children.empty());
  unlist(index);
  if (node.is_pinned) release_pin(index);
  const Index parent = node.parent;
  Node& parent_node = nodes_[parent];
  const Place place = find_place(parent_node, node.tokens);
  KVASIR_CHECK(place.nearest == index);
  parent_node.children.erase(parent_node.children.begin() +
                             static_cast<std::ptrdiff_t>(place.child_idx));
  --n_nodes_;
  bytes_ -= node.stats.bytes;
  Evicted removed{.key = node.key,
                  .previous = parent_node.key,
                  .tokens = std::move(node.tokens),
                  .pages = std::move(node.pages),
                  .stats = node.stats};
  if (node.n_locks == 0) {
    free_slot(index);
  } else {
    node.tokens.clear();  // a moved-from vector may hold anything
    node.pages.clear();
    node.parent = kNone;
    node.state = State::kOut;
  }
  if (!parent_node.is_root) {
    list(parent);
  } else if (parent_node.children.empty()) {
    remove_root(parent);
  }
  return removed;
}

void PrefixTree::remove_root(Index root) {
  roots_.erase(nodes_[root].key);
  free_slot(root);
}

void PrefixTree::remove_subtree(Index top, std::vector<Evicted>& removed) {
  // Parents before children and low siblings before high ones; backwards, every node is a leaf when
  // its turn comes, and the last of its parent's children.
  std::vector<Index> order, open = {top};
  while (!open.empty()) {
    const Index index = open.back();
    open.pop_back();
    order.push_back(index);
    const std::vector<Index>& children = nodes_[index].children;
    open.insert(open.end(), children.rbegin(), children.rend());
  }
  while (!order.empty()) {
    removed.push_back(remove_leaf(order.back()));
    order.pop_back();
  }
}

std::vector<Evicted> PrefixTree::erase_subtree(NodeId node) {
  std::vector<Evicted> removed;
  if (is_in_tree(node)) remove_subtree(node.index, removed);
  return removed;
}

std::vector<Evicted> PrefixTree::clear() {
  std::vector<Evicted> removed;
  removed.reserve(n_nodes_);
  for (Index index = 0; index < nodes_.size(); ++index) {
    if (nodes_[index].state != State::kInTree || !nodes_[index].is_root) continue;
    // Roots by index, so that the order is the same everywhere; a copy, since the last child takes
    // the root with it.
    std::vector<Index> children = nodes_[index].children;
    for (; !children.empty(); children.pop_back()) remove_subtree(children.back(), removed);
  }
  evicted_keys_.clear();
  return removed;
}

PrefixTree::Counts PrefixTree::counts() const {
  return {.n_nodes = n_nodes_,
          .n_roots = roots_.size(),
          .n_candidates = candidates_.size(),
          .n_evicted_keys = evicted_keys_.size(),
          .bytes = bytes_,
          .pinned_bytes = pinned_bytes_,
          .n_hits = n_hits_,
          .n_evicted = n_evicted_,
          .n_expired = n_expired_};
}

}  // namespace kvasir::cache
