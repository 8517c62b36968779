// The verbs of a sequence one by one: what each promises, at its borders.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/codec/row_codec.h"
#include "cache/page/pool.h"

namespace kvasir::cache {
namespace {

constexpr int kDim = 16;

CacheOptions one_group(int page_tokens, int window = 0) {
  return {.groups = {{.layers = {0, 1}, .n_kv_heads = 1, .head_dim = kDim, .window = window}},
          .codec_k = CodecId::kF32,
          .codec_v = CodecId::kF32,
          .page_tokens = page_tokens};
}

std::unique_ptr<KvCache> make(const CacheOptions& options, ByteBudget& budget) {
  return KvCache::create(options, budget).value();
}

/// Writes `value` as every K and `-value` as every V of one token in all layers.
void write_token(const Sequence& sequence, Position pos, float value) {
  const std::vector<float> k(kDim, value), v(kDim, -value);
  for (const PagedKvView& view : sequence.views()) write_kv(view, pos, 1, k.data(), v.data(), kDim);
}

float token_value(const Sequence& sequence, Position pos) {
  std::vector<float> k(kDim), v(kDim);
  for (const PagedKvView& view : sequence.views()) {
    read_k(view, pos, 0, k.data());
    read_v(view, pos, 0, v.data());
    EXPECT_EQ(k[kDim - 1], -v[kDim - 1]);
    EXPECT_EQ(k[0], k[kDim - 1]);
  }
  return k[0];
}

void append_tokens(Sequence& sequence, int n, float first_value) {
  const int begin = sequence.n_tokens();
  ASSERT_TRUE(sequence.append(n));
  for (int i = 0; i < n; ++i) {
    write_token(sequence, begin + i, first_value + static_cast<float>(i));
  }
}

TEST(KvCache, RefusesGroupsThatAreNoPartition) {
  ByteBudget budget;
  const auto code = [&](const CacheOptions& options) {
    const auto cache = KvCache::create(options, budget);
    EXPECT_FALSE(cache);
    return cache ? ErrorCode::kIo : cache.error().code;
  };
  const GroupSpec good{.layers = {0}, .n_kv_heads = 1, .head_dim = 16};
  const auto layers = [&](std::vector<int> numbers) {
    GroupSpec group = good;
    group.layers = std::move(numbers);
    return group;
  };
  EXPECT_EQ(code({}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.groups = {layers({})}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.groups = {layers({1})}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.groups = {layers({-1})}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.groups = {layers({1, 0})}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.groups = {layers({0, 0})}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.groups = {layers({0, 1}), layers({1})}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.groups = {good}, .page_tokens = 24}), ErrorCode::kInvalidArgument);
  GroupSpec bad_window = good;
  bad_window.window = -1;
  EXPECT_EQ(code({.groups = {bad_window}}), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(KvCache::create({.groups = {layers({0, 2}), layers({1})}}, budget));
  EXPECT_EQ(budget.reserved(), 0u) << "an empty cache owns nothing";
}

TEST(Sequence, ViewsAreByLayerNumberAndStayInPlace) {
  ByteBudget budget;
  auto cache = make({.groups = {{.layers = {0, 2}, .n_kv_heads = 1, .head_dim = 16},
                                {.layers = {1}, .n_kv_heads = 2, .head_dim = 32, .window = 40}},
                     .page_tokens = 16},
                    budget);
  Sequence sequence = cache->open();
  ASSERT_TRUE(sequence.append(33));
  const auto views = sequence.views();
  ASSERT_EQ(views.size(), 3u);
  EXPECT_EQ(views[0].rows.frames, views[2].rows.frames);
  EXPECT_NE(views[0].rows.frames, views[1].rows.frames);
  EXPECT_LT(views[0].rows.k.offset, views[2].rows.k.offset);
  EXPECT_EQ(views[1].head_dim, 32);
  EXPECT_EQ(views[1].n_kv_heads, 2);
  for (const PagedKvView& view : views) EXPECT_EQ(view.n_tokens, 33);

  const Sequence moved = std::move(sequence);
  EXPECT_FALSE(sequence.is_open());
  EXPECT_EQ(moved.views()[0].rows.frames, views[0].rows.frames)
      << "a moved handle is the same sequence";
  const Sequence fork = moved.fork().value();
  EXPECT_EQ(moved.views()[0].rows.frames[2], views[0].rows.frames[2])
      << "fork() does not touch its source";
  EXPECT_EQ(fork.views()[0].rows.frames[2], views[0].rows.frames[2]) << "and shares its pages";
  cache->check_invariants();
}

TEST(Sequence, AppendTakesPagesOnlyAtTheirBorders) {
  ByteBudget budget;
  auto cache = make(one_group(32), budget);
  Sequence sequence = cache->open();
  for (int n = 1; n <= 100; ++n) {
    ASSERT_TRUE(sequence.append(1));
    ASSERT_EQ(cache->memory_summary().groups[0].n_pages_used,
              static_cast<std::uint64_t>((n + 31) / 32));
  }
  ASSERT_TRUE(sequence.append(0));
  EXPECT_EQ(sequence.n_tokens(), 100);
  sequence.close();
  EXPECT_FALSE(sequence.is_open());
  EXPECT_EQ(cache->memory_summary().allocated, 0u);
}

TEST(Sequence, ForksWriteTheirOwnCopyOfTheFillingPage) {
  ByteBudget budget;
  auto cache = make(one_group(16), budget);
  Sequence a = cache->open();
  append_tokens(a, 20, 100);
  Sequence b = a.fork().value();
  EXPECT_EQ(cache->memory_summary().groups[0].n_pages_used, 2u);
  append_tokens(b, 3, 500);
  append_tokens(a, 3, 700);
  cache->check_invariants();
  EXPECT_EQ(cache->memory_summary().groups[0].n_pages_used, 3u)
      << "only the filling page is copied";
  EXPECT_EQ(a.views()[0].rows.frames[0], b.views()[0].rows.frames[0]);
  for (int pos = 0; pos < 20; ++pos) {
    EXPECT_EQ(token_value(a, pos), 100.0f + static_cast<float>(pos));
    EXPECT_EQ(token_value(b, pos), 100.0f + static_cast<float>(pos));
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(token_value(b, 20 + i), 500.0f + static_cast<float>(i));
    EXPECT_EQ(token_value(a, 20 + i), 700.0f + static_cast<float>(i));
  }
}

TEST(Sequence, TruncateIntoASharedSealedPageCopiesOnTheNextAppend) {
  ByteBudget budget;
  auto cache = make(one_group(16), budget);
  Sequence a = cache->open();
  append_tokens(a, 40, 0);
  Sequence b = a.fork().value();
  ASSERT_TRUE(b.truncate(10));
  EXPECT_EQ(b.n_tokens(), 10);
  EXPECT_EQ(a.views()[0].rows.frames[0], b.views()[0].rows.frames[0])
      << "still shared: nothing was written";
  append_tokens(b, 30, 900);
  cache->check_invariants();
  for (int pos = 0; pos < 40; ++pos) {
    EXPECT_EQ(token_value(a, pos), static_cast<float>(pos));
    EXPECT_EQ(token_value(b, pos),
              pos < 10 ? static_cast<float>(pos) : 890.0f + static_cast<float>(pos));
  }
}

TEST(Sequence, TheLastOwnerWritesInPlace) {
  ByteBudget budget;
  auto cache = make(one_group(16), budget);
  Sequence a = cache->open();
  append_tokens(a, 10, 0);
  Sequence b = a.fork().value();
  a.close();
  const std::uint8_t* page = b.views()[0].rows.frames[0];
  append_tokens(b, 1, 50);
  EXPECT_EQ(b.views()[0].rows.frames[0], page);
  ASSERT_TRUE(b.truncate(4));
  append_tokens(b, 1, 60);
  EXPECT_EQ(b.views()[0].rows.frames[0], page);
}

TEST(Sequence, AppendIsAllOrNothingAcrossGroups) {
  // Group 1's pages are larger: the budget holds group 0's new page, but not group 1's as well.
  CacheOptions options{.groups = {{.layers = {0}, .n_kv_heads = 1, .head_dim = kDim},
                                  {.layers = {1}, .n_kv_heads = 64, .head_dim = 256}},
                       .codec_k = CodecId::kF32,
                       .codec_v = CodecId::kF32,
                       .page_tokens = 64};
  const std::uint64_t small =
      PagePool::arena_bytes(64 * 2 * kDim * 4, PagePool::arena_frames(64 * 2 * kDim * 4));
  const std::uint64_t large = 64 * 64 * 256 * 2 * 4;
  ByteBudget budget(small + 2 * large);
  auto cache = make(options, budget);
  Sequence sequence = cache->open();
  ASSERT_TRUE(sequence.append(128));
  const MemorySummary before = cache->memory_summary();
  const Status refused = sequence.append(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  for (const char* part : {"cannot append 1 tokens to 128", "group 1", "8388608 B"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  EXPECT_EQ(sequence.n_tokens(), 128);
  EXPECT_EQ(cache->memory_summary().to_string(), before.to_string());
  cache->check_invariants();
  EXPECT_FALSE(sequence.append(2147483647)) << "a sequence has at most 2^31 positions";
  ASSERT_TRUE(sequence.truncate(127));
  EXPECT_TRUE(sequence.append(1)) << "a slot of the filling page needs no memory";
}

TEST(Sequence, ACopyThatDoesNotFitLeavesTheForkShared) {
  const CacheOptions options = one_group(1 << 15);  // 8 MiB frames: an arena each
  const std::uint64_t frame = std::uint64_t{2} * 2 * kDim * 4 << 15;
  ByteBudget budget(frame);
  auto cache = make(options, budget);
  Sequence a = cache->open();
  append_tokens(a, 5, 0);
  Sequence b = a.fork().value();
  EXPECT_FALSE(b.append(1));
  EXPECT_EQ(b.views()[0].rows.frames[0], a.views()[0].rows.frames[0]);
  cache->check_invariants();
  a.close();
  EXPECT_TRUE(b.append(1));
  EXPECT_EQ(token_value(b, 4), 4.0f);
}

TEST(Sequence, ContiguousIsOnePage) {
  ByteBudget budget;
  auto cache = make(one_group(4096), budget);
  Sequence sequence = cache->open();
  append_tokens(sequence, 100, 0);
  EXPECT_EQ(cache->memory_summary().groups[0].n_pages_used, 1u);
  Sequence fork = sequence.fork().value();
  append_tokens(fork, 1, 7);
  EXPECT_EQ(token_value(fork, 99), 99.0f);
  EXPECT_EQ(token_value(fork, 100), 7.0f);
}

/// After every step exactly the pages are gone whose tokens no later query sees.
TEST(WindowGroup, FreesEachPageAtItsExactStep) {
  for (const int window : {1, 2, 15, 16, 17, 32, 33, 50}) {
    ByteBudget budget;
    auto cache = make(one_group(16, window), budget);
    Sequence sequence = cache->open();
    for (int n = 1; n <= 150; ++n) {
      append_tokens(sequence, 1, static_cast<float>(n - 1));
      sequence.free_below_windows();
      cache->check_invariants();
      const auto view = sequence.views()[0];
      for (int page = 0; page < (n + 15) / 16; ++page) {
        const int last_token = page * 16 + 15;
        // The next query stands at n and sees (n - window, n].
        const bool dead = last_token <= n - window;
        ASSERT_EQ(view.rows.frames[page] == nullptr, dead) << "window " << window << " n " << n;
      }
      for (int pos = std::max(0, n - window + 1); pos < n; ++pos) {
        ASSERT_EQ(token_value(sequence, pos), static_cast<float>(pos));
      }
    }
    sequence.close();
    EXPECT_EQ(budget.reserved(), 0u);
  }
}

TEST(WindowGroup, RefusesToGoBackBelowWhatItKept) {
  constexpr int kWindow = 20;
  ByteBudget budget;
  auto cache = make(one_group(16, kWindow), budget);
  Sequence sequence = cache->open();
  append_tokens(sequence, 100, 0);
  sequence.free_below_windows();
  // Dead are the tokens up to 80; pages 0..4 end at 79, so tokens from 80 on are kept. A query at
  // n sees n - 19 and later: n = 99 is the first that finds all of it.
  ASSERT_EQ(sequence.views()[0].rows.frames[4], nullptr);
  ASSERT_NE(sequence.views()[0].rows.frames[5], nullptr);
  const std::string before = cache->memory_summary().to_string();
  for (int n = 1; n < 99; ++n) {
    const Status refused = sequence.truncate(n);
    ASSERT_FALSE(refused) << n;
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(sequence.n_tokens(), 100);
  }
  EXPECT_EQ(cache->memory_summary().to_string(), before);
  ASSERT_TRUE(sequence.truncate(99));
  cache->check_invariants();
  append_tokens(sequence, 5, 99);
  for (int pos = 80; pos < 104; ++pos) {
    EXPECT_EQ(token_value(sequence, pos), static_cast<float>(pos));
  }
  ASSERT_TRUE(sequence.truncate(0)) << "a query at 0 sees no history";
  cache->check_invariants();
  EXPECT_EQ(cache->memory_summary().used, 0u);
  append_tokens(sequence, 30, 0);
  EXPECT_EQ(token_value(sequence, 29), 29.0f);
}

TEST(WindowGroup, WindowOfOneGoesBackToPageBordersOnly) {
  ByteBudget budget;
  auto cache = make(one_group(16, 1), budget);
  Sequence sequence = cache->open();
  append_tokens(sequence, 64, 0);
  sequence.free_below_windows();
  EXPECT_EQ(cache->memory_summary().used, 0u) << "a query that sees itself only needs no history";
  EXPECT_FALSE(sequence.truncate(40)) << "slot 40 lies in a freed page";
  ASSERT_TRUE(sequence.truncate(32));
  cache->check_invariants();
  append_tokens(sequence, 8, 32);
  sequence.free_below_windows();
  EXPECT_EQ(token_value(sequence, 39), 39.0f);
}

/// A page that holds a whole sequence comes alone, not with room for others, in every codec.
TEST(MemorySummary, OfContiguousPagesInPoolsByLayerHasNoFreeOnes) {
  for (const CodecId codec : {CodecId::kF16, CodecId::kInt8, CodecId::kTile4}) {
    ByteBudget budget;
    CacheOptions options;
    for (int layer = 0; layer < 6; ++layer) {
      options.groups.push_back({.layers = {layer}, .n_kv_heads = 3, .head_dim = 64});
    }
    options.codec_k = options.codec_v = codec;
    options.page_tokens = 2048;
    for (const bool is_contiguous : {false, true}) {
      options.is_contiguous = is_contiguous;
      auto cache = make(options, budget);
      Sequence a = cache->open(), b = cache->open();
      ASSERT_TRUE(a.append(100));
      MemorySummary summary = cache->memory_summary();
      if (!is_contiguous) {
        EXPECT_GT(summary.allocated, 2 * summary.used);
        continue;
      }
      EXPECT_LT(summary.allocated, summary.used + summary.used / 20);
      ASSERT_TRUE(b.append(1000));
      summary = cache->memory_summary();
      EXPECT_LT(summary.allocated, summary.used + summary.used / 20);
      for (const auto& group : summary.groups) EXPECT_EQ(group.n_pages_free, 0u);
      cache->check_invariants();
      a.close();
      EXPECT_EQ(cache->memory_summary().used, summary.used / 2);
      EXPECT_EQ(cache->memory_summary().allocated, summary.allocated / 2);
    }
  }
}

TEST(MemorySummary, IsExact) {
  ByteBudget budget(std::uint64_t{1} << 30);
  ASSERT_TRUE(budget.reserve(MemoryOwner::kWeights, 1234));
  auto cache = make(one_group(64), budget);
  const std::uint64_t token = 2 * 2 * kDim * 4, frame = 64 * token;
  const std::uint64_t arena = PagePool::arena_bytes(frame, PagePool::arena_frames(frame));
  Sequence a = cache->open();
  ASSERT_TRUE(a.append(100));
  Sequence b = a.fork().value();
  Sequence c = a.fork().value();
  ASSERT_TRUE(b.truncate(70));
  ASSERT_TRUE(c.truncate(64));
  MemorySummary summary = cache->memory_summary();
  EXPECT_EQ(summary.n_sequences, 3u);
  EXPECT_EQ(summary.allocated, arena);
  EXPECT_EQ(summary.reserved_kv, arena);
  EXPECT_EQ(summary.reserved_weights, 1234u);
  EXPECT_EQ(summary.budget, std::uint64_t{1} << 30);
  EXPECT_EQ(summary.used, 2 * frame);
  EXPECT_EQ(summary.filled, 100 * token) << "the longest owner's slots count, once";
  EXPECT_EQ(summary.wasted, 28 * token);
  EXPECT_EQ(summary.shared, 3 * frame) << "page 0 has three owners, page 1 two";
  EXPECT_EQ(summary.groups[0].n_pages_free,
            static_cast<std::uint64_t>(PagePool::arena_frames(frame)) - 2);
  a.close();
  summary = cache->memory_summary();
  EXPECT_EQ(summary.filled, 70 * token);
  EXPECT_EQ(summary.shared, frame);
  ASSERT_TRUE(b.append(1));
  EXPECT_EQ(cache->memory_summary().filled, 71 * token);

  const std::string table = cache->memory_summary().to_string();
  for (const char* word : {"weights", "1234 B", "budget", "1.0 GiB", "2 sequences", "allocated",
                           "wasted", "shared", "sum"}) {
    EXPECT_NE(table.find(word), std::string::npos) << word << " in\n" << table;
  }
}

TEST(KvCache, ThreeHundredRoundsReturnToTheStart) {
  ByteBudget budget(std::uint64_t{64} << 20);
  ASSERT_TRUE(budget.reserve(MemoryOwner::kWeights, 1000));
  auto cache = make({.groups = {{.layers = {0, 2}, .n_kv_heads = 2, .head_dim = 64},
                                {.layers = {1, 3}, .n_kv_heads = 1, .head_dim = 64, .window = 48}},
                     .page_tokens = 64},
                    budget);
  const std::string start = cache->memory_summary().to_string();
  for (int round = 0; round < 300; ++round) {
    Sequence prompt = cache->open();
    ASSERT_TRUE(prompt.append(200 + round));
    std::vector<Sequence> answers;
    for (int i = 0; i < 3; ++i) {
      answers.push_back(prompt.fork().value());
      ASSERT_TRUE(answers.back().append(50 * i + 1));
      answers.back().free_below_windows();
    }
    if (round % 2 == 0) prompt.close();
    ASSERT_GT(cache->memory_summary().used, 0u);
    answers.clear();
    prompt.close();
    ASSERT_EQ(budget.reserved(), 1000u) << round;
    ASSERT_EQ(cache->memory_summary().to_string(), start) << round;
    cache->check_invariants();
  }
}

TEST(KvCacheDeathTest, MisuseIsCaughtAtOnce) {
  ByteBudget budget;
  auto cache = make(one_group(16), budget);
  Sequence sequence = cache->open();
  EXPECT_DEATH(cache.reset(), "broken invariant") << "an open sequence keeps its cache";
  EXPECT_DEATH((void)sequence.append(-1), "broken invariant");
  EXPECT_DEATH((void)sequence.truncate(1), "broken invariant");
  EXPECT_DEATH((void)Sequence().n_tokens(), "broken invariant");
}

}  // namespace
}  // namespace kvasir::cache
