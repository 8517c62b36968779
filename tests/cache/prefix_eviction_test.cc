// Who leaves first. The exact order is the contract, so every test writes it down.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cache/policy/eviction.h"
#include "cache/prefix/tree.h"
#include "support/prefix_pages.h"

namespace kvasir::cache {
namespace {

using Names = std::vector<PageId>;
constexpr EvictionPolicy kAllPolicies[] = {EvictionPolicy::kLru, EvictionPolicy::kLfu,
                                           EvictionPolicy::kCost};

/// Pages 1 -> 2 -> 3, 1 -> 4, and 5 alone.
struct Family : NamedPages {
  Family() {
    node_1 = add(1, 10);
    node_2 = add_after(node_1, 2, 20);
    node_3 = add_after(node_2, 3, 30);
    node_4 = add_after(node_1, 4, 40);
    node_5 = add(5, 5);
  }
  NodeId node_1, node_2, node_3, node_4, node_5;
};

TEST(Eviction, LruTakesTheLongestUnusedLeaf) {
  Family untouched;
  EXPECT_EQ(untouched.evict_all(50, EvictionPolicy::kLru), (Names{5, 3, 2, 4, 1}));
  Family touched;
  touched.touch(touched.node_5, 35);
  touched.touch(touched.node_2, 60);
  EXPECT_EQ(touched.evict_all(70, EvictionPolicy::kLru), (Names{3, 5, 4, 2, 1}));
}

TEST(Eviction, TheClockNeverRunsBackwardsForAPage) {
  Family pages;
  pages.touch(pages.node_3, 1);
  EXPECT_EQ(pages.tree.stats(pages.node_3).last_use_seconds, 30);
  EXPECT_EQ(pages.evict_all(50, EvictionPolicy::kLru), (Names{5, 3, 2, 4, 1}));
}

TEST(Eviction, LfuTakesTheLeastUsedThenTheLongestUnused) {
  Family pages;
  const auto touch = [&](NodeId node, int n, double now) {
    for (int i = 0; i < n; ++i) pages.touch(node, now);
  };
  touch(pages.node_3, 2, 50);  // used 3 times
  touch(pages.node_4, 1, 50);  // 2 times
  touch(pages.node_2, 1, 50);
  touch(pages.node_1, 4, 50);
  const NodeId node_6 = pages.add(6, 44);
  touch(node_6, 1, 45);
  // Of 4 and 6, both used twice, 6 is the older; 2 appears when 3 has gone.
  EXPECT_EQ(pages.evict_all(60, EvictionPolicy::kLfu), (Names{5, 6, 4, 3, 2, 1}));
}

TEST(Eviction, TiesGoByAgeThenByNode) {
  for (const EvictionPolicy policy : kAllPolicies) {
    NamedPages pages;
    for (const PageId name : {3u, 1u, 2u}) pages.add(name, 10);
    EXPECT_EQ(pages.evict_all(20, policy), (Names{3, 1, 2})) << "nodes in the order of insertion";
  }
  for (const EvictionPolicy policy : {EvictionPolicy::kLfu, EvictionPolicy::kCost}) {
    NamedPages pages;
    pages.add(3, 12);
    pages.add(1, 11);
    pages.add(2, 10);
    EXPECT_EQ(pages.evict_all(20, policy), (Names{2, 1, 3})) << "oldest use";
  }
}

// Scores are chosen so that every sum is exact.
TEST(Eviction, CostTakesTheLeastSecondsPerByteTimesUsesAndAges) {
  NamedPages pages;
  pages.add(1, 10, {.compute_seconds = 8, .bytes = 4});   // 2
  pages.add(2, 10, {.compute_seconds = 1, .bytes = 4});   // 1/4
  pages.add(3, 10, {.compute_seconds = 3, .bytes = 4});   // 3/4
  pages.add(4, 10, {.compute_seconds = 6, .bytes = 12});  // 1/2
  EXPECT_EQ(pages.evict(2, 20, EvictionPolicy::kCost), (Names{2, 4}));
  // The inflation is 1/2 now: 5 scores 1/2 + 1/4 as 3 does, which is older.
  const NodeId node_5 = pages.add(5, 20, {.compute_seconds = 1, .bytes = 4});
  EXPECT_EQ(pages.evict(1, 20, EvictionPolicy::kCost), Names{3});
  // 3/4 now. Used twice, 5 scores 3/4 + 2 * 1/4; 6, the same page used once, 3/4 + 1/4.
  pages.touch(node_5, 21);
  pages.add(6, 22, {.compute_seconds = 1, .bytes = 4});
  EXPECT_EQ(pages.evict(2, 30, EvictionPolicy::kCost), (Names{6, 5}));
  // 5/4 now: 7 scores 9/4, hence 1 goes before it, though it is worth twice as much a byte: its use
  // is too long ago.
  pages.add(7, 30, {.compute_seconds = 1, .bytes = 1});
  EXPECT_EQ(pages.evict_all(30, EvictionPolicy::kCost), (Names{1, 7}));
}

TEST(Eviction, ScoresAreTheFormulasOfTheHeader) {
  const NodeStats stats{.last_use_seconds = 7,
                        .n_uses = 3,
                        .compute_seconds = 2,
                        .bytes = 8,
                        .inflation_at_use = 0.5};
  EXPECT_EQ(eviction_score(EvictionPolicy::kLru, stats), 7);
  EXPECT_EQ(eviction_score(EvictionPolicy::kLfu, stats), 3);
  EXPECT_EQ(eviction_score(EvictionPolicy::kCost, stats), 1.25);
}

TEST(Eviction, OtherPoliciesDoNotInflateAndAnotherPolicyRanksAnew) {
  NamedPages pages;
  pages.add(1, 30, {.compute_seconds = 1, .bytes = 1});
  pages.add(2, 20, {.compute_seconds = 9, .bytes = 1});
  pages.add(3, 10, {.compute_seconds = 5, .bytes = 1});
  pages.add(4, 40, {.compute_seconds = 3, .bytes = 1});
  EXPECT_EQ(pages.evict(1, 50, EvictionPolicy::kLru), Names{3});
  const NodeId node_5 = pages.add(5, 50, {.compute_seconds = 2, .bytes = 1});
  EXPECT_EQ(pages.tree.stats(node_5).inflation_at_use, 0);
  EXPECT_EQ(pages.evict(2, 50, EvictionPolicy::kCost), (Names{1, 5}));
  EXPECT_EQ(pages.evict(1, 50, EvictionPolicy::kLru), Names{2});
  EXPECT_EQ(pages.evict_all(50, EvictionPolicy::kLfu), Names{4});
}

TEST(Eviction, TheLowestPriorityClassGoesFirstButLeavesBeforeAll) {
  for (const EvictionPolicy policy : kAllPolicies) {
    NamedPages pages;
    const NodeId node_1 = pages.add(1, 10, {.retention = {.priority = 10}});
    pages.add_after(node_1, 2, 10, {.retention = {.priority = 80}});
    pages.add(3, 30);
    pages.add(4, 20, {.retention = {.priority = kDefaultPriority}});
    pages.add(5, 40, {.retention = {.priority = 0}});
    pages.add(6, 1, {.retention = {.priority = kMaxPriority}});
    EXPECT_EQ(pages.evict_all(50, policy), (Names{5, 4, 3, 2, 1, 6}));
  }
}

TEST(Eviction, RetentionCanBeChangedLater) {
  Family pages;
  ASSERT_TRUE(pages.tree.set_retention(pages.node_5, {.priority = 50}));
  ASSERT_TRUE(pages.tree.set_retention(pages.node_4, {.priority = 20}));
  ASSERT_TRUE(pages.tree.set_retention(pages.node_3, {.ttl_seconds = 100}));
  // 3 was used at 30 and expires at 130.
  EXPECT_EQ(pages.evict(1, 129, EvictionPolicy::kLru), Names{4});
  EXPECT_EQ(pages.evict_all(130, EvictionPolicy::kLru), (Names{3, 2, 1, 5}));
}

TEST(Eviction, ASecondInsertKeepsTheLongerRetention) {
  NamedPages pages;
  const auto retention = [&](Retention first, Retention second) {
    pages.tree.clear();
    pages.add(1, 10, {.retention = first});
    const NodeStats& stats = pages.tree.stats(pages.add(1, 20, {.retention = second}));
    return std::pair{stats.priority, stats.expiry_seconds};
  };
  const double never = std::numeric_limits<double>::infinity();
  EXPECT_EQ(retention({10, 5}, {20, 7}), (std::pair{20, 27.0}));
  EXPECT_EQ(retention({20, 7}, {10, 5}), (std::pair{20, 27.0}));
  EXPECT_EQ(retention({20, 7}, {10, 0}), (std::pair{20, never}));
  EXPECT_EQ(retention({10, 0}, {20, 7}), (std::pair{20, never}));
}

TEST(Eviction, WhatHasExpiredGoesFirstWhateverItsPriority) {
  const auto fill = [](NamedPages& pages) {
    const NodeId node_4 = pages.add(4, 5, {.retention = {.priority = 95, .ttl_seconds = 45}});
    pages.add(1, 0, {.retention = {.priority = 100, .ttl_seconds = 100}});
    pages.add(2, 0, {.retention = {.priority = 90, .ttl_seconds = 50}});
    pages.add(3, 0);
    return node_4;
  };
  for (const EvictionPolicy policy : kAllPolicies) {
    NamedPages at_120;
    fill(at_120);
    // 2 and 4 both expired at 50; 2 is the longer unused.
    EXPECT_EQ(at_120.evict_all(120, policy), (Names{2, 4, 1, 3}));
    EXPECT_EQ(at_120.tree.counts().n_expired, 3u);
    EXPECT_EQ(at_120.tree.counts().n_evicted, 4u);
    NamedPages at_50;
    fill(at_50);
    EXPECT_EQ(at_50.evict_all(50, policy), (Names{2, 4, 3, 1})) << "expired from that second on";
    NamedPages at_49;
    fill(at_49);
    EXPECT_EQ(at_49.evict_all(49.9, policy), (Names{3, 2, 4, 1}));
    EXPECT_EQ(at_49.tree.counts().n_expired, 0u);
    NamedPages used;
    used.touch(fill(used), 40);  // 4 expires at 85 now
    EXPECT_EQ(used.evict_all(60, policy), (Names{2, 3, 4, 1})) << "a use renews";
  }
  NamedPages pages;
  fill(pages);
  EXPECT_TRUE(pages.tree.evict_one(60, EvictionPolicy::kLru)->is_expired);
  EXPECT_TRUE(pages.tree.evict_one(60, EvictionPolicy::kLru)->is_expired);
  EXPECT_FALSE(pages.tree.evict_one(60, EvictionPolicy::kLru)->is_expired);
}

TEST(Eviction, ExpiryIsStillLeafFirstAndDoesNotInflate) {
  NamedPages pages;
  const NodeId node_1 = pages.add(1, 0, {.retention = {.ttl_seconds = 10}});
  pages.add_after(node_1, 2, 0, {.compute_seconds = 9, .bytes = 1});
  pages.add(3, 0, {.compute_seconds = 4, .bytes = 1, .retention = {.ttl_seconds = 20}});
  pages.add(4, 0, {.compute_seconds = 1, .bytes = 1});
  EXPECT_EQ(pages.evict(1, 30, EvictionPolicy::kCost), Names{3}) << "2 has not expired, hides 1";
  const NodeId node_5 = pages.add(5, 30, {.compute_seconds = 10, .bytes = 1});
  EXPECT_EQ(pages.tree.stats(node_5).inflation_at_use, 0);
  EXPECT_EQ(pages.evict_all(30, EvictionPolicy::kCost), (Names{4, 2, 1, 5}));
}

TEST(Eviction, ALockProtectsThePageAndAllBefore) {
  Family pages;
  pages.tree.lock(pages.node_2);
  pages.tree.lock(pages.node_2);
  EXPECT_EQ(pages.evict_all(50, EvictionPolicy::kLru), (Names{5, 3, 4}));
  EXPECT_EQ(pages.tree.counts().n_nodes, 2u);
  pages.tree.unlock(pages.node_2);
  EXPECT_FALSE(pages.tree.evict_one(50, EvictionPolicy::kLru)) << "locks are counted";
  pages.touch(pages.node_2, 60);
  pages.tree.unlock(pages.node_2);
  EXPECT_EQ(pages.evict_all(70, EvictionPolicy::kLru), (Names{2, 1}));
  EXPECT_EQ(pages.tree.counts().n_roots, 0u);
  EXPECT_FALSE(pages.tree.evict_one(70, EvictionPolicy::kLru));
}

TEST(Eviction, AnExpiredPageStaysWhileItIsLockedOrPinned) {
  NamedPages pages({.pin_budget_bytes = 100});
  const NodeId node_1 = pages.add(1, 0, {.retention = {.ttl_seconds = 1}});
  const NodeId node_2 = pages.add(2, 0, {.retention = {.ttl_seconds = 2}});
  pages.tree.lock(node_1);
  ASSERT_TRUE(pages.tree.pin(node_2));
  EXPECT_FALSE(pages.tree.evict_one(10, EvictionPolicy::kLru));
  pages.tree.unpin(node_2);
  pages.tree.unlock(node_1);
  EXPECT_EQ(pages.evict_all(10, EvictionPolicy::kLru), (Names{1, 2}));
}

TEST(Eviction, APinProtectsThePageAndAllBeforeUntilUnpin) {
  NamedPages pages({.pin_budget_bytes = 1000});
  const NodeId node_1 = pages.add(1, 1);
  const NodeId node_2 = pages.add_after(node_1, 2, 2);
  pages.add_after(node_2, 3, 3);
  ASSERT_TRUE(pages.tree.pin(node_2));
  ASSERT_TRUE(pages.tree.pin(node_2)) << "no count";
  EXPECT_TRUE(pages.tree.is_pinned(node_2));
  EXPECT_FALSE(pages.tree.is_pinned(node_1));
  EXPECT_EQ(pages.evict_all(10, EvictionPolicy::kLru), Names{3});
  pages.tree.lock(node_2);
  pages.tree.unpin(node_2);
  EXPECT_FALSE(pages.tree.evict_one(10, EvictionPolicy::kLru)) << "a lock is no pin";
  pages.tree.unlock(node_2);
  pages.tree.unpin(node_2);
  EXPECT_EQ(pages.evict_all(10, EvictionPolicy::kLru), (Names{2, 1}));
}

TEST(Eviction, PinsHaveABudgetThatCountsAllTheyKeep) {
  NamedPages pages({.pin_budget_bytes = 1000});
  PrefixTree& tree = pages.tree;
  const NodeId node_1 = pages.add(1, 1, {.bytes = 400});
  const NodeId node_2 = pages.add_after(node_1, 2, 2, {.bytes = 200});
  const NodeId node_3 = pages.add_after(node_1, 3, 3, {.bytes = 401});
  const NodeId node_4 = pages.add_after(node_1, 4, 4, {.bytes = 400});
  ASSERT_TRUE(tree.pin(node_2));
  EXPECT_EQ(tree.counts().pinned_bytes, 600u) << "its parent cannot leave either";
  const Status refused = tree.pin(node_3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(refused.error().message,
            "prefix tree: the pin does not fit; got 400 B (400 B) free of 1000 B, want 401 B "
            "(401 B)");
  EXPECT_FALSE(tree.is_pinned(node_3));
  EXPECT_EQ(tree.counts().pinned_bytes, 600u);
  tree.check_invariants();
  ASSERT_TRUE(tree.pin(node_4)) << "what is pinned already is not counted twice";
  EXPECT_EQ(tree.counts().pinned_bytes, 1000u);
  ASSERT_TRUE(tree.pin(node_1));
  tree.unpin(node_2);
  EXPECT_EQ(tree.counts().pinned_bytes, 800u);
  tree.unpin(node_4);
  EXPECT_EQ(tree.counts().pinned_bytes, 400u) << "1 is pinned itself";
  tree.unpin(node_1);
  EXPECT_EQ(tree.counts().pinned_bytes, 0u);
  EXPECT_EQ(pages.evict_all(10, EvictionPolicy::kLru), (Names{2, 3, 4, 1}));
}

TEST(Eviction, WithoutAPinBudgetNothingIsPinned) {
  NamedPages pages;
  EXPECT_EQ(pages.tree.pin(pages.add(1, 1)).error().code, ErrorCode::kExhausted);
}

TEST(Eviction, LongChainsAndManySiblingsLeaveInOrder) {
  NamedPages pages;
  constexpr PageId kMany = 20'000;
  NodeId last = pages.add(0, 0);
  for (PageId name = 1; name < kMany; ++name) last = pages.add_after(last, name, name);
  for (PageId name = 0; name < kMany; ++name) pages.add(kMany + name, 2.0 * kMany - name);
  EXPECT_EQ(pages.tree.counts().n_candidates, kMany + 1);
  Names names, want;
  while (const auto evicted = pages.tree.evict_one(1e6, EvictionPolicy::kLru)) {
    names.push_back(evicted->pages[0]);
  }
  // The chain from its end (the last of its pages is as old as any sibling), then the siblings.
  for (PageId name = kMany; name-- > 0;) want.push_back(name);
  for (PageId name = 2 * kMany; name-- > kMany;) want.push_back(name);
  EXPECT_EQ(names, want);
  pages.tree.check_invariants();
}

}  // namespace
}  // namespace kvasir::cache
