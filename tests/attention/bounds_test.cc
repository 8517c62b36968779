// What a row must not see: later tokens, tokens below its window, slots that nobody wrote, pages
// that are gone; and what must not be written.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "attention/attention.h"
#include "attention/history.h"
#include "cache/cache.h"
#include "support/simd_targets.h"

namespace kvasir::attention {
namespace {

using cache::CodecId;

const HistoryOptions kAllCodecs[] = {{CodecId::kF32, CodecId::kF32},
                                     {CodecId::kF16, CodecId::kF16},
                                     {CodecId::kBF16, CodecId::kBF16}};

void fill_row(Tokens& tokens, int token, float value) {
  const std::size_t begin = static_cast<std::size_t>(token) * tokens.row();
  std::fill_n(tokens.k.begin() + static_cast<std::ptrdiff_t>(begin), tokens.row(), value);
  std::fill_n(tokens.v.begin() + static_cast<std::ptrdiff_t>(begin), tokens.row(), value);
}

Floats row_of(const Floats& values, int row, const AttentionParams& params) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) *
                                                                  params.q_row_stride);
  return Floats(begin, begin + static_cast<std::ptrdiff_t>(params.q_row_stride));
}

/// Poisons one token at a time: rows that do not see it keep their bits, all others must change.
void expect_poison_stays(const AttentionParams& params, const HistoryOptions& options,
                         int first_pos, int n_rows, float poison, const char* target) {
  const int n_tokens = first_pos + n_rows;
  const Tokens clean(n_tokens, 2, params.head_dim, 81);
  const Floats q = random_floats(static_cast<std::size_t>(n_rows) * params.q_row_stride, 82);
  ThreadPool pool(2);
  const History history(clean, options);
  const QueryRows rows = rows_of(history, first_pos, n_rows);
  const Floats expected = run_attend(pool, params, {&rows, 1}, q);
  for (int token = std::max(0, first_pos - 20); token < n_tokens; token += 3) {
    Tokens poisoned = clean;
    fill_row(poisoned, token, poison);
    const History bad(poisoned, options);
    const QueryRows bad_rows = rows_of(bad, first_pos, n_rows);
    const Floats out = run_attend(pool, params, {&bad_rows, 1}, q);
    for (int i = 0; i < n_rows; ++i) {
      const int pos = first_pos + i;
      const bool sees = token <= pos && (params.window == 0 || token > pos - params.window);
      ASSERT_EQ(same_bits(row_of(out, i, params), row_of(expected, i, params)), !sees)
          << target << ": token " << token << ", row at " << pos << ", window " << params.window;
    }
  }
}

TEST(Bounds, NanAndInfinityStayInTheRowsThatSeeThem) {
  for_each_target([](const char* target) {
    for (const HistoryOptions& options : kAllCodecs) {
      AttentionParams params = params_of(6, 40);
      expect_poison_stays(params, options, 0, 40, std::nanf(""), target);
      expect_poison_stays(params, options, 240, 33, std::numeric_limits<float>::infinity(), target);
      params.window = 9;
      expect_poison_stays(params, options, 240, 33, std::nanf(""), target);
      params.window = 17;
      expect_poison_stays(params, options, 20, 20, -std::numeric_limits<float>::infinity(), target);
    }
  });
}

// History fills every slot that no token wrote with NaN: a strip's unused lanes, a page's tail.
TEST(Bounds, UnwrittenSlotsAreNotSeen) {
  for_each_target([](const char* target) {
    for (const HistoryOptions& options : kAllCodecs) {
      for (int n_tokens = 1; n_tokens < 40; ++n_tokens) {
        const Tokens tokens(n_tokens, 2, 64, 91);
        const History history(tokens, options);
        const AttentionParams params = params_of(6, 64);
        ThreadPool pool(1);
        const Floats q = random_floats(params.q_row_stride, 92);
        const QueryRows rows = rows_of(history, n_tokens - 1, 1);
        for (const float value : run_attend(pool, params, {&rows, 1}, q)) {
          ASSERT_TRUE(std::isfinite(value)) << target << ": " << n_tokens << " tokens";
        }
      }
    }
  });
}

// Pages wholly below the window are null; touching one would crash.
TEST(Bounds, NullFramesBelowTheWindowAreNotTouched) {
  for (const int page_tokens : {16, 64, 512}) {
    for (const int window : {1, 16, 40, 300}) {
      for (const int n_rows : {1, 3, 50}) {
        constexpr int kTokens = 1100;
        HistoryOptions options;
        options.page_tokens = page_tokens;
        AttentionParams params = params_of(6, 64);
        params.window = window;
        const Tokens tokens(kTokens, 2, 64, 101);
        History history(tokens, options);
        const Floats q = random_floats(static_cast<std::size_t>(n_rows) * params.q_row_stride, 102);
        const int first_pos = kTokens - n_rows;
        const QueryRows rows = rows_of(history, first_pos, n_rows);
        ThreadPool pool(3);
        const Floats expected = run_attend(pool, params, {&rows, 1}, q);
        const int lowest = std::max(0, first_pos - window + 1);
        for (int page = 0; page < lowest / page_tokens; ++page) {
          history.frames()[static_cast<std::size_t>(page)] = nullptr;
        }
        ASSERT_TRUE(same_bits(expected, run_attend(pool, params, {&rows, 1}, q)))
            << "page " << page_tokens << ", window " << window << ", rows " << n_rows;
      }
    }
  }
}

// Strides wider than a row: neither the gap between rows nor rows of nobody are written.
TEST(Bounds, WritesItsRowsOnly) {
  AttentionParams params = params_of(6, 40);
  params.q_row_stride = 300;
  params.out_row_stride = 320;
  const Tokens tokens(50, 2, 40, 111);
  const History history(tokens, {});
  const Floats q = random_floats(300 * 12, 112);
  Floats out(320 * 12, -77.0f), expected(320 * 12, -77.0f);
  const QueryRows rows = rows_of(history, 40, 10, 1);
  ThreadPool pool(2);
  Scratch scratch;
  attend(pool, params, {&rows, 1}, q.data(), out.data(), scratch);
  attend_reference(params, {&rows, 1}, q.data(), expected.data());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (expected[i] == -77.0f) {
      ASSERT_EQ(out[i], -77.0f) << i;
    } else {
      ASSERT_NEAR(out[i], expected[i], 1e-5) << i;
    }
  }
}

TEST(Bounds, ScratchGrowsOnceAndIsKept) {
  const Tokens tokens(600, 2, 64, 121);
  const History history(tokens, {});
  const AttentionParams params = params_of(6, 64);
  const Floats q = random_floats(64 * params.q_row_stride, 122);
  Floats out(q.size());
  ThreadPool pool(2);
  Scratch scratch;
  const QueryRows many = rows_of(history, 536, 64), one = rows_of(history, 599, 1);
  attend(pool, params, {&many, 1}, q.data(), out.data(), scratch);
  const std::uint8_t* memory = scratch.ensure(1);
  const std::size_t size = scratch.size();
  attend(pool, params, {&one, 1}, q.data(), out.data(), scratch);
  attend(pool, params, {&many, 1}, q.data(), out.data(), scratch);
  EXPECT_EQ(scratch.size(), size);
  EXPECT_EQ(scratch.ensure(1), memory);
}

// Through the real cache: a fork shares pages with its parent and attends to the same bits.
TEST(Bounds, CachedSequenceAndItsForkAgree) {
  cache::ByteBudget budget;
  cache::CacheOptions options;
  options.groups = {{{0, 1}, 2, 64, 0}};
  auto kv_cache = cache::KvCache::create(options, budget);
  ASSERT_TRUE(kv_cache.has_value());
  cache::Sequence sequence = (*kv_cache)->open();
  ASSERT_TRUE(sequence.append(300).has_value());
  const Tokens tokens(300, 2, 64, 131);
  cache::write_kv(sequence.views()[1], 0, 300, tokens.k.data(), tokens.v.data(), tokens.row());
  auto fork = sequence.fork();
  ASSERT_TRUE(fork.has_value());

  const History history(tokens, {});
  const AttentionParams params = params_of(6, 64);
  const Floats q = random_floats(10 * params.q_row_stride, 132);
  ThreadPool pool(2);
  const QueryRows direct = rows_of(history, 290, 10);
  const Floats expected = run_attend(pool, params, {&direct, 1}, q);
  QueryRows rows = direct;
  rows.kv = sequence.views()[1];
  EXPECT_TRUE(same_bits(expected, run_attend(pool, params, {&rows, 1}, q)));
  const std::vector<cache::PagedKvView> fork_views = fork->views();
  rows.kv = fork_views[1];
  EXPECT_TRUE(same_bits(expected, run_attend(pool, params, {&rows, 1}, q)));
}

}  // namespace
}  // namespace kvasir::attention
