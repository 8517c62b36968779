#include "cache/page/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

namespace kvasir::cache {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
/// Two fill an arena of 2 MiB.
constexpr std::size_t kFrame = kMiB - 64;
constexpr std::uint64_t kArena = 2 * kMiB;

std::vector<PageId> take(PagePool& pool, int n) {
  std::vector<PageId> pages;
  EXPECT_TRUE(pool.allocate(n, pages));
  return pages;
}

void drop(PagePool& pool, const std::vector<PageId>& pages) {
  for (const PageId page : pages) pool.drop_owner(page);
}

TEST(PagePool, ArenasFillHugePagesAndWasteLittle) {
  for (std::size_t frame = 64; frame < 100 * kMiB; frame = frame * 9 / 8 / 64 * 64 + 64) {
    const int n_frames = PagePool::arena_frames(frame);
    for (const int n : {n_frames, (n_frames + 1) / 2, 1}) {
      const std::uint64_t bytes = PagePool::arena_bytes(frame, n);
      const std::uint64_t frames = frame * static_cast<std::uint64_t>(n);
      ASSERT_GE(bytes, frames) << frame;
      ASSERT_EQ(bytes % 4096, 0u) << frame;
      ASSERT_TRUE((bytes - frames) * 20 < bytes || bytes - frames < 4096) << frame << " x " << n;
    }
    const std::uint64_t full = PagePool::arena_bytes(frame, n_frames);
    ASSERT_GE(full, frame < 2 * kMiB ? 2 * kMiB : frame) << frame;
    ASSERT_LE(full, std::max<std::uint64_t>(16 * kMiB, frame + 2 * kMiB)) << frame;
  }
  // SmolLM2-135M at 64 tokens: 30 layers x 3 heads x 64 dims x 64 tokens x 2 x 2 bytes.
  EXPECT_EQ(PagePool::arena_frames(1'474'560), 7);
  EXPECT_EQ(PagePool::arena_bytes(1'474'560, 7), 10 * kMiB);
  EXPECT_EQ(PagePool::arena_frames(kFrame), 2);
  EXPECT_EQ(PagePool::arena_bytes(kFrame, 2), kArena);
  EXPECT_EQ(PagePool::arena_frames(100 * kMiB), 1);
}

TEST(PagePool, ArenasMayBeAskedToHoldSingleFrames) {
  const std::uint64_t single = PagePool::arena_bytes(kFrame, 1);
  ByteBudget budget;
  PagePool pool(kFrame, budget, 1);
  const auto pages = take(pool, 3);
  EXPECT_EQ(pool.allocated_bytes(), 3 * single);
  EXPECT_EQ(pool.n_free(), 0u);
  pool.drop_owner(pages[1]);
  EXPECT_EQ(pool.allocated_bytes(), 2 * single);
  const auto again = take(pool, 1);
  EXPECT_NE(pool.frame(again[0]), pool.frame(pages[0]));
  pool.drop_owner(again[0]);
  pool.drop_owner(pages[0]);
  pool.drop_owner(pages[2]);
  EXPECT_EQ(budget.reserved(), 0u);
}

TEST(PagePool, ReservesBeforeItOwnsAndGivesEverythingBack) {
  ByteBudget budget(64 * kMiB);
  PagePool pool(kFrame, budget);
  EXPECT_EQ(budget.reserved(), 0u);
  auto pages = take(pool, 5);
  EXPECT_EQ(pool.allocated_bytes(), 3 * kArena);
  EXPECT_EQ(budget.reserved(MemoryOwner::kKv), 3 * kArena);
  EXPECT_EQ(pool.n_used(), 5u);
  EXPECT_EQ(pool.n_free(), 1u);
  pool.drop_owner(pages[4]);
  EXPECT_EQ(pool.allocated_bytes(), 2 * kArena) << "an arena goes with its last frame";
  pages.pop_back();
  drop(pool, pages);
  EXPECT_EQ(pool.allocated_bytes(), 0u);
  EXPECT_EQ(pool.n_free(), 0u);
  EXPECT_EQ(budget.reserved(), 0u);
}

TEST(PagePool, FramesAreDisjointAndAligned) {
  ByteBudget budget;
  PagePool pool(192, budget);
  const auto pages = take(pool, 30'000);
  std::set<std::uint8_t*> starts;
  for (const PageId page : pages) {
    std::uint8_t* frame = pool.frame(page);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(frame) % 64, 0u);
    std::memset(frame, static_cast<int>(page % 251), pool.frame_bytes());
    starts.insert(frame);
  }
  ASSERT_EQ(starts.size(), pages.size());
  for (const PageId page : pages) {
    ASSERT_EQ(pool.frame(page)[0], page % 251);
    ASSERT_EQ(pool.frame(page)[191], page % 251);
  }
  drop(pool, pages);
}

TEST(PagePool, ExhaustionNamesTheNumbersAndChangesNothing) {
  ByteBudget budget(2 * kArena);
  PagePool pool(kFrame, budget);
  auto pages = take(pool, 3);
  std::vector<PageId> more = {7};
  const Status refused = pool.allocate(2, more);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message.find("want 1.0 MiB (1048576 B)"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(more, std::vector<PageId>{7});
  EXPECT_EQ(pool.n_used(), 3u);
  EXPECT_EQ(pool.allocated_bytes(), 2 * kArena);
  EXPECT_TRUE(pool.allocate(1, pages)) << "what was free is still free";
  drop(pool, pages);
}

TEST(PagePool, TheRestOfABudgetHoldsSingleFrames) {
  const std::uint64_t single = PagePool::arena_bytes(kFrame, 1);
  ByteBudget budget(kArena + single);
  PagePool pool(kFrame, budget);
  const auto pages = take(pool, 3);
  EXPECT_EQ(budget.reserved(), kArena + single);
  drop(pool, pages);
  EXPECT_EQ(budget.reserved(), 0u);
}

TEST(PagePool, AnArenaThatTheSystemRefusesIsAnError) {
  ByteBudget budget;
  PagePool pool(std::size_t{1} << 62, budget);
  std::vector<PageId> pages;
  const Status refused = pool.allocate(1, pages);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(budget.reserved(), 0u);
}

TEST(PagePool, OwnersAreCounted) {
  ByteBudget budget;
  PagePool pool(4096, budget);
  const PageId page = take(pool, 1)[0];
  pool.add_owner(page);
  pool.add_owner(page);
  EXPECT_EQ(pool.n_owners(page), 3);
  EXPECT_EQ(pool.n_shared(), 2u);
  EXPECT_EQ(pool.n_used(), 1u);
  pool.drop_owner(page);
  pool.drop_owner(page);
  EXPECT_EQ(pool.n_shared(), 0u);
  pool.drop_owner(page);
  EXPECT_EQ(pool.n_used(), 0u);
}

TEST(PagePool, TheSameCallsGiveTheSamePages) {
  const auto history = [] {
    ByteBudget budget;
    PagePool pool(100 * 1024 / 64 * 64, budget);
    std::mt19937 random(3);
    std::vector<PageId> live, order;
    for (int i = 0; i < 3000; ++i) {
      if (live.empty() || random() % 5 < 3) {
        EXPECT_TRUE(pool.allocate(1, live));
        order.push_back(live.back());
      } else {
        std::swap(live[random() % live.size()], live.back());
        pool.drop_owner(live.back());
        live.pop_back();
      }
      std::vector<std::uint32_t> owners(pool.page_id_limit(), 0);
      for (const PageId page : live) owners[page] = 1;
      pool.check_invariants(owners);
      EXPECT_EQ(budget.reserved(MemoryOwner::kKv), pool.allocated_bytes());
    }
    drop(pool, live);
    EXPECT_EQ(budget.reserved(), 0u);
    return order;
  };
  EXPECT_EQ(history(), history());
}

TEST(PagePool, CheckInvariantsFindsAWrongCount) {
  ByteBudget budget;
  PagePool pool(4096, budget);
  const PageId page = take(pool, 1)[0];
  std::vector<std::uint32_t> owners(pool.page_id_limit(), 0);
  EXPECT_DEATH(pool.check_invariants(owners), "broken invariant");
  owners[page] = 1;
  pool.check_invariants(owners);
  pool.drop_owner(page);
}

}  // namespace
}  // namespace kvasir::cache
