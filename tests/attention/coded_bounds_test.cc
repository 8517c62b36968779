// What a row must not see where K or V is in codes: poisoned tokens of others, slots that nobody
// wrote, with their scales, and pages that are gone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "attention/history.h"
#include "support/simd_targets.h"

namespace kvasir::attention {
namespace {

using cache::CodecId;
using cache::kTileTokens;

HistoryOptions coded(CodecId k, CodecId v, int n_sink_tiles = 1, int n_tail_tiles = 1,
                     int page_tokens = 64) {
  HistoryOptions options;
  options.codec_k = k;
  options.codec_v = v;
  options.page_tokens = page_tokens;
  options.n_sink_tiles = n_sink_tiles;
  options.n_tail_tiles = n_tail_tiles;
  return options;
}

const HistoryOptions kCoded[] = {
    coded(CodecId::kInt8, CodecId::kInt8),
    coded(CodecId::kInt8G64, CodecId::kInt8G64),
    coded(CodecId::kTile4, CodecId::kTile3),
    coded(CodecId::kTile5, CodecId::kTile5, 0, 0, 128),
    coded(CodecId::kTile3, CodecId::kInt8, 0, 1),
    coded(CodecId::kF16, CodecId::kTile4, 0, 0),
};

std::string name_of(const HistoryOptions& options) {
  return std::string(cache::codec_name(options.codec_k)) + "/" +
         std::string(cache::codec_name(options.codec_v));
}

void fill_row(Floats& values, int token, std::size_t row, float value) {
  std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * row),
              row, value);
}

std::span<const float> row_of(const Floats& values, int row, const AttentionParams& params) {
  return std::span(values).subspan(static_cast<std::size_t>(row) * params.q_row_stride,
                                   params.q_row_stride);
}

/// Whether the row at `pos` reads anything that K, or V, of `token` has a part in: of a tile that
/// is encoded as one, all of it.
bool sees(const cache::PagedKvView& kv, const AttentionParams& params, int token, bool is_v,
          int pos) {
  const int first = params.window > 0 ? std::max(0, pos - params.window + 1) : 0;
  const int tile = token / kTileTokens;
  const CodecId codec = is_v ? kv.tiles.v.codec : kv.tiles.k.codec;
  const bool is_tile = kv.reads_tile(tile, pos / kTileTokens) && cache::is_tile_codec(codec);
  if (!is_tile) return first <= token && token <= pos;
  return first < (tile + 1) * kTileTokens;
}

/// Poisons K, or V, of one token at a time: rows that do not see it keep their bits, and so does a
/// second sequence; all others become NaN.
void expect_poison_stays(const AttentionParams& params, const HistoryOptions& options,
                         int first_pos, int n_rows, float poison, const char* target) {
  const int n_tokens = first_pos + n_rows;
  const Tokens clean(n_tokens, 2, params.head_dim, 81);
  const Floats q = random_floats(static_cast<std::size_t>(n_rows + 1) * params.q_row_stride, 82);
  ThreadPool pool(2);
  const History history(clean, options);
  const QueryRows other = rows_of(history, n_tokens - 1, 1, n_rows);
  const QueryRows rows[] = {rows_of(history, first_pos, n_rows), other};
  const Floats expected = run_attend(pool, params, rows, q);
  for (int token = 0; token < n_tokens; token += 13) {
    const bool is_v = token % 2 == 1;
    Tokens poisoned = clean;
    fill_row(is_v ? poisoned.v : poisoned.k, token, clean.row(), poison);
    const History bad(poisoned, options);
    const QueryRows bad_rows[] = {rows_of(bad, first_pos, n_rows), other};
    const Floats out = run_attend(pool, params, bad_rows, q);
    for (int i = 0; i < n_rows; ++i) {
      const int pos = first_pos + i;
      const std::span<const float> row = row_of(out, i, params);
      if (!sees(history.view(), params, token, is_v, pos)) {
        ASSERT_TRUE(same_bits(row, row_of(expected, i, params)))
            << target << ": " << name_of(options) << ", token " << token << ", row at " << pos
            << ", window " << params.window;
        continue;
      }
      // A plain value's infinity may weigh nothing; of codes nothing is left.
      if (!cache::is_coded(is_v ? options.codec_v : options.codec_k)) continue;
      for (const float value : row) {
        ASSERT_TRUE(std::isnan(value))
            << target << ": " << name_of(options) << ", token " << token << (is_v ? " V" : " K")
            << ", row at " << pos << ", window " << params.window;
      }
    }
    ASSERT_TRUE(same_bits(row_of(out, n_rows, params), row_of(expected, n_rows, params)))
        << target << ": another sequence saw token " << token;
  }
}

TEST(CodedBounds, NanAndInfinityStayInTheRowsThatSeeThem) {
  for_each_target([](const char* target) {
    for (const HistoryOptions& options : kCoded) {
      AttentionParams params = params_of(6, 32);
      expect_poison_stays(params, options, 0, 40, std::nanf(""), target);
      expect_poison_stays(params, options, 170, 100, std::numeric_limits<float>::infinity(),
                          target);
      params.window = 17;
      expect_poison_stays(params, options, 100, 40, -std::numeric_limits<float>::infinity(),
                          target);
      params.window = 150;
      expect_poison_stays(params, options, 240, 100, std::nanf(""), target);
    }
  });
}

/// Slots that no token wrote are 0xFF, scales included. What lies there later must not matter.
TEST(CodedBounds, UnwrittenSlotsAreNotSeen) {
  for_each_target([](const char* target) {
    for (const HistoryOptions& options : kCoded) {
      const AttentionParams params = params_of(6, 64);
      ThreadPool pool(1);
      for (const int n_tokens : {1, 5, 15, 16, 17, 40, 63, 64, 65, 129, 191, 200, 257}) {
        const Tokens more(n_tokens + 70, 2, 64, 91);
        Tokens tokens = more;
        tokens.n_tokens = n_tokens;
        const History history(tokens, options), longer(more, options);
        const Floats q = random_floats(params.q_row_stride, 92);
        const QueryRows rows = rows_of(history, n_tokens - 1, 1);
        const Floats out = run_attend(pool, params, {&rows, 1}, q);
        for (const float value : out) {
          ASSERT_TRUE(std::isfinite(value))
              << target << ": " << name_of(options) << ", " << n_tokens << " tokens";
        }
        const QueryRows later = rows_of(longer, n_tokens - 1, 1);
        ASSERT_TRUE(same_bits(out, run_attend(pool, params, {&later, 1}, q)))
            << target << ": " << name_of(options) << ", " << n_tokens << " tokens";
      }
    }
  });
}

// Rows that every query reads as tiles, and pages wholly below the window, are null.
TEST(CodedBounds, NullFramesThatNobodyReadsAreNotTouched) {
  constexpr int kTokens = 1100;
  for (HistoryOptions options : kCoded) {
    for (const int page_tokens : {64, 256}) {
      options.page_tokens = page_tokens;
      const Tokens tokens(kTokens, 2, 64, 101);
      for (const int window : {0, 1, 40, 300}) {
        for (const int n_rows : {1, 3, 150}) {
          AttentionParams params = params_of(6, 64);
          params.window = window;
          History history(tokens, options);
          const Floats q =
              random_floats(static_cast<std::size_t>(n_rows) * params.q_row_stride, 102);
          const int first_pos = kTokens - n_rows;
          const QueryRows rows = rows_of(history, first_pos, n_rows);
          ThreadPool pool(3);
          const Floats expected = run_attend(pool, params, {&rows, 1}, q);
          const int lowest = window > 0 ? std::max(0, first_pos - window + 1) : 0;
          int n_gone = 0;
          for (int page = 0; page < kTokens / page_tokens; ++page) {
            const bool is_passed = (page + 1) * page_tokens <= lowest;
            const auto idx = static_cast<std::size_t>(page);
            if (is_passed && options.has_tiles()) history.tile_frames()[idx] = nullptr;
            const int first_tile = page * page_tokens / kTileTokens;
            const int last_tile = (page + 1) * page_tokens / kTileTokens - 1;
            const bool is_sealed = options.has_tiles() && first_tile >= options.n_sink_tiles &&
                                   history.view().reads_tile(last_tile, first_pos / kTileTokens);
            if (!is_passed && !is_sealed) continue;
            history.frames()[idx] = nullptr;
            ++n_gone;
          }
          EXPECT_TRUE(n_gone > 0 || (!options.has_tiles() && window != 40));
          ASSERT_TRUE(same_bits(expected, run_attend(pool, params, {&rows, 1}, q)))
              << name_of(options) << ", page " << page_tokens << ", window " << window << ", rows "
              << n_rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::attention
