// Tiles: the same bytes on every SIMD target, the documented bit positions, and errors within what
// steps and scales allow.
#include "cache/codec/tile_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cache/tile_support.h"
#include "support/simd_targets.h"

namespace kvasir::cache::tile_test {
namespace {

TEST(TileCodec, SizesAreThoseOfTheFormat) {
  EXPECT_EQ(tile_code_bytes(CodecId::kTile4, 64), 64u * 64 / 2);
  EXPECT_EQ(tile_code_bytes(CodecId::kTile3, 80), 64u * 80 * 3 / 8);
  EXPECT_EQ(tile_meta_bytes(CodecId::kTile4, 64, false), 2u * 64 + 64 + 8);
  EXPECT_EQ(tile_meta_bytes(CodecId::kTile5, 80, true), 2u * 64 + 8);
  for (const CodecId codec : kTileCodecs) {
    EXPECT_LE(max_k_step(codec) * ((1 << codec_bits(codec)) - 1), 252);
  }
  EXPECT_EQ(k_scale_unit(255), 1.9375f);
  EXPECT_EQ(k_scale_unit(0), 0x1p-15f);
  EXPECT_EQ(v_scale_unit(255), 1.96875f);
  EXPECT_EQ(v_scale_unit(0), 0x1p-7f);
  EXPECT_EQ(v8_of_code(CodecId::kTile4, 0), -120);
  EXPECT_EQ(v8_of_code(CodecId::kTile4, 15), 120);
  EXPECT_EQ(v8_of_code(CodecId::kTile3, 7), 112);
  EXPECT_EQ(v8_of_code(CodecId::kTile5, 0), -124);
}

TEST(TileCodec, SameBytesOnEveryTarget) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    std::vector<Case> all = tile_cases(head_dim);
    all.push_back({"zero", Rows(head_dim)});
    all.push_back({"poisoned", all[0].rows});
    all.back().rows.row(40)[head_dim - 1] = -std::numeric_limits<float>::infinity();
    std::vector<Tile> first;
    for_each_target([&](const char* target) {
      SCOPED_TRACE(target);
      std::vector<Tile> tiles;
      for (const Case& test : all) {
        for (const bool is_v : {false, true}) tiles.emplace_back(codec, is_v, test.rows);
      }
      if (first.empty()) first = tiles;
      for (std::size_t i = 0; i < tiles.size(); ++i) {
        EXPECT_EQ(tiles[i].codes, first[i].codes) << all[i / 2].name << (i % 2 ? " V" : " K");
        EXPECT_EQ(tiles[i].meta, first[i].meta) << all[i / 2].name << (i % 2 ? " V" : " K");
      }
    });
  });
}

/// Stored tiles outlive a build: the bytes of 1008 tiles, from values that any CPU makes alike. A
/// change of the hash is a change of the format.
TEST(TileCodec, StoredBytesNeverChange) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for_each_tile_shape([&](CodecId codec, int head_dim) {
    std::mt19937 random(static_cast<unsigned>(head_dim));
    for (int n = 0; n < 48; ++n) {
      const Rows rows = make_rows(head_dim, [&](int t, int d) {
        const auto bits = static_cast<std::int32_t>(random()) >> (8 + random() % 4);
        return static_cast<float>(bits) * (t % 8 == n % 8 ? 0x1p-12f : 0x1p-16f) +
               (d % 16 == n % 16 ? 100.0f : 0.0f);
      });
      const Tile tile(codec, n % 2 == 1, rows);
      for (const auto* bytes : {&tile.codes, &tile.meta}) {
        for (const std::uint8_t byte : *bytes) hash = (hash ^ byte) * 0x100000001b3u;
      }
    }
  });
  EXPECT_EQ(hash, 12238449468765029585u);
}

/// `n_bits` bits of a byte, from bit `first`.
int field(std::uint8_t byte, int first, int n_bits) {
  return (byte >> first) & ((1 << n_bits) - 1);
}

/// Code of K as the documented registers have it.
int k_code_in_registers(const Tile& tile, int t, int d) {
  const int bits = codec_bits(tile.codec), quads = tile.head_dim / 4, quad = d / 4;
  const std::uint8_t* strip = tile.codes.data() + t / 16 * 2 * bits * tile.head_dim;
  const int byte = t % 16 * 4 + d % 4;
  if (bits == 4) {
    return field(strip[quad % (quads / 2) * 64 + byte], quad / (quads / 2) * 4, 4);
  }
  const int lowest =
      field(strip[(bits - 1) * 2 * tile.head_dim + quad * 8 + byte / 8], byte % 8, 1);
  if (bits == 3) {
    const int regs = quads / 4;
    return 2 * field(strip[quad % regs * 64 + byte], quad / regs * 2, 2) + lowest;
  }
  return 2 * field(strip[quad % (quads / 2) * 64 + byte], quad / (quads / 2) * 4, 4) + lowest;
}

int v_code_in_registers(const Tile& tile, int t, int d) {
  const int bits = codec_bits(tile.codec), quad = t / 4, head_dim = tile.head_dim;
  const std::uint8_t* codes = tile.codes.data();
  const auto nibble = [&] {
    return field(codes[(quad % 8 * head_dim + d) * 4 + t % 4], quad / 8 * 4, 4);
  };
  if (bits == 4) return nibble();
  const std::uint8_t* planes_end = codes + (bits - 1) * 8 * head_dim;
  const int bit = d % 16 * 4 + t % 4;
  const int lowest = field(planes_end[(quad * (head_dim / 16) + d / 16) * 8 + bit / 8], bit % 8, 1);
  if (bits == 5) return 2 * nibble() + lowest;
  return 2 * field(codes[(quad % 4 * head_dim + d) * 4 + t % 4], quad / 4 * 2, 2) + lowest;
}

TEST(TileCodec, BitsLieWhereTheHeaderSays) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    for (const bool is_v : {false, true}) {
      Tile tile(codec, head_dim, is_v);
      std::mt19937 random(3);
      for (std::uint8_t& byte : tile.codes) byte = static_cast<std::uint8_t>(random());
      for (int t = 0; t < kTileTokens; ++t) {
        for (int d = 0; d < head_dim; ++d) {
          ASSERT_EQ(tile.code(t, d), (is_v ? v_code_in_registers : k_code_in_registers)(tile, t, d))
              << (is_v ? "V " : "K ") << t << " " << d;
        }
      }
    }
  });
}

TEST(TileCodec, DecodingIsTheFormula) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    const Rows rows = normal_rows(head_dim, 5);
    const Tile k(codec, false, rows), v(codec, true, rows);
    const std::vector<float> k_rows = k.decoded(), v_rows = v.decoded();
    for (int t = 0; t < kTileTokens; ++t) {
      for (int d = 0; d < head_dim; ++d) {
        const int value = k.k().step[d] * k.code(t, d) + k.k().offset[d];
        ASSERT_LE(std::abs(value), 127);
        ASSERT_EQ(k_rows[index(t * head_dim + d)], k.k().token_base * k_scale_unit(k.k().scale[t]) *
                                                       k.k().base * static_cast<float>(value));
        ASSERT_EQ(v_rows[index(t * head_dim + d)],
                  v.v().scale_base * v_scale_unit(v.v().scale[t]) *
                          static_cast<float>(v8_of_code(codec, v.code(t, d))) +
                      v.v().centre_base * static_cast<float>(v.v().centre[t]));
      }
    }
  });
}

double k_token_scale(const Tile& tile, int t) {
  return double{tile.k().token_base} * k_scale_unit(tile.k().scale[t]);
}

/// A K value is off by half a step; at the ends of a channel's range by half a unit, where the
/// rounding of the offset has moved the codes. The slack: steps are a hair too small by design.
TEST(TileCodec, ErrorsOfKAreWithinHalfAStep) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    for (const Case& test : tile_cases(head_dim)) {
      SCOPED_TRACE(test.name);
      const Tile tile(codec, false, test.rows);
      const std::vector<float> rows = tile.decoded();
      for (int t = 0; t < kTileTokens; ++t) {
        const double unit = k_token_scale(tile, t) * tile.k().base;
        for (int d = 0; d < head_dim; ++d) {
          const double bound = std::max(tile.k().step[d] / 2.0, 0.5) + 0.004;
          const double error = rows[index(t * head_dim + d)] - double{test.rows.at(t, d)};
          ASSERT_LE(std::abs(error), unit * bound) << t << " " << d << " " << test.rows.at(t, d);
        }
      }
    }
  });
}

/// Half a code step, the miss of the centre included: no value is clipped.
TEST(TileCodec, ErrorsOfVAreWithinHalfAStep) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    for (const Case& test : tile_cases(head_dim)) {
      SCOPED_TRACE(test.name);
      const Tile tile(codec, true, test.rows);
      const std::vector<float> rows = tile.decoded();
      for (int t = 0; t < kTileTokens; ++t) {
        const double v8_unit = double{tile.v().scale_base} * v_scale_unit(tile.v().scale[t]);
        const double half_step = v8_unit * (1 << (8 - codec_bits(codec))) / 2;
        for (int d = 0; d < head_dim; ++d) {
          const double x = test.rows.at(t, d), error = rows[index(t * head_dim + d)] - x;
          ASSERT_LE(std::abs(error), half_step * (1 + 1e-5) + 2e-7 * std::abs(x) + 0x1p-100)
              << t << " " << d << " " << x;
        }
      }
    }
  });
}

/// Error of independent normal values, in sigmas. A channel or token of n such values has a range
/// of r(n) sigmas, so a step of r(n) / (2^b - 1) and an error of step / sqrt(12). Of that, K's
/// integer steps and V's scales of 5 bits, both rounded up, may cost a tenth.
TEST(TileCodec, NormalValuesCostWhatTheirRangeSays) {
  const auto range_of = [](int n) { return n == 64 ? 4.74 : n == 128 ? 5.25 : 5.72; };  // means
  for (const CodecId codec : kTileCodecs) {
    for (const int head_dim : {64, 128, 256}) {
      for (const bool is_v : {false, true}) {
        double squares = 0;
        int n = 0;
        for (unsigned seed = 0; seed < 16; ++seed) {
          const Rows rows = normal_rows(head_dim, 100 + seed);
          const Tile tile(codec, is_v, rows);
          const std::vector<float> decoded = tile.decoded();
          for (int t = 0; t < kTileTokens; ++t) {
            for (int d = 0; d < head_dim; ++d, ++n) {
              const double error = decoded[index(t * head_dim + d)] - double{rows.at(t, d)};
              squares += error * error;
            }
          }
        }
        const double rms = std::sqrt(squares / n);
        const double ideal = range_of(is_v ? head_dim : kTileTokens) /
                             ((1 << codec_bits(codec)) - 1) / std::sqrt(12.0);
        const std::string name = std::string(codec_name(codec)) + (is_v ? "_v_" : "_k_");
        RecordProperty(name + std::to_string(head_dim), std::to_string(rms));
        EXPECT_LT(rms, 1.1 * ideal) << name << head_dim;
        EXPECT_GT(rms, 0.9 * ideal) << name << head_dim;
      }
    }
  }
}

TEST(TileCodec, ZeroIsExactlyZero) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    for (const float value : {0.0f, -0.0f, 1e-42f, -0x1.fffffep-101f}) {
      const Rows rows = make_rows(head_dim, [&](int, int) { return value; });
      for (const bool is_v : {false, true}) {
        const Tile tile(codec, is_v, rows);
        for (const float x : tile.decoded()) ASSERT_EQ(x, 0.0f) << value << (is_v ? " V" : " K");
        for (std::size_t i = 0; i + 1 < tile.codes.size(); ++i) ASSERT_EQ(tile.codes[i], 0);
        for (std::size_t i = 0; i + 1 < tile.meta.size(); ++i) ASSERT_EQ(tile.meta[i], 0);
      }
    }
  });
}

/// The scale of a silent token is the smallest one: 2^-15 of the loudest token's, nearly.
TEST(TileCodec, SilentTokensStaySilent) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    Rows rows = normal_rows(head_dim, 9);
    std::fill_n(rows.row(17), head_dim, 0.0f);
    const std::vector<float> k = Tile(codec, false, rows).decoded();
    const std::vector<float> v = Tile(codec, true, rows).decoded();
    const auto loudest = [&](const std::vector<float>& values, int first, int n) {
      float most = 0;
      for (int i = 0; i < n; ++i) most = std::max(most, std::abs(values[index(first + i)]));
      return most;
    };
    const float whole = loudest(k, 0, kTileTokens * head_dim);
    EXPECT_LE(loudest(k, 17 * head_dim, head_dim), whole * 0x1p-14f);
    EXPECT_LE(loudest(v, 17 * head_dim, head_dim), whole * 0x1p-6f);
  });
}

TEST(TileCodec, ConstantTilesKeepTheirValue) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    for (const float value : {1.0f, -0.37f, 1e30f, -3e-20f}) {
      const Rows rows = make_rows(head_dim, [&](int, int) { return value; });
      for (const bool is_v : {false, true}) {
        const Tile tile(codec, is_v, rows);
        for (const float x : tile.decoded()) {
          ASSERT_NEAR(x, value, 4e-7 * std::abs(value)) << (is_v ? "V" : "K");
        }
      }
    }
  });
}

TEST(TileCodec, OneBadValuePoisonsTheTile) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float bad_values[] = {
      kNaN,       -kNaN,    std::numeric_limits<float>::signaling_NaN(), kInfinity,
      -kInfinity, 0x1p120f, -std::numeric_limits<float>::max()};
  for_each_tile_shape([&](CodecId codec, int head_dim) {
    const Rows normal = normal_rows(head_dim, 11);
    std::mt19937 random(12);
    for (const float bad : bad_values) {
      Rows rows = normal;
      rows.row(static_cast<int>(random() % 64))[random() % index(head_dim)] = bad;
      for (const bool is_v : {false, true}) {
        const Tile tile(codec, is_v, rows);
        for (const float x : tile.decoded()) ASSERT_TRUE(std::isnan(x)) << bad;
        for (std::size_t i = 0; i + 1 < tile.codes.size(); ++i) ASSERT_EQ(tile.codes[i], 0);
      }
    }
  });
}

/// Every place of a tile, on every target.
TEST(TileCodec, NoPlaceHidesABadValue) {
  for_each_target([](const char* target) {
    SCOPED_TRACE(target);
    Rows rows = normal_rows(80, 13);
    for (int t = 0; t < kTileTokens; ++t) {
      for (int d = 0; d < 80; ++d) {
        const float good = rows.at(t, d);
        rows.row(t)[d] = kNaN;
        ASSERT_TRUE(std::isnan(Tile(CodecId::kTile4, false, rows).k().base)) << t << " " << d;
        ASSERT_TRUE(std::isnan(Tile(CodecId::kTile4, true, rows).v().scale_base)) << t << " " << d;
        rows.row(t)[d] = good;
      }
    }
  });
}

/// Where the rows lie does not matter: the same values 64 bytes aligned and packed.
TEST(TileCodec, StrideDoesNotMatter) {
  for_each_tile_shape([](CodecId codec, int head_dim) {
    const Rows rows = normal_rows(head_dim, 15);
    std::vector<float> packed;
    for (int t = 0; t < kTileTokens; ++t) {
      packed.insert(packed.end(), rows.row(t), rows.row(t) + head_dim);
    }
    for (const bool is_v : {false, true}) {
      const Tile tile(codec, is_v, rows);
      Tile other(codec, head_dim, is_v);
      (is_v ? encode_v_tile : encode_k_tile)(codec, head_dim, packed.data(), index(head_dim),
                                             other.codes.data(), other.meta.data());
      EXPECT_EQ(tile.codes, other.codes);
      EXPECT_EQ(tile.meta, other.meta);
    }
  });
}

}  // namespace
}  // namespace kvasir::cache::tile_test
