#include "cache/page/byte_budget.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <vector>

namespace kvasir::cache {
namespace {

TEST(ByteBudget, RefusesWholeAndSaysTheNumbers) {
  ByteBudget budget(1000);
  ASSERT_TRUE(budget.reserve(MemoryOwner::kWeights, 600));
  ASSERT_TRUE(budget.reserve(MemoryOwner::kKv, 300));
  const Status refused = budget.reserve(MemoryOwner::kKv, 101);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  for (const char* part : {"kv", "100 B", "101 B", "1000 B", "weights 600 B", "kv 300 B"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  EXPECT_EQ(budget.reserved(MemoryOwner::kKv), 300u);
  EXPECT_EQ(budget.reserved(), 900u);
  EXPECT_TRUE(budget.reserve(MemoryOwner::kScratch, 100)) << "exactly full is allowed";
  EXPECT_FALSE(budget.reserve(MemoryOwner::kScratch, 1));
  EXPECT_TRUE(budget.reserve(MemoryOwner::kScratch, 0));
}

TEST(ByteBudget, ReleasedBytesComeBack) {
  ByteBudget budget(10);
  ASSERT_TRUE(budget.reserve(MemoryOwner::kKv, 10));
  budget.release(MemoryOwner::kKv, 4);
  EXPECT_EQ(budget.reserved(MemoryOwner::kKv), 6u);
  EXPECT_TRUE(budget.reserve(MemoryOwner::kWeights, 4));
  EXPECT_DEATH(budget.release(MemoryOwner::kScratch, 1), "broken invariant");
}

TEST(ByteBudget, ZeroIsNoLimitAndSumsDoNotWrap) {
  ByteBudget budget;
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max() - 5;
  ASSERT_TRUE(budget.reserve(MemoryOwner::kKv, kHuge));
  EXPECT_TRUE(budget.reserve(MemoryOwner::kWeights, 5));
  EXPECT_FALSE(budget.reserve(MemoryOwner::kWeights, 1));
}

TEST(ByteBudget, ThreadsNeverExceedTheLimit) {
  ByteBudget budget(1000);
  std::vector<int> n_granted(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        if (budget.reserve(MemoryOwner::kKv, 3)) ++n_granted[static_cast<std::size_t>(t)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_granted[0] + n_granted[1] + n_granted[2] + n_granted[3], 333);
  EXPECT_EQ(budget.reserved(), 999u);
}

}  // namespace
}  // namespace kvasir::cache
