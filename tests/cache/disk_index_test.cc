#include "cache/tier/disk_index.h"

#include <gtest/gtest.h>

#include <string>

#include "cache/tier_support.h"

namespace kvasir::cache {
namespace {

DiskIndex::Entry entry_of(std::uint64_t parent, std::uint64_t bytes = 10) {
  DiskIndex::Entry entry;
  entry.parent = key_of(parent);
  entry.file_bytes = bytes;
  return entry;
}

/// The numbers of the pages in the order in which they would be evicted.
std::vector<int> eviction_order(DiskIndex index, int n_max) {
  std::vector<int> order;
  while (const PageKey* victim = index.victim(nullptr)) {
    for (int n = 0; n < n_max; ++n) {
      if (*victim == key_of(static_cast<std::uint64_t>(n))) order.push_back(n);
    }
    if (!index.erase(*victim, index.generation(*victim))) break;
  }
  return order;
}

TEST(DiskIndex, TheLeastRecentlyUsedGoesFirst) {
  DiskIndex index;
  for (std::uint64_t n = 1; n <= 4; ++n) index.put(key_of(n), entry_of(0));
  EXPECT_EQ(eviction_order(index, 9), (std::vector<int>{1, 2, 3, 4}));
  index.touch(key_of(2), 5);
  EXPECT_EQ(eviction_order(index, 9), (std::vector<int>{1, 3, 4, 2}));
  index.put(key_of(1), entry_of(0));
  EXPECT_EQ(eviction_order(index, 9), (std::vector<int>{3, 4, 2, 1}));
}

TEST(DiskIndex, NoPageGoesBeforeItsFollowers) {
  DiskIndex index;
  index.put(key_of(1), entry_of(0));  // 1 <- 2 <- 3, 1 <- 4; 5 alone
  index.put(key_of(2), entry_of(1));
  index.put(key_of(3), entry_of(2));
  index.put(key_of(4), entry_of(1));
  index.put(key_of(5), entry_of(0));
  EXPECT_EQ(eviction_order(index, 9), (std::vector<int>{3, 2, 4, 1, 5}));
  index.touch(key_of(3), 7);
  EXPECT_EQ(eviction_order(index, 9), (std::vector<int>{4, 5, 3, 2, 1}));
}

TEST(DiskIndex, AFollowerMayComeBeforeItsParent) {
  DiskIndex index;
  index.put(key_of(2), entry_of(1));
  index.put(key_of(1), entry_of(0));
  EXPECT_EQ(eviction_order(index, 9), (std::vector<int>{2, 1}));
}

TEST(DiskIndex, WhatAPageFollowsIsKeptForIt) {
  DiskIndex index;
  index.put(key_of(1), entry_of(0));
  index.put(key_of(2), entry_of(1));
  const PageKey last = key_of(2);
  EXPECT_EQ(index.victim(&last), nullptr) << "only the pages before the one that comes are here";
  index.put(key_of(3), entry_of(0));
  ASSERT_NE(index.victim(&last), nullptr);
  EXPECT_EQ(*index.victim(&last), key_of(3));
}

TEST(DiskIndex, PagesThatFollowEachOtherInACircleCanGoToo) {
  DiskIndex index;
  index.put(key_of(1), entry_of(2));
  index.put(key_of(2), entry_of(1));
  index.put(key_of(3), entry_of(3));
  EXPECT_EQ(eviction_order(index, 9), (std::vector<int>{1, 2, 3}));
}

TEST(DiskIndex, CountsBytesExactly) {
  DiskIndex index;
  index.put(key_of(1), entry_of(0, 100));
  index.put(key_of(2), entry_of(0, 23));
  EXPECT_EQ(index.bytes(), 123u);
  index.put(key_of(1), entry_of(0, 50));
  EXPECT_EQ(index.bytes(), 73u);
  EXPECT_EQ(index.size(), 2u);
  EXPECT_TRUE(index.erase(key_of(1), index.generation(key_of(1))));
  EXPECT_EQ(index.bytes(), 23u);
  index.clear();
  EXPECT_EQ(index.bytes(), 0u);
  EXPECT_EQ(index.victim(nullptr), nullptr);
}

TEST(DiskIndex, AnOutdatedErasureDoesNothing) {
  DiskIndex index;
  index.put(key_of(1), entry_of(0));
  const std::uint64_t first = index.generation(key_of(1));
  index.put(key_of(1), entry_of(0));
  EXPECT_FALSE(index.erase(key_of(1), first));
  EXPECT_FALSE(index.erase(key_of(1), 0));
  EXPECT_FALSE(index.erase(key_of(2), 0)) << "unknown";
  EXPECT_EQ(index.size(), 1u);
}

TEST(DiskIndex, ReorderSortsByTimeAndKeepsTiesAsTheyWere) {
  DiskIndex index;
  for (std::uint64_t n = 1; n <= 4; ++n) index.put(key_of(n), entry_of(0));
  index.raise_last_use(key_of(1), 20);
  index.raise_last_use(key_of(1), 10);  // earlier than known: no news
  index.raise_last_use(key_of(3), 15);
  index.reorder();
  EXPECT_EQ(index.find(key_of(1))->last_used_ns, 20);
  EXPECT_EQ(eviction_order(index, 9), (std::vector<int>{2, 4, 3, 1}));
}

}  // namespace
}  // namespace kvasir::cache
