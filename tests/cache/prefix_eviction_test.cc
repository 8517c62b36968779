// Who leaves first. The exact order is the contract, so every test writes it down.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache/policy/eviction.h"
#include "cache/prefix/tree.h"
#include "support/prefix_pages.h"

namespace kvasir::cache {
namespace {

using Names = std::vector<PageId>;

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

/// Uses a page of its own after `seconds`, the first gap that is seen; a fifth of the mean gap is
/// the stretch.
void let_a_gap_pass(NamedPages& pages, double seconds) {
  const NodeId node = pages.add(999, 0);
  pages.touch(node, seconds);
  pages.tree.erase_subtree(node);
}

TEST(Eviction, CostStretchesTheTimeOfWhatIsWorthMore) {
  NamedPages pages;
  let_a_gap_pass(pages, 50);                               // stretch 10
  pages.add(1, 100, {.compute_seconds = 4, .bytes = 4});   // 100 + 10 ln 1   = 100
  pages.add(2, 92, {.compute_seconds = 8, .bytes = 2});    //  92 + 10 ln 4   = 105.9
  pages.add(3, 107, {.compute_seconds = 1, .bytes = 4});   // 107 + 10 ln 1/4 =  93.1
  pages.add(4, 99, {.compute_seconds = 12, .bytes = 12});  //  99 + 10 ln 1   =  99
  EXPECT_EQ(pages.evict_all(200, EvictionPolicy::kCost), (Names{3, 4, 1, 2}));
}

TEST(Eviction, CostCountsEveryUse) {
  NamedPages pages;
  const NodeId node_1 = pages.add(1, 0, {.compute_seconds = 1, .bytes = 4});
  for (const double now : {50, 100, 150}) pages.touch(node_1, now);  // 150 + 10 ln 4/4 = 150
  pages.add(2, 150, {.compute_seconds = 1, .bytes = 4});             // 150 + 10 ln 1/4 = 136.1
  pages.add(3, 140, {.compute_seconds = 1, .bytes = 1});             // 140 + 10 ln 1   = 140
  pages.add(4, 139, {.compute_seconds = 9, .bytes = 3});             // 139 + 10 ln 3   = 149.99
  EXPECT_EQ(pages.evict_all(190, EvictionPolicy::kCost), (Names{2, 3, 4, 1}));
}

TEST(Eviction, TheStretchFollowsTheGapsBetweenUses) {
  const auto order = [](double gap) {
    NamedPages pages;
    let_a_gap_pass(pages, gap);
    pages.add(1, 100);
    pages.add(2, 95, {.compute_seconds = 16});  // 16 times the worth: 2.8 stretches more
    return pages.evict_all(110, EvictionPolicy::kCost);
  };
  EXPECT_EQ(order(5), (Names{2, 1})) << "2.8 s more for what is 5 s older";
  EXPECT_EQ(order(20), (Names{1, 2})) << "11 s more";
  EXPECT_EQ(order(0), (Names{2, 1})) << "no gap yet: as lru";
}

TEST(Eviction, PagesInTheTreeAreRankedAnewWhenTheStretchHasMoved) {
  NamedPages pages;
  let_a_gap_pass(pages, 5);  // stretch 1
  pages.add(1, 100);
  pages.add(2, 95, {.compute_seconds = 16});
  const NodeId node_3 = pages.add(3, 20);
  pages.add(4, 0);
  EXPECT_EQ(pages.evict(1, 110, EvictionPolicy::kCost), Names{4});
  pages.touch(node_3, 110);  // a gap of 90: the mean is 47.5, the stretch 9.5
  // 100 + 9.5 ln 1/100 = 56.3; 110 + 9.5 ln 2/100 = 72.8; 95 + 9.5 ln 16/100 = 77.6. By the first
  // stretch they were 95.4, 106.1 and 93.2.
  EXPECT_EQ(pages.evict_all(110, EvictionPolicy::kCost), (Names{1, 3, 2}));
}

TEST(Eviction, APageThatComesBackAfterItsEvictionTellsAGap) {
  NamedPages pages;
  pages.add(3, 0);
  EXPECT_EQ(pages.evict(1, 60, EvictionPolicy::kCost), Names{3});
  pages.add(3, 200, {.compute_seconds = 1000});  // the gap is 200, the stretch 40
  pages.add(1, 100);
  pages.add(2, 95, {.compute_seconds = 16});
  EXPECT_EQ(pages.evict_all(210, EvictionPolicy::kCost), (Names{1, 2, 3}));
}

TEST(Eviction, WhatIsWorthNothingLeavesFirst) {
  NamedPages pages;
  pages.add(1, 1);
  pages.add(2, 2, {.compute_seconds = 0});
  EXPECT_EQ(pages.evict(1, 101, EvictionPolicy::kCost), Names{1}) << "no stretch yet";
  let_a_gap_pass(pages, 50);
  pages.add(3, 3);
  pages.add(4, 100, {.compute_seconds = 0});
  EXPECT_EQ(pages.evict_all(110, EvictionPolicy::kCost), (Names{2, 4, 3}));
}

TEST(Eviction, ScoresAreTheFormulasOfTheHeader) {
  const NodeStats stats{.last_use_seconds = 7, .n_uses = 3, .compute_seconds = 2, .bytes = 8};
  EXPECT_EQ(eviction_score(EvictionPolicy::kLru, stats, 5), 7);
  EXPECT_EQ(eviction_score(EvictionPolicy::kLfu, stats, 5), 3);
  EXPECT_DOUBLE_EQ(eviction_score(EvictionPolicy::kCost, stats, 5), 7 + 5 * std::log(0.75));
  EXPECT_EQ(eviction_score(EvictionPolicy::kCost, stats, 0), 7);
  EXPECT_EQ(policy_name(EvictionPolicy::kLru), "lru");
  EXPECT_EQ(policy_name(EvictionPolicy::kLfu), "lfu");
  EXPECT_EQ(policy_name(EvictionPolicy::kCost), "cost");
}

TEST(Eviction, AnotherPolicyRanksAnew) {
  NamedPages pages;
  let_a_gap_pass(pages, 50);
  pages.add(1, 130, {.compute_seconds = 1, .bytes = 1});                       // 130
  const NodeId node_2 = pages.add(2, 70, {.compute_seconds = 9, .bytes = 1});  // used twice
  pages.touch(node_2, 120);                                                    // 148.9
  pages.add(3, 110, {.compute_seconds = 100, .bytes = 1});                     // 156.1
  pages.add(4, 140, {.compute_seconds = 3, .bytes = 1});                       // 151.0
  EXPECT_EQ(pages.evict(1, 150, EvictionPolicy::kCost), Names{1});
  EXPECT_EQ(pages.evict(1, 150, EvictionPolicy::kLru), Names{3});
  EXPECT_EQ(pages.evict(1, 150, EvictionPolicy::kLfu), Names{4});
  EXPECT_EQ(pages.evict_all(150, EvictionPolicy::kCost), Names{2});
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

TEST(Eviction, ExpiryIsStillLeafFirst) {
  NamedPages pages;
  const NodeId node_1 = pages.add(1, 0, {.retention = {.ttl_seconds = 10}});
  pages.add_after(node_1, 2, 0, {.compute_seconds = 9, .bytes = 1});
  pages.add(3, 0, {.compute_seconds = 4, .bytes = 1, .retention = {.ttl_seconds = 20}});
  pages.add(4, 1, {.compute_seconds = 1, .bytes = 1});
  EXPECT_EQ(pages.evict(1, 30, EvictionPolicy::kCost), Names{3}) << "2 has not expired, hides 1";
  EXPECT_EQ(pages.evict_all(30, EvictionPolicy::kCost), (Names{2, 1, 4}));
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
