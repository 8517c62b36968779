// What many sequences with one beginning take, to the byte, in the shape of a real model.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cache/cache.h"

namespace kvasir::cache {
namespace {

// SmolLM2-135M: 30 layers of 3 K/V heads, 64 wide, as f16.
constexpr int kLayers = 30, kHeads = 3, kDim = 64;
constexpr std::uint64_t kTokenBytes = std::uint64_t{2} * kLayers * kHeads * kDim * 2;
constexpr int kSequences = 128, kSharedTokens = 1024, kOwnTokens = 32;

CacheOptions smol(int page_tokens) {
  CacheOptions options;
  options.groups = {{.layers = std::vector<int>(kLayers), .n_kv_heads = kHeads, .head_dim = kDim}};
  std::iota(options.groups[0].layers.begin(), options.groups[0].layers.end(), 0);
  options.page_tokens = page_tokens;
  options.prefix_bytes = std::uint64_t{1} << 40;
  return options;
}

/// The beginning that all share, then tokens of `sequence_idx`'s own.
std::vector<TokenId> tokens_of(int sequence_idx) {
  std::vector<TokenId> tokens(kSharedTokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (int i = 0; i < kOwnTokens; ++i) tokens.push_back(10'000 + kOwnTokens * sequence_idx + i);
  return tokens;
}

/// A sequence of these tokens over whatever earlier ones have left. K and V are not written: their
/// values are of no matter here, and pages that nobody touches take no memory.
Sequence add_sequence(KvCache& cache, const std::vector<TokenId>& tokens) {
  Match match;
  Sequence sequence = cache.open(PageKey(), tokens, match);
  EXPECT_TRUE(sequence.append(static_cast<int>(tokens.size()) - match.position));
  sequence.publish(PageKey(), tokens, 1e-3);
  return sequence;
}

struct Row {
  int page_tokens;
  std::uint64_t n_pages;  ///< shared ones, and those of each sequence alone
  double share_max;       ///< of what the sequences would take without sharing
};

TEST(SharedBytes, Of128SequencesWithOneBeginning) {
  const Row rows[] = {
      {16, 64 + 2 * kSequences, 0.06},
      {CacheOptions().page_tokens, 32 + 1 * kSequences, 0.06},
      // Half of each sequence's own page is empty: 6.6 %.
      {64, 16 + 1 * kSequences, 0.07},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.page_tokens);
    ByteBudget alone_budget;
    const auto alone = KvCache::create(smol(row.page_tokens), alone_budget).value();
    std::uint64_t unshared = 0;
    {
      const Sequence sequence = add_sequence(*alone, tokens_of(0));
      unshared = kSequences * alone->memory_summary().used;
    }

    ByteBudget budget;
    const auto cache = KvCache::create(smol(row.page_tokens), budget).value();
    std::vector<Sequence> sequences;
    for (int i = 0; i < kSequences; ++i) sequences.push_back(add_sequence(*cache, tokens_of(i)));
    const MemorySummary memory = cache->memory_summary();
    const std::uint64_t frame = kTokenBytes * static_cast<std::uint64_t>(row.page_tokens);
    EXPECT_EQ(memory.n_sequences, static_cast<std::uint64_t>(kSequences));
    EXPECT_EQ(memory.used, row.n_pages * frame);
    EXPECT_EQ(memory.filled, kTokenBytes * (kSharedTokens + kSequences * kOwnTokens));
    EXPECT_EQ(memory.allocated, budget.reserved());
    const double share = static_cast<double>(memory.used) / static_cast<double>(unshared);
    EXPECT_LE(share, row.share_max);
    std::printf(
        "page %d: used %.1f MB (filled %.1f MB, allocated %.1f MB), unshared %.1f MB: "
        "%.2f %%\n",
        row.page_tokens, 1e-6 * static_cast<double>(memory.used),
        1e-6 * static_cast<double>(memory.filled), 1e-6 * static_cast<double>(memory.allocated),
        1e-6 * static_cast<double>(unshared), 100 * share);
    cache->check_invariants();
  }
}

}  // namespace
}  // namespace kvasir::cache
