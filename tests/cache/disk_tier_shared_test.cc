// A directory that several disk tiers and threads use at once.
#include <atomic>
#include <thread>

#include "cache/tier_support.h"

namespace kvasir::cache {
namespace {

using DiskTierSharedTest = TierTest;

TEST_F(DiskTierSharedTest, PagesOfAnotherTierOnTheDirectoryAreFound) {
  const auto first = open_tier();
  const auto second = open_tier();
  const TestPage page = page_of(1);
  ASSERT_TRUE(first->put(page.record()));
  EXPECT_TRUE(second->list().empty());
  EXPECT_TRUE(second->contains(page.key));
  EXPECT_EQ(get(*second, page), GetOutcome::kHit);
  EXPECT_EQ(second->list().size(), 1u) << "known from now on";
  // And what it removes is gone here too.
  ASSERT_TRUE(first->remove(page.key));
  EXPECT_EQ(get(*second, page), GetOutcome::kMiss);
  EXPECT_TRUE(second->list().empty());
  EXPECT_EQ(second->stats().page_bytes, 0u);
  EXPECT_EQ(second->health().state, HealthState::kUp);
}

TEST_F(DiskTierSharedTest, APutOfAPageThatAnotherTierWroteWritesNothing) {
  const auto first = open_tier();
  const auto second = open_tier();
  ASSERT_TRUE(first->put(page_of(1).record()));
  ASSERT_TRUE(second->put(page_of(1).record()));
  EXPECT_EQ(second->stats().n_puts, 0u);
  EXPECT_EQ(second->stats().n_puts_known, 1u);
  // Known, but removed by the other one: written again.
  ASSERT_TRUE(first->remove(key_of(1)));
  ASSERT_TRUE(second->put(page_of(1).record()));
  EXPECT_EQ(second->stats().n_puts, 1u);
  EXPECT_EQ(get(*first, page_of(1)), GetOutcome::kHit);
}

TEST_F(DiskTierSharedTest, RoomIsMadeForWhatAnotherTierWroteToo) {
  const std::uint64_t size = file_bytes(page_of(1));
  const auto small = open_tier(2 * size);
  const auto large = open_tier();
  for (std::uint64_t n = 1; n <= 2; ++n) ASSERT_TRUE(small->put(page_of(n).record()));
  ASSERT_TRUE(large->put(page_of(3).record()));
  ASSERT_TRUE(small->put(page_of(3).record()));
  EXPECT_EQ(small->stats().n_puts_known, 1u);
  EXPECT_EQ(keys(*small), (std::vector<PageKey>{key_of(2), key_of(3)}));
  EXPECT_EQ(bytes_on_disk(), 2 * size);
}

TEST_F(DiskTierSharedTest, APageRemovedWhileItIsReadIsAHitAndForgotten) {
  const auto tier = open_tier();
  const TestPage page = page_of(1);
  ASSERT_TRUE(tier->put(page.record()));
  fs_.block_reads();
  std::thread reader([&] { EXPECT_EQ(get(*tier, page), GetOutcome::kHit); });
  fs_.wait_for_blocked_read();
  EXPECT_TRUE(tier->remove(page.key));
  fs_.release_reads();
  reader.join();
  EXPECT_TRUE(tier->list().empty());
  EXPECT_EQ(tier->stats().page_bytes, 0u);
}

TEST_F(DiskTierSharedTest, APageFoundWhileARefreshWalksStaysKnown) {
  FaultyFileSystem others;
  const auto first = std::move(*DiskTier::open(options(), others, clock_));
  const auto second = open_tier();
  bool done = false;
  fs_.before = [&](const std::string& call, const std::string& path) {
    if (call == "list" && path.ends_with("/bad") && !done) {  // the pages have been listed
      done = true;
      EXPECT_TRUE(first->put(page_of(9).record()));
      EXPECT_EQ(get(*second, page_of(9)), GetOutcome::kHit);
    }
    return 0;
  };
  ASSERT_TRUE(second->refresh());
  EXPECT_TRUE(done);
  EXPECT_EQ(keys(*second), std::vector<PageKey>{key_of(9)});
}

TEST_F(DiskTierSharedTest, ARefreshTakesOverWhatOthersDid) {
  const auto first = open_tier();
  const auto second = open_tier();
  for (std::uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(first->put(page_of(n).record()));
  age(path_of(key_of(1)), 30);
  age(path_of(key_of(2)), 20);
  age(path_of(key_of(3)), 10);
  ASSERT_TRUE(second->refresh());
  EXPECT_EQ(keys(*second), (std::vector<PageKey>{key_of(1), key_of(2), key_of(3)}));
  ASSERT_TRUE(first->remove(key_of(2)));
  age(path_of(key_of(1)), -60);  // used by somebody, later than all
  ASSERT_TRUE(second->refresh());
  EXPECT_EQ(keys(*second), (std::vector<PageKey>{key_of(3), key_of(1)}));
  // Removed, and written again with another description: another size.
  ASSERT_TRUE(first->remove(key_of(3)));
  TestPage longer = page_of(3);
  longer.description.append(500, 'x');
  ASSERT_TRUE(first->put(longer.record()));
  ASSERT_TRUE(second->refresh());
  EXPECT_EQ(second->stats().page_bytes, bytes_on_disk());
  EXPECT_EQ(second->stats().n_pages, 2u);
}

TEST_F(DiskTierSharedTest, APutRefreshesWhenItIsTimeSoThatOthersBytesCount) {
  const std::uint64_t size = file_bytes(page_of(1));
  const auto first = open_tier(3 * size);
  const auto second = open_tier(3 * size);
  for (std::uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(first->put(page_of(n).record()));
  clock_.advance(31);
  ASSERT_TRUE(second->put(page_of(4).record()));
  EXPECT_EQ(bytes_on_disk(), 3 * size);
}

TEST_F(DiskTierSharedTest, FourWritersOfTheSamePagesOnTwoTiers) {
  const auto first = open_tier();
  const auto second = open_tier();
  std::atomic<int> n_wrong{0};
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      DiskTier& tier = t % 2 == 0 ? *first : *second;
      for (std::uint64_t i = 0; i < 32; ++i) {
        const TestPage page = page_of(1 + (i + static_cast<std::uint64_t>(t) * 8) % 32, 20000);
        std::vector<std::uint8_t> out(page.payload.size());
        if (!tier.put(page.record())) ++n_wrong;
        if (tier.get(page.key, page.tokens, out) != GetOutcome::kHit) ++n_wrong;
        if (out != page.payload) ++n_wrong;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(n_wrong, 0);
  EXPECT_EQ(files("/pages/").size(), 32u) << "one file a key, no temporaries";
  EXPECT_TRUE(files(".tmp-").empty());
  const auto report = first->verify();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->n_pages, 32u);
  EXPECT_TRUE(report->bad.empty());
  ASSERT_TRUE(first->refresh());
  EXPECT_EQ(first->stats().page_bytes, bytes_on_disk());
}

TEST_F(DiskTierSharedTest, WritersAndReadersOfATierTooSmall) {
  const std::uint64_t size = file_bytes(page_of(1));
  const auto tier = open_tier(5 * size);
  std::atomic<int> n_wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 60; ++i) {
        const TestPage page = page_of(1 + (i * 7 + static_cast<std::uint64_t>(t)) % 12);
        if (t == 0 && !tier->put(page.record())) ++n_wrong;
        std::vector<std::uint8_t> out(page.payload.size());
        const GetOutcome outcome = tier->get(page.key, page.tokens, out);
        if (outcome == GetOutcome::kHit && out != page.payload) ++n_wrong;
        if (outcome == GetOutcome::kCorrupt) ++n_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_wrong, 0);
  EXPECT_LE(bytes_on_disk(), 5 * size);
  ASSERT_TRUE(tier->refresh());
  EXPECT_EQ(tier->stats().page_bytes, bytes_on_disk());
}

}  // namespace
}  // namespace kvasir::cache
