#include "cache/prefix/match.h"

namespace kvasir::cache {

std::string_view match_end_name(MatchEnd end) {
  switch (end) {
    case MatchEnd::kEndOfCache:
      return "end_of_cache";
    case MatchEnd::kFirstDifference:
      return "first_difference";
    case MatchEnd::kEvicted:
      return "evicted";
    case MatchEnd::kOtherModel:
      return "other_model";
    case MatchEnd::kOtherCodec:
      return "other_codec";
    case MatchEnd::kNamespace:
      return "namespace";
    case MatchEnd::kLastToken:
      return "last_token";
    case MatchEnd::kLoadSlowerThanRecompute:
      return "load_slower_than_recompute";
    case MatchEnd::kCorrupt:
      return "corrupt";
    case MatchEnd::kTierDown:
      return "tier_down";
  }
  return "?";
}

}  // namespace kvasir::cache
