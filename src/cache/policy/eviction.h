// Which cached page leaves first: ranks from metadata alone.
//
// A policy sees no bytes, no tokens and no tree. Who may leave at all (a leaf without lock or pin)
// is the tree's business, and so is that what has expired leaves before anything else.
// Thread safety: pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <string_view>

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
  std::uint64_t n_uses = 0;    ///< 1 when it is new
  double compute_seconds = 0;  ///< what computing it again would take
  std::uint64_t bytes = 0;     ///< what evicting it frees; > 0
  double expiry_seconds = std::numeric_limits<double>::infinity();  ///< infinity: never
};

inline constexpr EvictionPolicy kAllPolicies[] = {EvictionPolicy::kLru, EvictionPolicy::kLfu,
                                                  EvictionPolicy::kCost};
/// "lru", "lfu", "cost".
std::string_view policy_name(EvictionPolicy policy);

/// Of the mean time between two uses of a page, how much longer one stays that is worth e times as
/// much. More of it saves more computing and finds fewer pages: docs/cache-replay.md has figures.
inline constexpr double kStretch = 0.2;

/// Orders pages of one priority: the lowest leaves first.
///
///   lru   time of last use
///   lfu   number of uses
///   cost  time of last use + stretch_seconds * ln(n_uses * compute_seconds / bytes)
///
/// The logarithm's argument is what a byte is worth: the seconds that it saves, times the odds of
/// its reuse, which rise with the uses so far. If these odds fade as exp(-age / stretch_seconds),
/// this is the order of the worth that is left, at any time. So no score changes while its page is
/// untouched and stretch_seconds stays, and an ordered set keeps the order. stretch_seconds is
/// kStretch times the gap between two uses of a page, which PrefixTree measures: it does not matter
/// whether people come back after seconds or hours. 0: as lru. A page that costs nothing leaves
/// long before all else.
///
/// GreedyDual-Size-Frequency (Cherkasova 1998, HPL-98-69R1), which was here before, keeps a page in
/// proportion to its worth. With compute seconds that rise with the position it let the ends of
/// long prompts drive out what is used again.
double eviction_score(EvictionPolicy policy, const NodeStats& stats, double stretch_seconds);

/// A place in the order of eviction; the lowest leaves first. Total: no two ids are equal.
struct EvictionRank {
  int priority = 0;
  double score = 0;
  double last_use_seconds = 0;
  std::uint32_t id = 0;
  auto operator<=>(const EvictionRank&) const = default;
};

/// Lowest priority, then lowest score, then longest unused, then lowest id.
EvictionRank eviction_rank(EvictionPolicy policy, const NodeStats& stats, double stretch_seconds,
                           std::uint32_t id);

/// Earliest expiry (the score), then longest unused, then lowest id; whatever the priority.
EvictionRank expiry_rank(const NodeStats& stats, std::uint32_t id);

}  // namespace kvasir::cache
