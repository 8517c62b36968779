// Pages that outlive their sequence: what a later prompt finds, what it shares and what it copies,
// and who gives way when bytes are wanted.
#include <gtest/gtest.h>

#include <string>

#include "cache/prefix_support.h"

namespace kvasir::cache {
namespace {

using namespace testing;

class FakeClock final : public Clock {
 public:
  double now_seconds() const override { return now; }
  double now = 0;
};

/// Frames of 2 MiB, an arena each, so that a budget counts pages.
constexpr std::uint64_t kLargeFrame = std::uint64_t{2} << 20;
CacheOptions large_frames() {
  CacheOptions options = one_group();
  options.groups[0] = {.layers = {0}, .n_kv_heads = 64, .head_dim = 256};
  return options;
}

TEST(SharedPrefix, PublishedPagesAreSharedAndAccountedFor) {
  Cache cache(one_group());
  const std::uint64_t token = 2 * 2 * 16 * 4, frame = kPage * token;
  Twin first = cache.run(run_of(40));
  EXPECT_EQ(cache.match.position, 0);
  MemorySummary summary = cache.kv->memory_summary();
  EXPECT_EQ(summary.used, 3 * frame);
  EXPECT_EQ(summary.cached, 0u) << "a sequence uses them";
  EXPECT_EQ(summary.filled, 40 * token);
  EXPECT_EQ(summary.shared, 2 * frame) << "full pages are the tree's too";
  const std::uint8_t* pages[] = {first.sequence.views()[0].rows.frames[0],
                                 first.sequence.views()[0].rows.frames[1]};

  first.sequence.close();
  summary = cache.kv->memory_summary();
  EXPECT_EQ(summary.n_sequences, 0u);
  EXPECT_EQ(summary.used, 2 * frame);
  EXPECT_EQ(summary.cached, 2 * frame);
  EXPECT_EQ(summary.filled, 2 * frame);
  EXPECT_EQ(summary.shared, 0u);
  EXPECT_EQ(summary.wasted, 0u);
  EXPECT_EQ(summary.allocated, cache.budget.reserved());

  Twin second = open_twin(*cache.kv, kRoot, run_of(40), cache.match);
  EXPECT_EQ(cache.match.position, 32);
  EXPECT_EQ(cache.match.nodes.size(), 2u);
  EXPECT_EQ(cache.match.end, MatchEnd::kEndOfCache);
  EXPECT_EQ(second.sequence.views()[1].rows.frames[0], pages[0]);
  EXPECT_EQ(second.sequence.views()[1].rows.frames[1], pages[1]);
  EXPECT_TRUE(holds(cache.options, second));
  summary = cache.kv->memory_summary();
  EXPECT_EQ(summary.used, 2 * frame);
  EXPECT_EQ(summary.cached, 0u);
  EXPECT_EQ(summary.shared, 2 * frame);
  cache.kv->evict_all();
  EXPECT_EQ(cache.kv->memory_summary().shared, 2 * frame) << "pages in use stay";

  second.sequence.close();
  EXPECT_TRUE(cache.kv->evict_one());
  EXPECT_EQ(cache.kv->memory_summary().cached, frame);
  cache.kv->evict_all();
  EXPECT_FALSE(cache.kv->evict_one());
  EXPECT_EQ(cache.kv->memory_summary().allocated, 0u);
  EXPECT_EQ(cache.budget.reserved(), 0u);
}

TEST(SharedPrefix, AMatchSaysWhereAndWhyItEnds) {
  Cache cache(one_group());
  cache.visit(run_of(40));
  struct Row {
    Tokens prompt;
    int position;
    MatchEnd end;
    TokenId cached = -1, wanted = -1;
  };
  const Row rows[] = {
      {run_of(40), 32, MatchEnd::kEndOfCache},
      {run_of(33), 32, MatchEnd::kLastToken},
      {run_of(32), 31, MatchEnd::kLastToken},
      {run_of(17), 16, MatchEnd::kLastToken},
      {run_of(16), 15, MatchEnd::kLastToken},
      {run_of(1), 0, MatchEnd::kLastToken},
      {branch(run_of(40), 20, 9), 20, MatchEnd::kFirstDifference, 20, 5000},
      {branch(run_of(40), 16, 9), 16, MatchEnd::kFirstDifference, 16, 5000},
      {branch(run_of(40), 0, 9), 0, MatchEnd::kFirstDifference, 0, 5000},
      {branch(run_of(40), 32, 9), 32, MatchEnd::kEndOfCache},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(std::to_string(row.prompt.size()) + " to " + std::to_string(row.position));
    const Match match = cache.find(row.prompt);
    EXPECT_EQ(match.position, row.position);
    EXPECT_EQ(match.end, row.end);
    EXPECT_EQ(match.cached, row.cached);
    EXPECT_EQ(match.wanted, row.wanted);
    EXPECT_EQ(match.n_partial, row.position % kPage);
  }
  const Twin other = open_twin(*cache.kv, root_of("other salt"), run_of(40), cache.match);
  EXPECT_EQ(cache.match.position, 0);
  EXPECT_EQ(cache.match.end, MatchEnd::kEndOfCache);
  EXPECT_TRUE(cache.kv->evict_one());
  EXPECT_EQ(cache.find(run_of(40)).position, 16);
  EXPECT_EQ(cache.match.end, MatchEnd::kEvicted);
}

TEST(SharedPrefix, WithoutATreeNothingIsKept) {
  CacheOptions options = one_group();
  options.prefix_bytes = 0;
  Cache cache(options);
  cache.visit(run_of(40));
  EXPECT_EQ(cache.visit(run_of(40)), 0);
  EXPECT_FALSE(cache.kv->evict_one());
  EXPECT_EQ(cache.budget.reserved(), 0u);
}

TEST(SharedPrefix, APartlyEqualPageIsCopied) {
  for (int n_equal = 1; n_equal < kPage; ++n_equal) {
    for (const int n_pages : {0, 2}) {
      SCOPED_TRACE(std::to_string(n_equal) + " slots after pages: " + std::to_string(n_pages));
      Cache cache(one_group());
      const int position = n_pages * kPage + n_equal;
      const Tokens known = run_of(48);
      Twin owner = cache.run(known);
      const Tokens prompt = branch(known, position, 30);
      Twin twin = open_twin(*cache.kv, kRoot, prompt, cache.match);
      ASSERT_EQ(cache.match.position, position);
      EXPECT_EQ(cache.match.n_partial, n_equal);
      EXPECT_TRUE(holds(cache.options, twin));
      const auto last = static_cast<std::size_t>(n_pages);
      EXPECT_NE(twin.sequence.views()[0].rows.frames[last],
                owner.sequence.views()[0].rows.frames[last]);
      EXPECT_EQ(cache.kv->memory_summary().used, 4 * cache.frame());
      // What the owner's page holds behind the equal slots is not ours, and ours not its.
      ASSERT_TRUE(compute(twin, prompt));
      EXPECT_TRUE(holds(cache.options, twin));
      EXPECT_TRUE(holds(cache.options, owner));
      cache.kv->check_invariants();
      owner.sequence.close();
      twin.sequence.close();
      EXPECT_EQ(cache.find(known).position, 47);
      EXPECT_EQ(cache.find(prompt).position,
                std::min(position + 29, (position + 30) / kPage * kPage));
    }
  }
}

TEST(SharedPrefix, TwoThatComputeTheSamePublishOne) {
  Cache cache(one_group());
  Match match;
  Twin a = open_twin(*cache.kv, kRoot, run_of(40), match);
  Twin b = open_twin(*cache.kv, kRoot, run_of(40), match);
  ASSERT_TRUE(compute(a, run_of(40)));
  ASSERT_TRUE(b.sequence.append(40));
  b.tokens = run_of(40);
  write_tokens(b, 0);
  EXPECT_EQ(cache.kv->memory_summary().used, 6 * cache.frame());
  b.sequence.publish(kRoot, b.tokens, 1);
  cache.kv->check_invariants();
  EXPECT_EQ(cache.kv->memory_summary().used, 4 * cache.frame()) << "only the filling pages are two";
  EXPECT_EQ(a.sequence.views()[0].rows.frames[1], b.sequence.views()[0].rows.frames[1]);
  EXPECT_TRUE(holds(cache.options, b));
  a.sequence.close();
  cache.kv->evict_all();
  EXPECT_TRUE(holds(cache.options, b)) << "it holds the tree's pages in its own right";
  b.sequence.publish(kRoot, b.tokens, 1);
  cache.kv->check_invariants();
}

TEST(SharedPrefix, UnusedPagesGiveWayToNewOnes) {
  Cache cache(large_frames(), 4 * kLargeFrame);
  cache.visit(run_of(32));
  Twin other = cache.run(run_of(48, 1000));  // three pages: one of the two unused ones leaves
  EXPECT_EQ(cache.find(run_of(40)).position, 16);
  EXPECT_EQ(cache.match.end, MatchEnd::kEvicted);
  ASSERT_TRUE(compute(other, run_of(64, 1000)));
  EXPECT_EQ(cache.find(run_of(40)).position, 0);
  const Status refused = compute(other, run_of(65, 1000));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(holds(cache.options, other));
  cache.kv->check_invariants();
  other.sequence.close();
  EXPECT_EQ(cache.visit(run_of(64, 2000)), 0) << "all four give way to four new ones";
  EXPECT_EQ(cache.find(run_of(65, 2000)).position, 64);
}

TEST(SharedPrefix, PagesInUseDoNotGiveWay) {
  Cache cache(large_frames(), 4 * kLargeFrame);
  Twin user = cache.run(run_of(32));
  Twin other = cache.run(run_of(32, 1000));
  EXPECT_FALSE(compute(other, run_of(33, 1000)));
  EXPECT_TRUE(holds(cache.options, user));
  EXPECT_EQ(cache.find(run_of(33)).position, 32);
  // A copy of a partly equal page is a convenience: without room for it the prompt is shorter.
  EXPECT_EQ(cache.find(branch(run_of(32), 20, 5)).position, 16);
  EXPECT_EQ(cache.match.n_partial, 0);
  EXPECT_EQ(cache.match.cached, -1) << "there is no difference at 16";
  EXPECT_NE(cache.match.end, MatchEnd::kFirstDifference);
  cache.kv->check_invariants();
}

/// The page to be copied is its own sequence's alone once the tree has given it up.
TEST(SharedPrefix, WritesInPlaceWhenTheTreeLetsThePageGo) {
  for (const std::uint64_t n_frames : {1, 2}) {
    Cache cache(large_frames(), n_frames * kLargeFrame);
    Twin twin = cache.run(run_of(16));
    if (n_frames == 2) cache.visit(run_of(16, 1000));
    ASSERT_TRUE(twin.sequence.truncate(10));
    twin.tokens.resize(10);
    const Status status = compute(twin, branch(run_of(16), 10, 3));
    ASSERT_TRUE(status) << status.error().message;
    cache.kv->check_invariants();
    EXPECT_TRUE(holds(cache.options, twin));
  }
}

/// The first group has got its copy's page when the second one makes the copies needless.
TEST(SharedPrefix, ACopyThatBecameNeedlessIsGivenBack) {
  CacheOptions options = large_frames();
  options.groups.push_back(options.groups[0]);
  options.groups[1].layers = {1};
  Cache cache(options, 3 * kLargeFrame);
  Twin twin = cache.run(run_of(16));
  ASSERT_TRUE(twin.sequence.truncate(10));
  twin.tokens.resize(10);
  const Status status = compute(twin, branch(run_of(16), 10, 3));
  ASSERT_TRUE(status) << status.error().message;
  cache.kv->check_invariants();
  EXPECT_TRUE(holds(options, twin));
  EXPECT_EQ(cache.kv->memory_summary().used, 2 * kLargeFrame);
}

TEST(SharedPrefix, TheTreeNeverTakesMoreThanItMay) {
  CacheOptions options = one_group();
  options.prefix_bytes = 3 * kPage * 2 * 2 * 16 * 4 + 100;
  Cache cache(options);
  Twin twin = cache.run(run_of(90));
  EXPECT_EQ(cache.kv->memory_summary().cached, 0u) << "beyond it only what is in use";
  twin.sequence.close();
  EXPECT_EQ(cache.kv->memory_summary().used, 3 * cache.frame());
  EXPECT_EQ(cache.find(run_of(90)).position, 48) << "the first pages are of most use";
  cache.visit(run_of(33, 1000));
  EXPECT_EQ(cache.kv->memory_summary().cached, 3 * cache.frame());
  EXPECT_EQ(cache.find(run_of(33, 1000)).position, 32) << "the new prompt's pages are in";
  EXPECT_EQ(cache.find(run_of(90)).position, 16);
  Twin longer = cache.run(run_of(80));
  ASSERT_TRUE(longer.sequence.truncate(20));
  EXPECT_LE(cache.kv->memory_summary().used, 4 * cache.frame()) << "and a copy of the filling page";
}

TEST(SharedPrefix, ASequenceHoldsThePagesOfItsHistoryOnly) {
  Cache cache(one_group());
  Twin a = cache.run(run_of(50));
  Twin b{.sequence = a.sequence.fork().value(), .tokens = a.tokens, .root = kRoot};
  a.sequence.close();
  cache.kv->evict_all();
  EXPECT_EQ(cache.find(run_of(50)).position, 48) << "the fork uses them";
  ASSERT_TRUE(b.sequence.truncate(20));
  b.tokens.resize(20);
  cache.kv->evict_all();
  EXPECT_EQ(cache.find(run_of(50)).position, 16) << "of two pages it has only one whole";
  cache.kv->check_invariants();
  ASSERT_TRUE(compute(b, branch(run_of(50), 20, 30)));
  EXPECT_TRUE(holds(cache.options, b));
  EXPECT_EQ(cache.find(branch(run_of(50), 20, 40)).position, 48);
  EXPECT_EQ(cache.find(run_of(50)).position, 20);
  b.sequence.close();
  cache.kv->evict_all();
  EXPECT_EQ(cache.budget.reserved(), 0u);
}

TEST(SharedPrefix, TheOrderOfLeavingIsThePolicys) {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kCost}) {
    FakeClock clock;
    CacheOptions options = one_group();
    options.eviction = policy;
    options.clock = &clock;
    Cache cache(options);
    const auto add = [&](TokenId first, double seconds_per_token) {
      Twin twin = open_twin(*cache.kv, kRoot, run_of(17, first), cache.match);
      ASSERT_TRUE(compute(twin, run_of(17, first), seconds_per_token));
      clock.now += 1;
    };
    clock.now = 0;
    add(4000, 100);  // the dearest
    clock.now = 99;
    cache.find(run_of(17, 4000));  // pages are used again after 99 s
    clock.now = 100;
    add(1000, 9);  // dear
    add(2000, 1);  // cheap
    add(3000, 4);
    cache.find(run_of(17, 2000));  // the cheap one is used last, and twice: after 2 s
    // The mean gap is 50.5 s, hence the stretch 10.1: 99 + 10.1 ln 200 = 152.5, 100 + 10.1 ln 9 =
    // 122.2, 103 + 10.1 ln 2 = 110.0, 102 + 10.1 ln 4 = 116.0; what all have in common left out.
    const std::vector<TokenId> order = policy == EvictionPolicy::kLru
                                           ? std::vector<TokenId>{4000, 1000, 3000, 2000}
                                           : std::vector<TokenId>{2000, 3000, 1000, 4000};
    for (const TokenId next : order) {
      ASSERT_TRUE(cache.kv->evict_one());
      Match match;
      open_twin(*cache.kv, kRoot, run_of(17, next), match);
      EXPECT_EQ(match.position, 0) << next;
    }
  }
}

}  // namespace
}  // namespace kvasir::cache
