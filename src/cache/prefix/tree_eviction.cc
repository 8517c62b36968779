// Who stays and who leaves: use, locks, pins, and the order of the candidates.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "cache/prefix/tree.h"

namespace kvasir::cache {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::uint64_t kGapsRemembered = 16384;  ///< after which an older one fades
constexpr double kStretchDrift = 1.25;

Error left_the_tree(std::string_view what) {
  return {ErrorCode::kNotFound,
          fmt::format("prefix tree: {}: the page has been erased from the tree", what)};
}

}  // namespace

bool PrefixTree::is_evictable(const Node& node) {
  return node.state == State::kInTree && !node.is_root && node.children.empty() &&
         node.n_locks == 0 && !node.is_pinned;
}

// Every change of what a rank or is_evictable depends on stands between unlist and list.
void PrefixTree::list(Index index) {
  Node& node = nodes_[index];
  KVASIR_CHECK(!node.is_candidate);
  if (!is_evictable(node)) return;
  node.is_candidate = true;
  candidates_.insert(rank(index));
  if (node.ttl_seconds > 0) expiries_.insert(expiry_rank(node.stats, index));
}

void PrefixTree::unlist(Index index) {
  Node& node = nodes_[index];
  if (!node.is_candidate) return;
  node.is_candidate = false;
  KVASIR_CHECK(candidates_.erase(rank(index)) == 1);
  if (node.ttl_seconds > 0) {
    KVASIR_CHECK(expiries_.erase(expiry_rank(node.stats, index)) == 1);
  }
}

void PrefixTree::use(Node& node, double now_seconds) {
  KVASIR_CHECK(std::isfinite(now_seconds));
  NodeStats& stats = node.stats;
  stats.last_use_seconds = std::max(stats.last_use_seconds, now_seconds);
  ++stats.n_uses;
  stats.expiry_seconds = node.ttl_seconds > 0 ? stats.last_use_seconds + node.ttl_seconds : kNever;
}

void PrefixTree::retain(Node& node, const Retention& retention) {
  KVASIR_CHECK(retention.priority >= 0 && retention.priority <= kMaxPriority);
  KVASIR_CHECK(retention.ttl_seconds >= 0 && std::isfinite(retention.ttl_seconds));
  NodeStats& stats = node.stats;
  stats.priority = retention.priority;
  node.ttl_seconds = retention.ttl_seconds;
  stats.expiry_seconds = node.ttl_seconds > 0 ? stats.last_use_seconds + node.ttl_seconds : kNever;
}

void PrefixTree::lock(NodeId node) {
  ++checked(node).n_locks;
  unlist(node.index);
}

void PrefixTree::unlock(NodeId node) {
  Node& unlocked = checked(node);
  KVASIR_CHECK(unlocked.n_locks > 0);
  if (--unlocked.n_locks > 0) return;
  if (unlocked.state == State::kOut) {
    free_slot(node.index);
  } else {
    list(node.index);
  }
}

void PrefixTree::touch(std::span<const NodeId> nodes, double now_seconds) {
  for (const NodeId id : nodes) {
    Node& node = checked(id);
    if (node.state == State::kOut) continue;
    note_gap(now_seconds - node.stats.last_use_seconds);
    unlist(id.index);
    use(node, now_seconds);
    list(id.index);
    ++n_hits_;
  }
}

Status PrefixTree::set_retention(NodeId node, const Retention& retention) {
  if (!is_in_tree(node)) return left_the_tree("set_retention");
  unlist(node.index);
  retain(nodes_[node.index], retention);
  list(node.index);
  return {};
}

Status PrefixTree::pin(NodeId node) {
  if (!is_in_tree(node)) return left_the_tree("pin");
  if (nodes_[node.index].is_pinned) return {};
  std::uint64_t fresh_bytes = 0;
  for (Index at = node.index; !nodes_[at].is_root; at = nodes_[at].parent) {
    if (nodes_[at].n_pins == 0) fresh_bytes += nodes_[at].stats.bytes;
  }
  const std::uint64_t free_bytes = options_.pin_budget_bytes - pinned_bytes_;  // I4: no wrap
  if (fresh_bytes > free_bytes) {
    return Error{
        ErrorCode::kExhausted,
        fmt::format("prefix tree: the pin does not fit; got {} ({} B) free of {}, want {} ({} B)",
                    format_bytes(free_bytes), free_bytes, format_bytes(options_.pin_budget_bytes),
                    format_bytes(fresh_bytes), fresh_bytes)};
  }
  unlist(node.index);
  nodes_[node.index].is_pinned = true;
  for (Index at = node.index; !nodes_[at].is_root; at = nodes_[at].parent) ++nodes_[at].n_pins;
  pinned_bytes_ += fresh_bytes;
  return {};
}

void PrefixTree::unpin(NodeId node) {
  if (!checked(node).is_pinned) return;
  release_pin(node.index);
  list(node.index);
}

void PrefixTree::release_pin(Index index) {
  nodes_[index].is_pinned = false;
  for (Index at = index; !nodes_[at].is_root; at = nodes_[at].parent) {
    KVASIR_CHECK(nodes_[at].n_pins > 0);
    if (--nodes_[at].n_pins == 0) pinned_bytes_ -= nodes_[at].stats.bytes;
  }
}

void PrefixTree::note_gap(double seconds) {
  n_gaps_ = std::min(n_gaps_ + 1, kGapsRemembered);
  gap_seconds_ += (std::max(seconds, 0.0) - gap_seconds_) / static_cast<double>(n_gaps_);
}

EvictionRank PrefixTree::rank(Index index) const {
  return eviction_rank(policy_, nodes_[index].stats, stretch_seconds_, index);
}

void PrefixTree::rank_by(EvictionPolicy policy) {
  // An order by a stretch that is a little out of date is as good, and nothing need be sorted.
  const double stretch = policy == EvictionPolicy::kCost ? kStretch * gap_seconds_ : 0;
  const bool is_near =
      stretch <= kStretchDrift * stretch_seconds_ && stretch_seconds_ <= kStretchDrift * stretch;
  if (policy == policy_ && (is_near || policy != EvictionPolicy::kCost)) return;
  policy_ = policy;
  stretch_seconds_ = stretch;
  std::set<EvictionRank> ranks;
  for (const EvictionRank& old : candidates_) ranks.insert(rank(old.id));
  candidates_ = std::move(ranks);
}

std::optional<Evicted> PrefixTree::evict_one(double now_seconds, EvictionPolicy policy) {
  KVASIR_CHECK(std::isfinite(now_seconds));
  rank_by(policy);
  if (candidates_.empty()) return std::nullopt;
  const bool is_expired = !expiries_.empty() && expiries_.begin()->score <= now_seconds;
  const EvictionRank first = is_expired ? *expiries_.begin() : *candidates_.begin();
  Evicted evicted = remove_leaf(first.id);
  evicted.is_expired = is_expired;
  evicted_keys_.remember(evicted.key, evicted.stats.last_use_seconds);
  ++n_evicted_;
  if (is_expired) ++n_expired_;
  return evicted;
}

}  // namespace kvasir::cache
