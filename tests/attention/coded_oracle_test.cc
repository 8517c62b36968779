// K and V in codes: every SIMD target against the double-precision oracle, within a derived bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/oracle_run.h"
#include "attention/reference.h"
#include "cache/codec/tile_codec.h"
#include "simd/half.h"
#include "support/simd_targets.h"

namespace kvasir::attention {
namespace {

using cache::CodecId;
using cache::HeadOrder;
using cache::kTileTokens;

/// Scale and centre of V's codes of a token, in channels [64 group, 64 group + 64) of int8-g64.
struct Scale {
  double scale = 0.0, centre = 0.0;
};

Scale scale_of(const cache::PagedKvView& kv, Position t, int query_tile, int head, int group) {
  const bool is_tile = kv.reads_tile(t / kTileTokens, query_tile);
  const cache::PageSet& set = is_tile ? kv.tiles : kv.rows;
  if (is_tile && cache::is_tile_codec(set.v.codec)) {
    const cache::VTileMeta meta(kv.v_meta(set, t / kTileTokens * 4, head));
    const int i = t % kTileTokens;
    return {double{cache::v_scale_unit(meta.scale[i])} * meta.scale_base,
            double{meta.centre_base} * meta.centre[i]};
  }
  const bool is_grouped = set.v.codec == CodecId::kInt8G64;
  const auto field = [&](int i) {
    std::uint16_t half = 0;
    std::memcpy(&half, kv.v_meta(set, t / 16, head) + (i * 16 + t % 16) * 2, sizeof(half));
    return double{simd::f16_to_f32(half)};
  };
  if (is_grouped) return {field(2 * group), field(2 * group + 1)};
  return {field(0), 0.0};
}

/// The most that |out - oracle|, the length of one row's one head, may be. u = 2^-24.
///
/// Of V in codes, the factors f = p scale of a segment's tokens are rounded to multiples of
/// L / 16383, L being the largest: each is wrong by half of that (and less than a hundredth more,
/// as f and f / L are rounded to f32 first), which its code multiplies. With p relative to the
/// whole row's maximum, the channel d of the stored basis is wrong by at most
///
///   b[d] = sum over segments of 0.51 L / 16383 sum over its tokens of |code[d]|,   over  sum of p
///
/// and the transform back is orthonormal, so that the row is wrong by the length of b. The rest is
/// f32: as with plain values (oracle_test.cc), but that sums of codes are exact. A score of K in
/// codes is a few products of them: each rounds by u, relative to terms of which a group's centre
/// may be larger than their sum (64 u covers it). 9 additions of the transform, in length: 10 u.
double bound(const AttentionParams& params, const cache::PagedKvView& kv, int kv_head, Position pos,
             const float* q, StoredRows& k, StoredRows& v) {
  constexpr double u = 0x1p-24;
  const auto head_dim = static_cast<std::size_t>(params.head_dim);
  const int query_tile = pos / kTileTokens;
  const Position first = params.window > 0 ? std::max(0, pos - params.window + 1) : 0;
  const std::vector<double> rounded = rounded_query(kv, kv_head, q);
  const auto length = [&](const auto* row) {
    double sum = 0.0;
    for (std::size_t d = 0; d < head_dim; ++d) sum += double{row[d]} * row[d];
    return std::sqrt(sum);
  };
  std::vector<double> p;
  double largest_dot = 0.0, largest_v = 0.0;
  for (Position t = first; t <= pos; ++t) {
    const float* row = k.row(t, query_tile);
    double score = 0.0;
    for (std::size_t d = 0; d < head_dim; ++d) score += rounded[d] * row[d];
    score *= params.scale;
    if (params.softcap > 0.0f) score = params.softcap * std::tanh(score / params.softcap);
    p.push_back(score);
    largest_dot = std::max(largest_dot, length(rounded.data()) * length(row) * params.scale);
    largest_v = std::max(largest_v, length(v.row(t, query_tile)));
  }
  const double highest = *std::max_element(p.begin(), p.end());
  double p_sum = 0.0;
  for (double& x : p) p_sum += x = std::exp(x - highest);

  const bool is_coded_v = cache::is_coded(kv.rows.v.codec);
  std::vector<double> b(head_dim, 0.0);
  double largest_centre = 0.0;
  for (Position begin = first; is_coded_v && begin <= pos;) {
    const Position end = std::min(pos + 1, (begin / kSegmentTokens + 1) * kSegmentTokens);
    for (std::size_t d = 0; d < head_dim; d += 64) {
      double largest = 0.0;
      std::vector<double> codes(64, 0.0);
      for (Position t = begin; t < end; ++t) {
        const Scale of = scale_of(kv, t, query_tile, kv_head, static_cast<int>(d / 64));
        const float* row = v.row(t, query_tile);
        largest = std::max(largest, p[static_cast<std::size_t>(t - first)] * of.scale);
        largest_centre = std::max(largest_centre, std::abs(of.centre));
        for (std::size_t i = 0; i < 64 && d + i < head_dim; ++i) {
          if (of.scale > 0.0) codes[i] += std::abs(row[d + i] - of.centre) / of.scale;
        }
      }
      for (std::size_t i = 0; i < 64 && d + i < head_dim; ++i) {
        b[d + i] += 0.51 * largest / 16383 * codes[i] / p_sum;
      }
    }
    begin = end;
  }

  const double score_ops = cache::is_coded(kv.rows.k.codec) ? 64 : params.head_dim + 1;
  const double score_error = score_ops * u * largest_dot + 8 * u * params.softcap;
  const double p_rounding = kv.rows.v.codec == CodecId::kBF16 ? 0x1p-9 : 0.0;
  const double p_error = 2 * score_error + 2 * largest_dot * u + 4 * u + p_rounding;
  const double n_segments = pos / kSegmentTokens + 1;
  const double additions = is_coded_v ? 4 : 256;
  return length(b.data()) + 256 * u * largest_centre * std::sqrt(static_cast<double>(head_dim)) +
         largest_v * (2 * p_error + (additions + 20 + 12 * n_segments + 2 + 10) * u);
}

using Case = OracleCase;

/// The rows at once, and the last one alone, against the oracle. Returns the largest error / bound.
double expect_close(const Case& c, const std::string& what) {
  const OracleRun run(c);

  double worst = 0.0;
  const auto head_dim = static_cast<std::size_t>(c.head_dim);
  std::vector<StoredRows> k, v;
  for (int kv_head = 0; kv_head < c.n_kv_heads; ++kv_head) {
    k.emplace_back(run.history.view(), kv_head, false);
    v.emplace_back(run.history.view(), kv_head, true);
  }
  for (int i = 0; i < c.n_rows * c.n_heads; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * head_dim;
    const int kv_head = i % c.n_heads / (c.n_heads / c.n_kv_heads);
    const auto side = static_cast<std::size_t>(kv_head);
    const double limit = bound(run.params, run.history.view(), kv_head, c.first_pos + i / c.n_heads,
                               run.q.data() + at, k[side], v[side]);
    double error = 0.0;
    for (std::size_t d = at; d < at + head_dim; ++d) {
      error += std::pow(double{run.out[d]} - run.expected[d], 2);
    }
    error = std::sqrt(error);
    if (!(error <= limit)) {
      ADD_FAILURE() << what << ": row " << i / c.n_heads << ", head " << i % c.n_heads
                    << " is wrong by " << error << ", bound " << limit << "; K "
                    << cache::codec_name(c.history.codec_k) << ", V "
                    << cache::codec_name(c.history.codec_v) << ", kv heads " << c.n_kv_heads
                    << ", heads " << c.n_heads << ", head_dim " << c.head_dim << ", first_pos "
                    << c.first_pos << ", rows " << c.n_rows << ", window " << c.window;
      return error / limit;
    }
    worst = std::max(worst, error / limit);
  }
  return worst;
}

HistoryOptions codecs(CodecId k, CodecId v, int page_tokens = 64) {
  HistoryOptions options;
  options.codec_k = k;
  options.codec_v = v;
  options.page_tokens = page_tokens;
  return options;
}

/// Both sides alike, and mixes: of codes with values, of rows with tiles.
const std::pair<CodecId, CodecId> kMixes[] = {
    {CodecId::kInt8, CodecId::kInt8},     {CodecId::kInt8G64, CodecId::kInt8G64},
    {CodecId::kTile3, CodecId::kTile3},   {CodecId::kTile4, CodecId::kTile4},
    {CodecId::kTile5, CodecId::kTile5},   {CodecId::kInt8, CodecId::kF16},
    {CodecId::kBF16, CodecId::kInt8},     {CodecId::kInt8, CodecId::kInt8G64},
    {CodecId::kInt8G64, CodecId::kF32},   {CodecId::kF16, CodecId::kTile4},
    {CodecId::kTile4, CodecId::kInt8},    {CodecId::kInt8G64, CodecId::kTile3},
    {CodecId::kTile5, CodecId::kInt8G64}, {CodecId::kTile3, CodecId::kBF16},
    {CodecId::kTile4, CodecId::kTile3},   {CodecId::kF32, CodecId::kTile5},
};

TEST(CodedOracle, MixesOfCodecsAndLengths) {
  for_each_target([](const char* target) {
    double worst = 0.0;
    for (const auto& [k, v] : kMixes) {
      for (const Case& c : {Case{2, 6, 64, 0, 20}, Case{2, 6, 64, 253, 6}, Case{1, 3, 64, 190, 8},
                            Case{2, 4, 64, 513, 1}, Case{1, 3, 64, 768, 2}}) {
        Case tested = c;
        tested.history = codecs(k, v, c.n_rows % 4 == 0 ? 256 : 64);
        worst = std::max(worst, expect_close(tested, target));
      }
    }
    RecordProperty(std::string("worst_") + target, std::to_string(worst));
    EXPECT_GT(worst, 0.03) << "of a bound that is of no use";
  });
}

TEST(CodedOracle, EveryLengthAroundStripsTilesAndSegments) {
  for_each_target([](const char* target) {
    for (const auto& [k, v] : {std::pair(CodecId::kInt8, CodecId::kInt8G64),
                               std::pair(CodecId::kTile4, CodecId::kTile3)}) {
      for (const int around : {1, 16, 64, 128, 192, 256, 320}) {
        for (int n = std::max(1, around - 1); n <= around + 1; ++n) {
          HistoryOptions options = codecs(k, v);
          expect_close({1, 3, 64, n - 1, 1, options}, target);
          options.n_sink_tiles = options.n_tail_tiles = 0;
          expect_close({1, 2, 64, n / 2, n - n / 2, options}, target);
          options.n_sink_tiles = 2;
          options.head_order = HeadOrder::kInterleaved;
          expect_close({2, 4, 32, n - 1, 1, options}, target);
        }
      }
    }
  });
}

/// Rows beside tiles and tiles are in one basis, and the query follows them.
TEST(CodedOracle, KInACalibratedBasis) {
  for_each_target([](const char* target) {
    for (const CodecId k : {CodecId::kTile3, CodecId::kTile4, CodecId::kTile5}) {
      for (const CodecId v : {CodecId::kTile4, CodecId::kF16}) {
        HistoryOptions options = codecs(k, v);
        options.has_basis = true;
        for (const int head_dim : {16, 64, 80, 112, 128, 256}) {
          expect_close({2, 4, head_dim, 300, 3, options}, target);
          expect_close({2, 6, head_dim, 300, 1, options}, target);
        }
        expect_close({3, 27, 64, 330, 1, options}, target);  // too many heads to go direct
        expect_close({2, 6, 32, 330, 4, options, 2.0f, 100}, target);
      }
    }
  });
}

TEST(CodedOracle, HeadDims) {
  for_each_target([](const char* target) {
    for (const auto& [k, v] : kMixes) {
      for (const int head_dim : {16, 32, 48, 80, 96, 112, 128, 256}) {
        expect_close({2, 4, head_dim, 200, 3, codecs(k, v)}, target);
        expect_close({2, 2, head_dim, 300, 1, codecs(k, v, 128)}, target);
      }
    }
  });
}

TEST(CodedOracle, HeadsPerKvHead) {
  for_each_target([](const char* target) {
    for (const auto& [k, v] : kMixes) {
      for (int ratio = 1; ratio <= 9; ++ratio) {
        expect_close({2, 2 * ratio, 32, 270, 1, codecs(k, v)}, target);
        if (ratio % 3 == 1) expect_close({2, 2 * ratio, 64, 260, 3, codecs(k, v)}, target);
      }
    }
  });
}

/// Blocks of as many rows as fit: all kv heads of one position.
TEST(CodedOracle, ManyKvHeadsTogether) {
  for_each_target([](const char* target) {
    for (const auto& [k, v, page_tokens] : {std::tuple(CodecId::kInt8, CodecId::kInt8G64, 16),
                                            std::tuple(CodecId::kBF16, CodecId::kInt8, 32),
                                            std::tuple(CodecId::kTile4, CodecId::kTile3, 64)}) {
      const HistoryOptions options = codecs(k, v, page_tokens);
      expect_close({8, 32, 64, 530, 1, options}, target);
      expect_close({16, 32, 256, 530, 1, options}, target);
      expect_close({36, 36, 16, 530, 1, options}, target);  // more than fit into a block
    }
  });
}

TEST(CodedOracle, SoftcapAndWindow) {
  for_each_target([](const char* target) {
    for (const auto& [k, v] : kMixes) {
      expect_close({2, 6, 32, 330, 4, codecs(k, v), 2.0f}, target);
      expect_close({2, 6, 32, 330, 1, codecs(k, v), 50.0f}, target);
      for (const int window : {1, 17, 100, 256, 300}) {
        expect_close({1, 3, 32, 500, 3, codecs(k, v), 0.0f, window}, target);
        expect_close({1, 3, 32, 515, 1, codecs(k, v), 30.0f, window}, target);
      }
    }
  });
}

}  // namespace
}  // namespace kvasir::attention
