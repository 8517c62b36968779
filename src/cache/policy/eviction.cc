#include "cache/policy/eviction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kvasir::cache {

std::string_view policy_name(EvictionPolicy policy) {
  switch (policy) {
    case EvictionPolicy::kLru:
      return "lru";
    case EvictionPolicy::kLfu:
      return "lfu";
    case EvictionPolicy::kCost:
      return "cost";
  }
  KVASIR_CHECK(!"a policy of this enum");
  return "";
}

double eviction_score(EvictionPolicy policy, const NodeStats& stats, double stretch_seconds) {
  KVASIR_CHECK(stats.bytes > 0 && stretch_seconds >= 0);
  switch (policy) {
    case EvictionPolicy::kLru:
      return stats.last_use_seconds;
    case EvictionPolicy::kLfu:
      return static_cast<double>(stats.n_uses);
    case EvictionPolicy::kCost: {
      const double worth = static_cast<double>(stats.n_uses) * stats.compute_seconds /
                           static_cast<double>(stats.bytes);
      // Never the logarithm of 0, which times 0 is no number.
      const double least = std::numeric_limits<double>::min();
      return stats.last_use_seconds + stretch_seconds * std::log(std::max(worth, least));
    }
  }
  KVASIR_CHECK(!"a policy of this enum");
  return 0;
}

EvictionRank eviction_rank(EvictionPolicy policy, const NodeStats& stats, double stretch_seconds,
                           std::uint32_t id) {
  return {.priority = stats.priority,
          .score = eviction_score(policy, stats, stretch_seconds),
          .last_use_seconds = stats.last_use_seconds,
          .id = id};
}

EvictionRank expiry_rank(const NodeStats& stats, std::uint32_t id) {
  return {.priority = 0,
          .score = stats.expiry_seconds,
          .last_use_seconds = stats.last_use_seconds,
          .id = id};
}

}  // namespace kvasir::cache
