// The tile encoders against the same steps in double precision: every number that is stored agrees,
// up to ties.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cache/codec/tile_codec.h"
#include "cache/tile_support.h"

namespace kvasir::cache::tile_test {
namespace {

constexpr double kTie = 1e-3;  // a rounding may go either way this close to the middle

double clamped(double x, double lo, double hi) { return std::min(std::max(x, lo), hi); }

/// That `stored` is `exact` rounded.
void expect_rounded(int stored, double exact, double lo, double hi, const std::string& what) {
  ASSERT_LE(std::abs(stored - clamped(exact, lo, hi)), 0.5 + kTie) << what << ", exact " << exact;
}

struct Range {
  double lo = std::numeric_limits<double>::infinity(), hi = -lo;
  void add(double x) {
    lo = std::min(lo, x);
    hi = std::max(hi, x);
  }
  double width() const { return hi - lo; }
  double middle() const { return (lo + hi) / 2; }
  double farthest() const { return std::max(std::abs(lo), std::abs(hi)); }
};

/// Token scales of a K tile against the tokens' rms.
void expect_token_scales(const Tile& tile, const Rows& rows) {
  double rms[kTileTokens], loudest = 0;
  for (int t = 0; t < kTileTokens; ++t) {
    double squares = 0;
    for (int d = 0; d < rows.head_dim; ++d) squares += double{rows.at(t, d)} * rows.at(t, d);
    rms[t] = std::sqrt(squares / rows.head_dim);
    loudest = std::max(loudest, rms[t]);
  }
  const KTileMeta meta = tile.k();
  EXPECT_NEAR(meta.token_base * 1.9375 / loudest, 1, 1e-6);
  for (int t = 0; t < kTileTokens; ++t) {
    // The nearest of 256.
    const auto miss = [&](int scale) {
      const double unit = k_scale_unit(static_cast<std::uint8_t>(scale));
      return std::abs(unit - rms[t] / loudest * 1.9375);
    };
    const double slack = 1e-6 * k_scale_unit(meta.scale[t]);
    const int scale = meta.scale[t];
    for (const int other : {std::max(scale - 1, 0), std::min(scale + 1, 255)}) {
      ASSERT_LE(miss(scale), miss(other) + slack) << t;
    }
  }
}

/// Values divided by their token's scale as it is stored.
double normalized(const Tile& tile, const Rows& rows, int t, int d) {
  return rows.at(t, d) / (double{tile.k().token_base} * k_scale_unit(tile.k().scale[t]));
}

/// That the base is the best of eight.
void expect_best_base(const Tile& tile, const std::vector<Range>& channels) {
  const int max_code = tile.max_code(), max_step = max_k_step(tile.codec);
  double smallest = 0;
  for (const Range& channel : channels) {
    smallest =
        std::max({smallest, channel.farthest() / 127, channel.width() / max_step / max_code});
  }
  // `hair`: steps barely above an integer may be rounded either way.
  const auto cost = [&](double base, double hair) {
    double squares = 0;
    for (const Range& channel : channels) {
      const double step = std::ceil(channel.width() / (base * max_code) - 1e-4 + hair);
      squares += step * step;
    }
    return base * base * squares;
  };
  double best = std::numeric_limits<double>::infinity();
  bool is_candidate = false;
  for (int i = 0; i < 8; ++i) {
    const double base = smallest * (1 + i / 64.0);
    best = std::min(best, cost(base, 1e-5));
    is_candidate |= std::abs(tile.k().base / base - 1) < 1e-6;
  }
  EXPECT_TRUE(is_candidate) << tile.k().base << " " << smallest;
  EXPECT_LE(cost(tile.k().base, -1e-5), best * (1 + 1e-5) + 1e-30);
}

void expect_channel(const Tile& tile, const Rows& rows, int d, const Range& channel) {
  const KTileMeta meta = tile.k();
  const double base = meta.base;
  const int max_code = tile.max_code();
  const double steps = channel.width() / (base * max_code) - 1e-4;
  ASSERT_NEAR(meta.step[d], std::max(steps + 0.5, 0.0), 0.5 + 1e-5) << d;
  ASSERT_LE(meta.step[d], max_k_step(tile.codec));
  expect_rounded(meta.offset[d], channel.middle() / base - meta.step[d] * max_code / 2.0, -127,
                 127 - meta.step[d] * max_code, "offset of " + std::to_string(d));
  for (int t = 0; t < kTileTokens; ++t) {
    const double value = normalized(tile, rows, t, d) / base - meta.offset[d];
    const double code = meta.step[d] == 0 ? 0 : value / meta.step[d];
    expect_rounded(tile.code(t, d), code, 0, max_code,
                   "code of " + std::to_string(t) + " " + std::to_string(d));
  }
}

TEST(TileOracle, EveryNumberOfKIsRight) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    for (const Case& test : tile_cases(head_dim)) {
      SCOPED_TRACE(test.name);
      const Tile tile(codec, false, test.rows);
      expect_token_scales(tile, test.rows);
      std::vector<Range> channels(index(head_dim));
      for (int t = 0; t < kTileTokens; ++t) {
        for (int d = 0; d < head_dim; ++d) {
          channels[index(d)].add(normalized(tile, test.rows, t, d));
        }
      }
      expect_best_base(tile, channels);
      for (int d = 0; d < head_dim; ++d) expect_channel(tile, test.rows, d, channels[index(d)]);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

void expect_v_token(const Tile& tile, const Rows& rows, int t, const Range& range) {
  const VTileMeta meta = tile.v();
  const int spare_bits = 8 - codec_bits(tile.codec), max_code = tile.max_code();
  const double centre_base = meta.centre_base;
  if (centre_base == 0) {
    ASSERT_EQ(meta.centre[t], 0);
  } else {
    expect_rounded(meta.centre[t], range.middle() / centre_base, -127, 127, "centre");
  }
  const double centre = static_cast<float>(meta.centre[t]) * meta.centre_base;
  const double needed =
      (range.width() + 2 * std::abs(centre - range.middle())) / (max_code << spare_bits);
  // The smallest scale that is large enough; float rounding of the centre is part of what it
  // covers.
  const double slack = 1e-6 * needed + 2e-7 * range.farthest() / max_code + 0x1p-109;
  const double scale = double{meta.scale_base} * v_scale_unit(meta.scale[t]);
  ASSERT_GE(scale, needed - slack) << t;
  if (meta.scale[t] > 0) {
    const auto smaller = static_cast<std::uint8_t>(meta.scale[t] - 1);
    ASSERT_LE(double{meta.scale_base} * v_scale_unit(smaller), needed + slack) << t;
  }
  for (int d = 0; d < rows.head_dim && scale > 0; ++d) {
    const double code = (rows.at(t, d) - centre) / std::ldexp(scale, spare_bits) + max_code / 2.0;
    expect_rounded(tile.code(t, d), code, 0, max_code,
                   "code of " + std::to_string(t) + " " + std::to_string(d));
  }
}

TEST(TileOracle, EveryNumberOfVIsRight) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    const int spare_bits = 8 - codec_bits(codec);
    for (const Case& test : tile_cases(head_dim)) {
      SCOPED_TRACE(test.name);
      const Tile tile(codec, true, test.rows);
      std::vector<Range> tokens(kTileTokens);
      double farthest = 0, widest = 0;
      for (int t = 0; t < kTileTokens; ++t) {
        for (int d = 0; d < head_dim; ++d) tokens[index(t)].add(test.rows.at(t, d));
        farthest = std::max(farthest, std::abs(tokens[index(t)].middle()));
        widest = std::max(widest, tokens[index(t)].width());
      }
      // Below 2^-100 there is no centre; below 2^-110 a v8, no scale.
      EXPECT_NEAR(tile.v().centre_base, farthest / 127, farthest * 1e-8 + 0x1p-107);
      if (widest / (tile.max_code() << spare_bits) > 0x1p-110) {
        EXPECT_GT(tile.v().scale_base, 0);
      }
      for (int t = 0; t < kTileTokens; ++t) expect_v_token(tile, test.rows, t, tokens[index(t)]);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

}  // namespace
}  // namespace kvasir::cache::tile_test
