// Pages of a prompt from the disk's end while those before them are computed.
#include "cache/load_behind.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "cache/prefix_support.h"
#include "cache/tier_support.h"

namespace kvasir::cache::testing {
namespace {

constexpr int kPages = 24;

class LoadBehindTest : public TierTest {
 protected:
  CacheOptions on_disk(CacheOptions options, DiskTier& tier) {
    options.disk = &tier;
    return options;
  }
  /// Leaves `prompt_` on the disk.
  void fill(const CacheOptions& cache_options) {
    Cache cache(cache_options);
    cache.visit(prompt_);
    ASSERT_TRUE(cache.kv->flush(10));
  }
  std::string file_of(int page) const {
    PageKey key = kRoot;
    for (int i = 0; i <= page; ++i) {
      key = next_key(key, std::span(prompt_).subspan(static_cast<std::size_t>(i * kPage), kPage));
    }
    return path_of(key);
  }
  /// Polls until all pages from `begin` on are here.
  static void expect_loaded_from(LoadBehind& behind, Position wanted_from, Position begin) {
    Position loaded_from = 0;
    for (int i = 0; i < 2000 && (loaded_from = behind.poll(wanted_from)) != begin; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(loaded_from, begin);
  }
  /// Computes the first `n` tokens of the prompt.
  Status compute_to(Twin& twin, int n) { return compute(twin, std::span(prompt_).first(n)); }
  /// Adopts, and opens again: how many tokens are there then.
  int meet(Cache& cache, LoadBehind& behind, Twin& twin) {
    EXPECT_TRUE(behind.adopt(twin.sequence));
    Twin all = open_twin(*cache.kv, kRoot, prompt_, cache.match);
    EXPECT_TRUE(holds(cache.options, all));
    twin = std::move(all);
    return cache.match.position;
  }

  const Tokens prompt_ = run_of(kPages * kPage + 5);
};

CacheOptions two_groups() {
  CacheOptions options = one_group();
  options.groups = {{.layers = {0, 2}, .n_kv_heads = 1, .head_dim = 16},
                    {.layers = {1}, .n_kv_heads = 2, .head_dim = 16, .window = 40}};
  return options;
}

TEST_F(LoadBehindTest, MeetsWhoComputesAndHasTheSameBytes) {
  for (const CacheOptions& options : {one_group(), two_groups()}) {
    const auto tier = open_tier();
    fill(on_disk(options, *tier));
    Cache cache(on_disk(options, *tier));
    {
      Twin twin{.sequence = cache.kv->open(), .tokens = {}, .root = kRoot};
      auto behind = cache.kv->load_behind(kRoot, prompt_, 1);
      ASSERT_NE(behind, nullptr);
      // Never before what is wanted: those pages are computed first.
      expect_loaded_from(*behind, 10 * kPage, 10 * kPage);
      ASSERT_TRUE(compute_to(twin, 10 * kPage));
      EXPECT_EQ(meet(cache, *behind, twin), kPages * kPage);
      ASSERT_TRUE(compute(twin, prompt_));
      EXPECT_TRUE(holds(cache.options, twin));
      behind.reset();
      cache.kv->check_invariants();
    }
    std::filesystem::remove_all(directory());
  }
}

TEST_F(LoadBehindTest, WhoHasComputedMoreAlreadyGoesOnFromThere) {
  const auto tier = open_tier();
  fill(on_disk(one_group(), *tier));
  Cache cache(on_disk(one_group(), *tier));
  Twin twin{.sequence = cache.kv->open(), .tokens = {}, .root = kRoot};
  auto behind = cache.kv->load_behind(kRoot, prompt_, 1);
  expect_loaded_from(*behind, 8 * kPage, 8 * kPage);
  ASSERT_TRUE(compute_to(twin, 15 * kPage));
  EXPECT_EQ(meet(cache, *behind, twin), kPages * kPage);
  behind.reset();
  cache.kv->check_invariants();
}

TEST_F(LoadBehindTest, DoesNotJoinOnInsideAPage) {
  const auto tier = open_tier();
  fill(on_disk(one_group(), *tier));
  Cache cache(on_disk(one_group(), *tier));
  Twin twin{.sequence = cache.kv->open(), .tokens = {}, .root = kRoot};
  auto behind = cache.kv->load_behind(kRoot, prompt_, 1);
  expect_loaded_from(*behind, 8 * kPage, 8 * kPage);
  ASSERT_TRUE(compute_to(twin, 15 * kPage + 3));
  EXPECT_FALSE(behind->adopt(twin.sequence));
  behind.reset();
  cache.kv->check_invariants();
}

TEST_F(LoadBehindTest, EndsAtAPageThatIsDamagedOrGone) {
  for (const bool is_gone : {false, true}) {
    SCOPED_TRACE(is_gone);
    const auto tier = open_tier();
    fill(on_disk(one_group(), *tier));
    std::vector<std::uint8_t> bytes = read_bytes(file_of(12));
    bytes.back() ^= 1;
    is_gone ? (void)std::filesystem::remove(file_of(12)) : write_bytes(file_of(12), bytes);
    Cache cache(on_disk(one_group(), *tier));
    {
      Twin twin{.sequence = cache.kv->open(), .tokens = {}, .root = kRoot};
      auto behind = cache.kv->load_behind(kRoot, prompt_, 1);
      expect_loaded_from(*behind, 0, 13 * kPage);
      ASSERT_TRUE(compute_to(twin, 13 * kPage));
      EXPECT_EQ(meet(cache, *behind, twin), kPages * kPage);
      behind.reset();
      cache.kv->check_invariants();
    }
    std::filesystem::remove_all(directory());
  }
}

TEST_F(LoadBehindTest, GoesWhileADiskHangsAndGivesItsPagesBack) {
  const auto tier = open_tier();
  fill(on_disk(one_group(), *tier));
  Cache cache(on_disk(one_group(), *tier));
  fs_.block_reads();
  {
    auto behind = cache.kv->load_behind(kRoot, prompt_, 1);
    EXPECT_EQ(behind->poll(0), kPages * kPage);
    fs_.wait_for_blocked_read();
    EXPECT_EQ(behind->poll(0), kPages * kPage);
    EXPECT_GT(cache.kv->memory_summary().used, 0u);
  }
  EXPECT_EQ(cache.kv->memory_summary().used, 0u);
  fs_.release_reads();
}

TEST_F(LoadBehindTest, StopsWhereTheBudgetEnds) {
  const auto tier = open_tier();
  fill(on_disk(one_group(), *tier));
  Cache roomy(on_disk(one_group(), *tier));
  const std::uint64_t budget = 5 * roomy.frame();
  Cache cache(on_disk(one_group(), *tier), budget);
  auto behind = cache.kv->load_behind(kRoot, prompt_, 1);
  Position begin = kPages * kPage;
  for (int i = 0; i < 50; ++i) {
    begin = behind->poll(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_GT(begin, 0);
  EXPECT_LE(cache.budget.reserved(), budget);
}

TEST_F(LoadBehindTest, IsNothingWhereTheDiskHasNothing) {
  const auto tier = open_tier();
  Cache cache(on_disk(one_group(), *tier));
  EXPECT_EQ(cache.kv->load_behind(kRoot, prompt_, 1), nullptr);
  Cache without(one_group());
  EXPECT_EQ(without.kv->load_behind(kRoot, prompt_, 1), nullptr);
}

}  // namespace
}  // namespace kvasir::cache::testing
