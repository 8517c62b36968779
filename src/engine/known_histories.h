// Token histories whose K and V may still be cached, in memory or on the disk: where the runs of a
// prompt are looked for that stand at other positions than before.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "cache/prefix/page_key.h"
#include "cache/tier/disk_tier.h"

namespace kvasir::engine {

/// The newest ones, newest last. Advice: whether a history's pages are there, the cache knows.
class KnownHistories {
 public:
  static constexpr std::size_t kMost = 32;

  /// Replaces histories that `tokens` begins with; passes over one that begins another.
  void note(std::span<const TokenId> tokens);

  /// Notes the histories that the pages of `root` make up which `disk` knows of: those used last,
  /// at most kMost. Does not look at the disk.
  void note_disk(const cache::DiskTier& disk, const cache::PageKey& root);

  const std::vector<std::vector<TokenId>>& all() const { return histories_; }

 private:
  std::vector<std::vector<TokenId>> histories_;
};

/// Tokens [begin, end) of a prompt, which are those of a history from `history_begin` on.
struct TokenRun {
  int begin = 0, end = 0;
  std::size_t history_idx = 0;
  int history_begin = 0;
  int n_tokens() const { return end - begin; }
  int shift() const { return begin - history_begin; }
};

/// Runs of at least `min_tokens` tokens of the prompt from `first` on, ascending and disjoint: from
/// each place the longest that any history has, of equal ones that of the first history. Shorter
/// runs may be overlooked, and of a text that repeats itself all but some copies.
/// Requires: min_tokens >= 2. Cost: O(tokens of the histories + tokens of the prompt x min_tokens).
std::vector<TokenRun> find_token_runs(std::span<const TokenId> prompt, int first,
                                      std::span<const std::span<const TokenId>> histories,
                                      int min_tokens);

}  // namespace kvasir::engine
