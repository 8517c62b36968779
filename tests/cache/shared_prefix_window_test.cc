// Pages that outlive their sequence, where some layers see a window only: a page is of use as long
// as every group has what a query behind it sees.
#include <gtest/gtest.h>

#include "cache/prefix_support.h"

namespace kvasir::cache {
namespace {

using namespace testing;

/// Pages of 16 tokens in one group that sees all, and one that sees 21 tokens.
CacheOptions window_too() {
  CacheOptions options = one_group();
  options.groups[0].layers = {0};
  options.groups.push_back({.layers = {1}, .n_kv_heads = 1, .head_dim = 16, .window = 21});
  return options;
}

/// Computes `prompt` in steps of `n_step` tokens.
void run_in_steps(Cache& cache, const Tokens& prompt, int n_step) {
  Twin twin = open_twin(*cache.kv, kRoot, prompt, cache.match);
  for (int n = static_cast<int>(twin.tokens.size()); n < std::ssize(prompt);) {
    n = std::min(n + n_step, static_cast<int>(prompt.size()));
    ASSERT_TRUE(compute(twin, branch(prompt, n, 0)));
    ASSERT_TRUE(holds(cache.options, twin));
    cache.kv->check_invariants();
  }
}

TEST(SharedWindow, SmallStepsKeepEveryPage) {
  Cache cache(window_too());
  run_in_steps(cache, run_of(97), kPage);
  const MemorySummary summary = cache.kv->memory_summary();
  EXPECT_EQ(summary.groups[0].n_pages_used, 6u);
  EXPECT_EQ(summary.groups[1].n_pages_used, 6u) << "the tree keeps what the sequence let go";
  for (const int n : {15, 16, 17, 37, 38, 53, 90, 96, 97}) {
    const Match match = cache.find(branch(run_of(97), n, 20));
    EXPECT_EQ(match.position, std::min(n, 96)) << n;
  }
}

TEST(SharedWindow, AMatchIsCutToWhatIsUsable) {
  // After one step of 97 tokens the next query sees those from 77 on: page 4 begins at 64.
  Cache cache(window_too());
  run_in_steps(cache, run_of(97), 97);
  EXPECT_EQ(cache.kv->memory_summary().groups[1].n_pages_used, 2u);
  for (int n = 1; n <= 97; ++n) {
    // The query at n sees tokens from n - 20 on. Pages below 4 lack their window; without any page
    // before it, the first one's slots cannot be copied either.
    const Match match = cache.find(branch(run_of(97), n, 5));
    const int want = n >= 84 ? std::min(n, 96) : 0;
    ASSERT_EQ(match.position, want) << n;
    if (want > 0) continue;
    EXPECT_EQ(match.end, MatchEnd::kEvicted) << n;
    EXPECT_EQ(match.cached, -1);
    EXPECT_EQ(match.wanted, -1);
  }
}

/// The page to be copied lacks its window, and without its slots more of the window must be there.
TEST(SharedWindow, ACopyThatCannotBeMakesTheMatchShorter) {
  Cache cache(window_too());
  Twin twin = cache.run(run_of(70));  // keeps tokens from 50 on: page 3 is there, page 2 is not
  ASSERT_TRUE(compute(twin, run_of(176)));  // pages 4 to 8 have passed before they are published
  // At 75 a query sees from 55 on, page 3 would do. At 64 it sees page 2.
  const Match match = cache.find(branch(run_of(176), 75, 5));
  EXPECT_EQ(match.position, 0);
  EXPECT_EQ(match.end, MatchEnd::kEvicted);
  cache.kv->check_invariants();
}

/// Two groups of windows, no group that sees all: a sequence that outruns them publishes nothing.
TEST(SharedWindow, WithoutAnyPageThereIsNothingToPublish) {
  CacheOptions options = window_too();
  options.groups[0].window = 30;
  Cache cache(options);
  run_in_steps(cache, run_of(160), 160);
  EXPECT_EQ(cache.budget.reserved(), 0u);
  run_in_steps(cache, run_of(160), kPage);
  EXPECT_EQ(cache.find(run_of(160)).position, 159);
}

TEST(SharedWindow, AReusedHistoryRefusesToGoBackBelowWhatItGot) {
  Cache cache(window_too());
  run_in_steps(cache, run_of(97), kPage);
  Twin twin = open_twin(*cache.kv, kRoot, run_of(97), cache.match);
  ASSERT_EQ(cache.match.position, 96);  // sees from 76 on: pages below 4 are not taken
  EXPECT_EQ(twin.sequence.views()[1].rows.frames[3], nullptr);
  EXPECT_NE(twin.sequence.views()[1].rows.frames[4], nullptr);
  EXPECT_FALSE(twin.sequence.truncate(83));
  ASSERT_TRUE(twin.sequence.truncate(84));
  twin.tokens.resize(84);
  EXPECT_TRUE(holds(cache.options, twin));
  ASSERT_TRUE(compute(twin, branch(run_of(97), 84, 40)));
  EXPECT_TRUE(holds(cache.options, twin));
  cache.kv->check_invariants();
}

}  // namespace
}  // namespace kvasir::cache
