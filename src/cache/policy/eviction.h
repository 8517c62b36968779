// Which cached page leaves first: ranks from metadata alone.
//
// A policy sees no bytes, no tokens and no tree. Who may leave at all (a leaf without lock or pin)
// is the tree's business, and so is that what has expired leaves before anything else.
// Thread safety: pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace kvasir::cache {

inline constexpr int kMaxPriority = 100;
/// As TensorRT-LLM's KvCacheRetentionConfig.
inline constexpr int kDefaultPriority = 35;

enum class EvictionPolicy : std::uint8_t {
  kLru,   ///< the longest unused
  kLfu,   ///< the least used; of those the longest unused
  kCost,  ///< the least worth: see eviction_score
};

/// All that a policy may see of a page. Times are seconds of one clock, any origin.
struct NodeStats {
  int priority = kDefaultPriority;  ///< 0..kMaxPriority; lower leaves first
  double last_use_seconds = 0;
  std::uint64_t n_uses = 0;     ///< 1 when it is new
  double compute_seconds = 0;   ///< what computing it again would take
  std::uint64_t bytes = 0;      ///< what evicting it frees; > 0
  double inflation_at_use = 0;  ///< the tree's inflation when it was last used: see eviction_score
  double expiry_seconds = std::numeric_limits<double>::infinity();  ///< infinity: never
};

/// Orders pages of one priority: the lowest leaves first.
///
///   lru   time of last use
///   lfu   number of uses
///   cost  inflation_at_use + n_uses * compute_seconds / bytes
///
/// The cost score is the value of a byte: the seconds it saves, times the likelihood of its reuse.
/// Frequency enters as the number of uses; recency enters through the inflation, which rises to the
/// score of every page that the cost policy evicts: a page that was not used since starts from a
/// lower floor than one that is used now, so old uses fade as fast as the cache turns over. No
/// score changes while its page is untouched, hence an ordered set keeps the order. Source:
/// GreedyDual-Size-Frequency, Cherkasova 1998, HP Laboratories report HPL-98-69R1.
double eviction_score(EvictionPolicy policy, const NodeStats& stats);

/// A place in the order of eviction; the lowest leaves first. Total: no two ids are equal.
struct EvictionRank {
  int priority = 0;
  double score = 0;
  double last_use_seconds = 0;
  std::uint32_t id = 0;
  auto operator<=>(const EvictionRank&) const = default;
};

/// Lowest priority, then lowest score, then longest unused, then lowest id.
EvictionRank eviction_rank(EvictionPolicy policy, const NodeStats& stats, std::uint32_t id);

/// Earliest expiry (the score), then longest unused, then lowest id; whatever the priority.
EvictionRank expiry_rank(const NodeStats& stats, std::uint32_t id);

}  // namespace kvasir::cache
