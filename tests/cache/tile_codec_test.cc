// Tiles: the same bytes on every SIMD target, the documented bit positions, and errors within what
// steps and scales allow.
#include "cache/codec/tile_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/simd_targets.h"

namespace kvasir::cache {
namespace {

constexpr CodecId kCodecs[] = {CodecId::kTile3, CodecId::kTile4, CodecId::kTile5};
constexpr int kHeadDims[] = {16, 64, 80, 96, 112, 128, 256};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::size_t index(int i) { return static_cast<std::size_t>(i); }

/// Rows of a tile, unaligned and with floats between them that no encoder may read.
struct Rows {
  explicit Rows(int d) : head_dim(d), row_stride(index(d) + 3), values(64 * (index(d) + 3), kNaN) {
    for (int t = 0; t < kTileTokens; ++t) std::fill_n(row(t), head_dim, 0.0f);
  }
  float* row(int t) { return values.data() + 1 + index(t) * row_stride; }
  const float* row(int t) const { return values.data() + 1 + index(t) * row_stride; }
  float at(int t, int d) const { return row(t)[d]; }

  int head_dim;
  std::size_t row_stride;
  std::vector<float> values;
};

Rows make_rows(int head_dim, const std::function<float(int t, int d)>& value) {
  Rows rows(head_dim);
  for (int t = 0; t < kTileTokens; ++t) {
    for (int d = 0; d < head_dim; ++d) rows.row(t)[d] = value(t, d);
  }
  return rows;
}

Rows normal_rows(int head_dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  return make_rows(head_dim, [&](int, int) { return normal(random); });
}

struct Case {
  std::string name;
  Rows rows;
};

/// Tiles that are finite and not zero.
std::vector<Case> cases(int head_dim) {
  const Rows normal = normal_rows(head_dim, static_cast<unsigned>(head_dim));
  const auto changed = [&](const std::function<float(float, int, int)>& change) {
    return make_rows(head_dim, [&](int t, int d) { return change(normal.at(t, d), t, d); });
  };
  return {
      {"normal", normal},
      {"loud channels", changed([](float x, int, int d) { return d % 7 == 3 ? 40 * x + 25 : x; })},
      {"loud tokens", changed([](float x, int t, int) { return t % 9 == 4 ? 300 * x : x; })},
      {"far from zero", changed([](float x, int t, int d) { return 0.01f * x + 5 * (t % 3) + d; })},
      {"one loud value", changed([](float x, int t, int d) { return t + d == 20 ? 1e6f : x; })},
      {"one zero token", changed([](float x, int t, int) { return t == 17 ? 0.0f : x; })},
      {"one token", changed([](float x, int t, int) { return t == 63 ? x : 0.0f; })},
      {"one value", changed([](float, int t, int d) { return t == 5 && d == 11 ? -3.0f : 0.0f; })},
      {"constant", changed([](float, int, int) { return -0.37f; })},
      {"flat channels", changed([](float x, int, int d) { return d % 2 == 0 ? x : 0.5f; })},
      {"flat tokens", changed([](float x, int t, int) { return t % 2 == 0 ? x : 0.3f * t; })},
      {"spread", changed([](float x, int t, int d) { return std::ldexp(x, (t * 5 + d) % 60); })},
      {"huge", changed([](float x, int, int) { return 1e30f * x; })},
      {"tiny", changed([](float x, int, int) { return 1e-29f * x; })},
      {"some subnormal", changed([](float x, int t, int) { return t < 60 ? 1e-40f * x : x; })},
  };
}

/// A tile's bytes. Bytes behind its end are checked to stay as they were.
struct Tile {
  Tile(CodecId codec_id, int d, bool v) : codec(codec_id), head_dim(d), is_v(v) {
    codes.assign(tile_code_bytes(codec, head_dim) + 1, 0xA5);
    meta.assign(tile_meta_bytes(codec, head_dim, is_v) + 1, 0xA5);
  }
  Tile(CodecId codec_id, bool v, const Rows& rows) : Tile(codec_id, rows.head_dim, v) {
    (v ? encode_v_tile : encode_k_tile)(codec, head_dim, rows.row(0), rows.row_stride, codes.data(),
                                        meta.data());
    EXPECT_EQ(codes.back(), 0xA5);
    EXPECT_EQ(meta.back(), 0xA5);
  }
  std::vector<float> decoded() const {
    std::vector<float> rows(index(kTileTokens * head_dim));
    (is_v ? decode_v_tile : decode_k_tile)(codec, head_dim, codes.data(), meta.data(), rows.data());
    return rows;
  }
  KTileMeta k() const { return KTileMeta(head_dim, meta.data()); }
  VTileMeta v() const { return VTileMeta(meta.data()); }
  int max_code() const { return (1 << codec_bits(codec)) - 1; }
  /// The code of a value, from the 8-bit form.
  int code(int t, int d) const {
    if (forms.empty()) {
      forms.resize(index(kTileTokens * head_dim));
      if (is_v) {
        unpack_v_tile_codes(codec, head_dim, codes.data(),
                            reinterpret_cast<std::int8_t*>(forms.data()));
      } else {
        unpack_k_tile_codes(codec, head_dim, codes.data(), forms.data());
      }
    }
    if (!is_v) return forms[index(((t / 16 * head_dim / 4 + d / 4) * 16 + t % 16) * 4 + d % 4)];
    const auto v8 = static_cast<std::int8_t>(forms[index((t / 4 * head_dim + d) * 4 + t % 4)]);
    return (v8 + 128) >> (8 - codec_bits(codec));
  }

  CodecId codec;
  int head_dim;
  bool is_v;
  std::vector<std::uint8_t> codes, meta;
  mutable std::vector<std::uint8_t> forms;
};

template <class Body>
void for_each_shape(Body&& body) {
  for (const int head_dim : kHeadDims) {
    for (const CodecId codec : kCodecs) {
      SCOPED_TRACE(std::string(codec_name(codec)) + " D" + std::to_string(head_dim));
      body(codec, head_dim);
    }
  }
}

TEST(TileCodec, SizesAreThoseOfTheFormat) {
  EXPECT_EQ(tile_code_bytes(CodecId::kTile4, 64), 64u * 64 / 2);
  EXPECT_EQ(tile_code_bytes(CodecId::kTile3, 80), 64u * 80 * 3 / 8);
  EXPECT_EQ(tile_meta_bytes(CodecId::kTile4, 64, false), 2u * 64 + 64 + 8);
  EXPECT_EQ(tile_meta_bytes(CodecId::kTile5, 80, true), 2u * 64 + 8);
  for (const CodecId codec : kCodecs) {
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
  for_each_shape([](CodecId codec, int head_dim) {
    std::vector<Case> all = cases(head_dim);
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
  for_each_shape([](CodecId codec, int head_dim) {
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
  for_each_shape([](CodecId codec, int head_dim) {
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
  for_each_shape([](CodecId codec, int head_dim) {
    for (const Case& test : cases(head_dim)) {
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
  for_each_shape([](CodecId codec, int head_dim) {
    for (const Case& test : cases(head_dim)) {
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

}  // namespace
}  // namespace kvasir::cache
