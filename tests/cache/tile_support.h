// Tiles of many kinds and their encoded bytes, for the tests of tile codecs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cache/codec/tile_codec.h"

namespace kvasir::cache::tile_test {

inline constexpr CodecId kTileCodecs[] = {CodecId::kTile3, CodecId::kTile4, CodecId::kTile5};
inline constexpr int kTileHeadDims[] = {16, 64, 80, 96, 112, 128, 256};
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline std::size_t index(int i) { return static_cast<std::size_t>(i); }

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

inline Rows make_rows(int head_dim, const std::function<float(int t, int d)>& value) {
  Rows rows(head_dim);
  for (int t = 0; t < kTileTokens; ++t) {
    for (int d = 0; d < head_dim; ++d) rows.row(t)[d] = value(t, d);
  }
  return rows;
}

inline Rows normal_rows(int head_dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  return make_rows(head_dim, [&](int, int) { return normal(random); });
}

struct Case {
  std::string name;
  Rows rows;
};

/// Tiles that are finite and not zero.
inline std::vector<Case> tile_cases(int head_dim) {
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
      {"as huge as can be", changed([](float x, int, int) { return std::ldexp(x, 117); })},
      {"as tiny as can be", changed([](float x, int, int) { return std::ldexp(x, -101); })},
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
void for_each_tile_shape(Body&& body) {
  for (const int head_dim : kTileHeadDims) {
    for (const CodecId codec : kTileCodecs) {
      SCOPED_TRACE(std::string(codec_name(codec)) + " D" + std::to_string(head_dim));
      body(codec, head_dim);
    }
  }
}

}  // namespace kvasir::cache::tile_test
