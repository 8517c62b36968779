// The answer of the prefix tree to a prompt: what is there, and where and why it ended.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace kvasir::cache {

/// Names a node of one prefix tree. A name that outlived its node is caught, never another node.
struct NodeId {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t index = kNone;
  std::uint32_t generation = 0;  ///< how many nodes had this index before

  bool is_none() const { return index == kNone; }
  bool operator==(const NodeId&) const = default;
};

/// Why a prompt is reused no further. "Tree" marks what the prefix tree finds by itself; the others
/// are for those who ask it: a miss under this scope, a page that a lower tier did not bring.
enum class MatchEnd : std::uint8_t {
  kEndOfCache,               ///< tree: no longer history has been cached
  kFirstDifference,          ///< tree: the cached history goes on with another token
  kEvicted,                  ///< tree: the next page was cached, and has been evicted
  kOtherModel,               ///< cached by another model, tokenizer, rope or adapter
  kOtherCodec,               ///< cached in another codec or geometry
  kNamespace,                ///< cached under another salt
  kLastToken,                ///< tree: all is reused that may be; the last token must be computed
  kLoadSlowerThanRecompute,  ///< a tier has the next page; computing it is faster
  kCorrupt,                  ///< the next page's bytes are damaged
  kTierDown,                 ///< the tier that has the next page does not answer
};

/// As logs, metrics and answers spell it: "end_of_cache", "namespace", ...
std::string_view match_end_name(MatchEnd end);

/// The longest cached prefix of a prompt.
struct Match {
  std::vector<NodeId> nodes;  ///< whole pages, first page first
  /// A page whose first `n_partial` slots are those of the prompt's next tokens: to be copied, not
  /// shared. None when n_partial is 0.
  NodeId partial;
  int n_partial = 0;  ///< 0..page_tokens - 1
  MatchEnd end = MatchEnd::kEndOfCache;
  /// The first token that is not reused = nodes.size() * page_tokens + n_partial; where `end` is.
  Position position = 0;
  /// The tokens at `position`, for kFirstDifference only: of the cached page that agrees longest
  /// (of several, the last that sorts before the prompt's, else the first after it), and the
  /// prompt's.
  TokenId cached = -1, wanted = -1;
  /// Of `position`, tokens whose pages were brought back from a tier for this prompt.
  int n_loaded = 0;
};

}  // namespace kvasir::cache
