#include "cache/policy/eviction.h"

#include "base/check.h"

namespace kvasir::cache {

double eviction_score(EvictionPolicy policy, const NodeStats& stats) {
  KVASIR_CHECK(stats.bytes > 0);
  switch (policy) {
    case EvictionPolicy::kLru:
      return stats.last_use_seconds;
    case EvictionPolicy::kLfu:
      return static_cast<double>(stats.n_uses);
    case EvictionPolicy::kCost:
      return stats.inflation_at_use + static_cast<double>(stats.n_uses) * stats.compute_seconds /
                                          static_cast<double>(stats.bytes);
  }
  KVASIR_CHECK(!"a policy of this enum");
  return 0;
}

EvictionRank eviction_rank(EvictionPolicy policy, const NodeStats& stats, std::uint32_t id) {
  return {.priority = stats.priority,
          .score = eviction_score(policy, stats),
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
