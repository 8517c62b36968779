// The determinism contract where K or V is in codes: the same row gives the same bits, however it
// is computed and wherever rows and tiles lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/history.h"
#include "attention/identity_support.h"
#include "support/simd_targets.h"

namespace kvasir::attention {
namespace {

using cache::CodecId;
using cache::HeadOrder;
using cache::kTileTokens;

const HeadShape kShapes[] = {
    {1, 3, 64},
    {2, 2, 48},
    {2, 14, 32},
    {1, 9, 80},
    {3, 9, 64},
    {1, 8, 128, 5.0f},
    {2, 6, 64, 0.0f, 100},
    {1, 3, 256, 30.0f, 300},
    {5, 30, 16},
    {2, 4, 64, 0.0f, 700},
    {1, 2, 112, 0.0f, 1},
};

const std::pair<CodecId, CodecId> kMixes[] = {
    {CodecId::kInt8, CodecId::kInt8},     {CodecId::kInt8G64, CodecId::kInt8G64},
    {CodecId::kTile4, CodecId::kTile3},   {CodecId::kTile5, CodecId::kInt8},
    {CodecId::kBF16, CodecId::kTile5},    {CodecId::kInt8, CodecId::kBF16},
    {CodecId::kTile3, CodecId::kInt8G64}, {CodecId::kF16, CodecId::kInt8},
    {CodecId::kTile4, CodecId::kF16},
};

HistoryOptions options_of(const std::pair<CodecId, CodecId>& codecs, int page_tokens = 64,
                          HeadOrder order = HeadOrder::kSplit) {
  HistoryOptions options;
  options.codec_k = codecs.first;
  options.codec_v = codecs.second;
  options.page_tokens = page_tokens;
  options.head_order = order;
  options.has_basis = codecs.first == CodecId::kTile4 || codecs.first == CodecId::kTile3;
  return options;
}

std::string what(const HeadShape& shape, const HistoryOptions& options) {
  return "heads " + std::to_string(shape.n_heads) + ", head_dim " + std::to_string(shape.head_dim) +
         ", window " + std::to_string(shape.window) + ", K " +
         std::string(cache::codec_name(options.codec_k)) + ", V " +
         std::string(cache::codec_name(options.codec_v)) + ", page " +
         std::to_string(options.page_tokens) +
         (options.head_order == HeadOrder::kSplit ? "" : " interleaved");
}

TEST(CodedIdentity, PrefillEqualsDecode) {
  constexpr std::pair<int, int> kRanges[] = {{0, 75}, {185, 80}, {500, 30}, {1020, 12}};
  ThreadPool pool(1);
  for_each_target([&](const char* target) {
    for (const HeadShape& shape : kShapes) {
      for (const auto& [first_pos, n_rows] : kRanges) {
        const Tokens tokens(first_pos + n_rows, shape.n_kv_heads, shape.head_dim, 21);
        const auto size = static_cast<std::size_t>(n_rows) * shape.params().q_row_stride;
        const Floats q = random_floats(size, 22);
        for (const auto& mix : kMixes) {
          const HistoryOptions options = options_of(mix);
          const History history(tokens, options);
          const Floats decode = in_chunks(pool, shape, history, first_pos,
                                          std::vector<int>(static_cast<std::size_t>(n_rows), 1), q);
          const Floats prefill = in_chunks(pool, shape, history, first_pos, {n_rows}, q);
          EXPECT_TRUE(same_bits(decode, prefill))
              << target << ": first_pos " << first_pos << ", " << what(shape, options);
        }
      }
    }
  });
}

TEST(CodedIdentity, AnyChunkingAndThreadCount) {
  std::mt19937 random(31);
  constexpr int kFirst = 190, kRows = 300;
  for (const HeadShape& shape : kShapes) {
    const Tokens tokens(kFirst + kRows, shape.n_kv_heads, shape.head_dim, 32);
    const Floats q = random_floats(kRows * shape.params().q_row_stride, 33);
    for (const auto& mix : kMixes) {
      const HistoryOptions options = options_of(mix);
      const History history(tokens, options);
      ThreadPool one(1);
      const Floats expected = in_chunks(one, shape, history, kFirst, {kRows}, q);
      for (const int n_threads : {1, 2, 3}) {
        ThreadPool pool(n_threads);
        for (int trial = 0; trial < 2; ++trial) {
          const std::vector<int> chunks =
              trial == 0 ? std::vector<int>{kRows} : random_chunks(kRows, random);
          ASSERT_TRUE(same_bits(expected, in_chunks(pool, shape, history, kFirst, chunks, q)))
              << "threads " << n_threads << ", trial " << trial << ", " << what(shape, options);
        }
      }
    }
  }
}

// A long history and few rows: the history is cut between threads and merged, and a lone row has
// the heads of several kv heads side by side.
TEST(CodedIdentity, CutHistories) {
  constexpr int kTokens = 2600;
  for (const HeadShape& shape : kShapes) {
    const Tokens tokens(kTokens, shape.n_kv_heads, shape.head_dim, 41);
    for (const auto& mix : kMixes) {
      const HistoryOptions options = options_of(mix, 128);
      const History history(tokens, options);
      constexpr int kRows = 5;
      const Floats q = random_floats(kRows * shape.params().q_row_stride, 42);
      ThreadPool one(1);
      const Floats expected = in_chunks(one, shape, history, kTokens - kRows, {kRows}, q);
      for (const int n_threads : {1, 2, 3, 5}) {
        ThreadPool pool(n_threads);
        for (const std::vector<int>& chunks : {std::vector<int>{5}, {4, 1}, {1, 2, 1, 1}}) {
          ASSERT_TRUE(
              same_bits(expected, in_chunks(pool, shape, history, kTokens - kRows, chunks, q)))
              << "threads " << n_threads << ", chunks of " << chunks[0] << ", "
              << what(shape, options);
        }
      }
    }
  }
}

TEST(CodedIdentity, AnyPageSizeAndHeadOrder) {
  ThreadPool pool(2);
  for (const HeadShape& shape : {HeadShape{3, 9, 64}, HeadShape{2, 2, 80}, HeadShape{2, 16, 32}}) {
    constexpr int kTokens = 530;
    const Tokens tokens(kTokens, shape.n_kv_heads, shape.head_dim, 51);
    const Floats q = random_floats(30 * shape.params().q_row_stride, 52);
    for (const auto& mix : kMixes) {
      Floats expected;
      for (const int page_tokens : {64, 16, 32, 128, 256, 512, 960}) {
        for (const HeadOrder order : {HeadOrder::kSplit, HeadOrder::kInterleaved}) {
          const HistoryOptions options = options_of(mix, page_tokens, order);
          if (options.has_tiles() && page_tokens % kTileTokens != 0) continue;
          const History history(tokens, options);
          // 29 rows at once, then the last one alone.
          const Floats out = in_chunks(pool, shape, history, kTokens - 30, {29, 1}, q);
          if (expected.empty()) expected = out;
          ASSERT_TRUE(same_bits(expected, out)) << what(shape, options);
        }
      }
    }
  }
}

// Sequences that begin in the same frames have that part computed together, as far as it goes.
TEST(CodedIdentity, SharedPrefixEqualsAlone) {
  struct Member {
    int n_tokens, n_shared;
  };
  const Member members[] = {{1100, 0},    {1300, 1024}, {1025, 1024}, {2049, 1024}, {1090, 1024},
                            {1100, 1024}, {1200, 960},  {700, 512},   {700, 640},   {300, 64}};
  for (const HeadShape& shape : kShapes) {
    for (const auto& mix : kMixes) {
      for (const int page_tokens : {64, 512}) {
        const HistoryOptions options = options_of(mix, page_tokens);
        const AttentionParams params = shape.params();
        std::vector<Tokens> tokens;
        std::vector<History> histories;
        std::vector<QueryRows> rows;
        for (const Member& member : members) {
          const auto seed = static_cast<std::uint32_t>(100 + 2 * rows.size());
          tokens.emplace_back(member.n_tokens, shape.n_kv_heads, shape.head_dim, seed);
          const int n_shared = member.n_shared / page_tokens;
          tokens.back().begin_with(tokens[0], n_shared * page_tokens);
          histories.emplace_back(tokens.back(), options);
          History& history = histories.back();
          if (options
                  .has_tiles()) {  // rows beside the tiles are each sequence's own, but the first
            std::copy_n(histories[0].tile_frames().begin(), n_shared,
                        history.tile_frames().begin());
            std::copy_n(histories[0].frames().begin(), std::min(n_shared, 1),
                        history.frames().begin());
          } else {
            std::copy_n(histories[0].frames().begin(), n_shared, history.frames().begin());
          }
          rows.push_back(rows_of(history, member.n_tokens - 1, 1, static_cast<int>(rows.size())));
        }
        const Floats q = random_floats(rows.size() * params.q_row_stride, 45);
        ThreadPool one(1);
        Floats expected;
        for (std::size_t i = 0; i < rows.size(); ++i) {
          const Floats alone = run_attend(one, params, {&rows[i], 1}, q);
          const auto begin = alone.begin() + static_cast<std::ptrdiff_t>(i * params.out_row_stride);
          expected.insert(expected.end(), begin,
                          begin + static_cast<std::ptrdiff_t>(params.out_row_stride));
        }
        for (const int n_threads : {1, 3}) {
          ThreadPool pool(n_threads);
          ASSERT_TRUE(same_bits(expected, run_attend(pool, params, rows, q)))
              << "threads " << n_threads << ", " << what(shape, options);
        }
      }
    }
  }
}

// All targets agree: integer sums are exact, and what is not is done in the same order.
TEST(CodedIdentity, SimdTargetsAgree) {
  ThreadPool pool(1);
  for (const HeadShape& shape : kShapes) {
    const Tokens tokens(560, shape.n_kv_heads, shape.head_dim, 71);
    const Floats q = random_floats(20 * shape.params().q_row_stride, 72);
    for (const auto& mix : kMixes) {
      const HistoryOptions options = options_of(mix);
      Floats expected;
      std::string first;
      for_each_target([&](const char* target) {
        const History history(tokens, options);
        const Floats out = in_chunks(pool, shape, history, 540, {19, 1}, q);
        if (expected.empty()) {
          expected = out;
          first = target;
        }
        EXPECT_TRUE(same_bits(expected, out))
            << target << " differs from " << first << ", " << what(shape, options);
      });
    }
  }
}

}  // namespace
}  // namespace kvasir::attention
