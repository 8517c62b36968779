// The determinism contract: the same row gives the same bits, however it is computed.
#include <gtest/gtest.h>

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

const HeadShape kShapes[] = {
    {1, 3, 64},
    {2, 2, 48},
    {2, 8, 40},
    {1, 9, 80},
    {1, 8, 128, 5.0f},
    {2, 6, 64, 0.0f, 100},
    {1, 3, 256, 30.0f, 300},
    {1, 2, 24, 0.0f, 1},
    {3, 9, 64},
    {5, 30, 16},
};

/// One that sums term by term, one that sums in pairs (attention/terms-inl.h).
constexpr CodecId kOrders[] = {CodecId::kF16, CodecId::kBF16};

HistoryOptions with_codec(CodecId codec, int page_tokens = 64) {
  HistoryOptions options;
  options.codec_k = options.codec_v = codec;
  options.page_tokens = page_tokens;
  return options;
}

TEST(Identity, PrefillEqualsDecode) {
  constexpr std::pair<int, int> kRanges[] = {{0, 75}, {230, 60}, {500, 30}, {1020, 12}};
  ThreadPool pool(1);
  for_each_target([&](const char* target) {
    for (const HeadShape& shape : kShapes) {
      for (const auto& [first_pos, n_rows] : kRanges) {
        const Tokens tokens(first_pos + n_rows, shape.n_kv_heads, shape.head_dim, 21);
        const auto size = static_cast<std::size_t>(n_rows) * shape.params().q_row_stride;
        const Floats q = random_floats(size, 22);
        for (const CodecId codec : kOrders) {
          const History history(tokens, with_codec(codec));
          const Floats decode = in_chunks(pool, shape, history, first_pos,
                                          std::vector<int>(static_cast<std::size_t>(n_rows), 1), q);
          const Floats prefill = in_chunks(pool, shape, history, first_pos, {n_rows}, q);
          EXPECT_TRUE(same_bits(decode, prefill))
              << target << ": heads " << shape.n_heads << ", head_dim " << shape.head_dim
              << ", first_pos " << first_pos << ", codec " << static_cast<int>(codec);
        }
      }
    }
  });
}

TEST(Identity, AnyChunkingAndThreadCount) {
  std::mt19937 random(31);
  constexpr int kFirst = 190, kRows = 400;
  for (const HeadShape& shape : kShapes) {
    const Tokens tokens(kFirst + kRows, shape.n_kv_heads, shape.head_dim, 32);
    const Floats q = random_floats(kRows * shape.params().q_row_stride, 33);
    for (const CodecId codec : kOrders) {
      const History history(tokens, with_codec(codec));
      ThreadPool one(1);
      const Floats expected = in_chunks(one, shape, history, kFirst, {kRows}, q);
      for (const int n_threads : {1, 2, 3}) {
        ThreadPool pool(n_threads);
        for (int trial = 0; trial < 4; ++trial) {
          const std::vector<int> chunks =
              trial == 0 ? std::vector<int>{kRows} : random_chunks(kRows, random);
          ASSERT_TRUE(same_bits(expected, in_chunks(pool, shape, history, kFirst, chunks, q)))
              << "threads " << n_threads << ", trial " << trial << ", heads " << shape.n_heads
              << ", head_dim " << shape.head_dim << ", codec " << static_cast<int>(codec);
        }
      }
    }
  }
}

// A long history and few rows: the history is cut between threads and merged.
TEST(Identity, CutHistories) {
  constexpr int kTokens = 3000;
  for (const HeadShape& shape : kShapes) {
    const Tokens tokens(kTokens, shape.n_kv_heads, shape.head_dim, 41);
    for (const CodecId codec : kOrders) {
      const History history(tokens, with_codec(codec));
      for (const int n_rows : {1, 2, 5, 12}) {
        const auto size = static_cast<std::size_t>(n_rows) * shape.params().q_row_stride;
        const Floats q = random_floats(size, 42);
        ThreadPool one(1);
        const Floats expected = in_chunks(one, shape, history, kTokens - n_rows, {n_rows}, q);
        for (const int n_threads : {2, 3, 5}) {
          ThreadPool pool(n_threads);
          ASSERT_TRUE(
              same_bits(expected, in_chunks(pool, shape, history, kTokens - n_rows, {n_rows}, q)))
              << "threads " << n_threads << ", rows " << n_rows << ", heads " << shape.n_heads
              << ", codec " << static_cast<int>(codec);
        }
      }
    }
  }
}

// A lone row of a long history has the heads of several kv heads side by side; the same row among
// others is computed head by head.
TEST(Identity, HeadsTogetherEqualHeadsApart) {
  constexpr int kTokens = 2100, kRows = 13;
  for (const HeadShape& shape : kShapes) {
    const Tokens tokens(kTokens, shape.n_kv_heads, shape.head_dim, 43);
    for (const int page_tokens : {16, 64}) {
      const CodecId codec = page_tokens == 16 ? CodecId::kF16 : CodecId::kBF16;
      const History history(tokens, with_codec(codec, page_tokens));
      AttentionParams params = shape.params();
      const Floats q = random_floats(kRows * params.q_row_stride, 44);
      const Floats last_q(q.end() - static_cast<std::ptrdiff_t>(params.q_row_stride), q.end());
      for (const int window : {0, 1500}) {
        params.window = window;
        for (const int n_threads : {1, 3}) {
          ThreadPool pool(n_threads);
          const QueryRows all = rows_of(history, kTokens - kRows, kRows);
          const Floats expected = run_attend(pool, params, {&all, 1}, q);
          const QueryRows last = rows_of(history, kTokens - 1, 1);
          const Floats alone = run_attend(pool, params, {&last, 1}, last_q);
          ASSERT_TRUE(same_bits(std::span(expected).last(alone.size()), alone))
              << "heads " << shape.n_heads << ", kv heads " << shape.n_kv_heads << ", page "
              << page_tokens << ", window " << window << ", threads " << n_threads;
        }
      }
    }
  }
}

TEST(Identity, AnyPageSizeAndHeadOrder) {
  const CodecId all[] = {CodecId::kF32, CodecId::kF16, CodecId::kBF16};
  ThreadPool pool(2);
  for (const HeadShape& shape : {HeadShape{3, 9, 64}, HeadShape{2, 2, 72}, HeadShape{2, 16, 40}}) {
    constexpr int kTokens = 530;
    const Tokens tokens(kTokens, shape.n_kv_heads, shape.head_dim, 51);
    const Floats q = random_floats(30 * shape.params().q_row_stride, 52);
    for (const CodecId k : all) {
      for (const CodecId v : all) {
        Floats expected;
        for (const int page_tokens : {64, 16, 32, 512, 1008}) {
          for (const HeadOrder order : {HeadOrder::kSplit, HeadOrder::kInterleaved}) {
            const History history(tokens, {k, v, page_tokens, order});
            // 29 rows at once, then the last one alone.
            const Floats out = in_chunks(pool, shape, history, kTokens - 30, {29, 1}, q);
            if (expected.empty()) expected = out;
            ASSERT_TRUE(same_bits(expected, out))
                << "page " << page_tokens << ", order " << static_cast<int>(order) << ", codecs "
                << static_cast<int>(k) << " " << static_cast<int>(v);
          }
        }
      }
    }
  }
}

// Sequences that begin in the same frames have that part computed together, as far as it goes.
TEST(Identity, SharedPrefixEqualsAlone) {
  // Tokens of each sequence, and how many of them it shares with the first.
  struct Member {
    int n_tokens, n_shared;
  };
  const Member members[] = {{1100, 0},    {1300, 1024}, {1025, 1024}, {2049, 1024}, {1090, 1088},
                            {1100, 1024}, {600, 512},   {700, 512},   {300, 64},    {900, 0}};
  for (const HeadShape& shape : kShapes) {
    for (const int page_tokens : {16, 512}) {
      const HistoryOptions options =
          with_codec(page_tokens == 16 ? CodecId::kF16 : CodecId::kBF16, page_tokens);
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
        std::copy_n(histories[0].frames().begin(), n_shared, histories.back().frames().begin());
        rows.push_back(
            rows_of(histories.back(), member.n_tokens - 1, 1, static_cast<int>(rows.size())));
      }
      const Floats q = random_floats(rows.size() * params.q_row_stride, 45);
      ThreadPool one(1);
      Floats expected;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const Floats alone = run_attend(one, params, {&rows[i], 1}, q);
        const auto begin = static_cast<std::ptrdiff_t>(i * params.out_row_stride);
        expected.insert(expected.end(), alone.begin() + begin,
                        alone.begin() + begin + static_cast<std::ptrdiff_t>(params.out_row_stride));
      }
      for (const int n_threads : {1, 3}) {
        ThreadPool pool(n_threads);
        ASSERT_TRUE(same_bits(expected, run_attend(pool, params, rows, q)))
            << "heads " << shape.n_heads << ", kv heads " << shape.n_kv_heads << ", page "
            << page_tokens << ", threads " << n_threads;
      }
    }
  }
}

TEST(Identity, SequenceInABatchEqualsAlone) {
  for (const HeadShape& shape : kShapes) {
    const AttentionParams params = shape.params();
    // Decode of some, prefill of others, one entry with no rows, rows not in order of entries.
    struct Part {
      int first_pos, n_rows, first_row;
    };
    const std::vector<Part> parts = {{0, 1, 7}, {700, 1, 0},  {40, 6, 1},
                                     {0, 0, 0}, {300, 40, 8}, {2000, 1, 48}};
    const Floats q = random_floats(49 * params.q_row_stride, 61);
    std::vector<History> histories;
    std::vector<QueryRows> rows;
    histories.reserve(parts.size());
    for (const Part& part : parts) {
      const Tokens tokens(part.first_pos + part.n_rows + 1, shape.n_kv_heads, shape.head_dim,
                          static_cast<std::uint32_t>(62 + part.first_row));
      histories.emplace_back(tokens, HistoryOptions{});
      rows.push_back(rows_of(histories.back(), part.first_pos, part.n_rows, part.first_row));
    }
    for (const int n_threads : {1, 2, 3}) {
      ThreadPool pool(n_threads);
      const Floats batch = run_attend(pool, params, rows, q);
      for (const QueryRows& entry : rows) {
        ThreadPool one(1);
        const Floats alone = run_attend(one, params, {&entry, 1}, q);
        const std::size_t begin = static_cast<std::size_t>(entry.first_row) * params.q_row_stride;
        const std::size_t n = static_cast<std::size_t>(entry.n_rows) * params.q_row_stride;
        ASSERT_TRUE(
            same_bits(std::span(batch).subspan(begin, n), std::span(alone).subspan(begin, n)))
            << "threads " << n_threads << ", first_pos " << entry.first_pos;
      }
    }
  }
}

// Targets with FMA in lanes, and the scalar one through std::fma, agree bit for bit.
TEST(Identity, SimdTargetsAgree) {
  ThreadPool pool(1);
  for (const HeadShape& shape : kShapes) {
    const Tokens tokens(560, shape.n_kv_heads, shape.head_dim, 71);
    for (const CodecId codec : {CodecId::kF32, CodecId::kF16, CodecId::kBF16}) {
      const History history(tokens, {codec, codec, 64, HeadOrder::kSplit});
      const Floats q = random_floats(20 * shape.params().q_row_stride, 72);
      Floats expected;
      std::string first;
      for_each_target([&](const char* target) {
        const Floats out = in_chunks(pool, shape, history, 540, {19, 1}, q);
        if (expected.empty()) {
          expected = out;
          first = target;
        }
        EXPECT_TRUE(same_bits(expected, out))
            << target << " differs from " << first << ", head_dim " << shape.head_dim;
      });
    }
  }
}

}  // namespace
}  // namespace kvasir::attention
