// Rows of int8 codes: the same bytes on every SIMD target, nothing but the written lanes touched,
// errors within half a step, and rows that no code can hold read back as NaN.
#include "cache/codec/coded_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "cache/codec/row_codec.h"
#include "cache/page/geometry.h"
#include "cache/page/paged_kv_view.h"
#include "simd/half.h"
#include "support/simd_targets.h"

namespace kvasir::cache {
namespace {

constexpr CodecId kCodedRows[] = {CodecId::kInt8, CodecId::kInt8G64};
constexpr int kHeadDims[] = {16, 64, 80, 96, 112, 128, 256};
constexpr float kInf = std::numeric_limits<float>::infinity();

std::size_t index(int i) { return static_cast<std::size_t>(i); }

/// Sixteen rows, unaligned, with floats between them that nobody may read.
struct Rows {
  explicit Rows(int d) : head_dim(d), stride(index(d) + 3), values(16 * stride, std::nanf("")) {}
  float* row(int t) { return values.data() + 1 + index(t) * stride; }
  const float* row(int t) const { return values.data() + 1 + index(t) * stride; }
  int head_dim;
  std::size_t stride;
  std::vector<float> values;
};

Rows make_rows(int head_dim, const std::function<float(int t, int d)>& value) {
  Rows rows(head_dim);
  for (int t = 0; t < kStripTokens; ++t) {
    for (int d = 0; d < head_dim; ++d) rows.row(t)[d] = value(t, d);
  }
  return rows;
}

/// Normal values of many magnitudes; some tokens far from zero, some with one loud channel.
Rows mixed_rows(int head_dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  return make_rows(head_dim, [&](int t, int d) {
    const float x = std::ldexp(normal(random), t - 8);
    return t % 3 == 1 ? x + 5.0f : t % 3 == 2 && d == 7 ? 100.0f * x : x;
  });
}

/// One strip's bytes, and one more behind each part, all 0xA5 until they are written.
struct Strip {
  Strip(CodecId c, bool v, int d) : codec(c), is_v(v), head_dim(d) {
    codes.assign(code_bytes(codec, d, kStripTokens) + 1, 0xA5);
    meta.assign(meta_strip_bytes(codec, d, is_v) + 1, 0xA5);
  }
  void write(const Rows& rows, int first_row, int lane, int n) {
    write_coded_strip(codec, is_v, head_dim, rows.row(first_row), rows.stride, lane, n,
                      codes.data(), meta.data());
  }
  std::vector<float> read(int lane) const {
    std::vector<float> row(index(head_dim));
    read_coded_row(codec, is_v, head_dim, codes.data(), meta.data(), lane, row.data());
    return row;
  }
  int lane_of_code(int i) const {
    return is_v ? i / (4 * head_dim) * 4 + i % 4 : i / 4 % kStripTokens;
  }
  static int lane_of_meta(int i) { return i / 2 % kStripTokens; }
  float field(int group, int which, int lane) const {
    const int n_fields = codec == CodecId::kInt8G64 ? 2 : 1;
    std::uint16_t half = 0;
    std::memcpy(&half, meta.data() + ((group * n_fields + which) * kStripTokens + lane) * 2, 2);
    return simd::f16_to_f32(half);
  }
  bool operator==(const Strip&) const = default;

  CodecId codec;
  bool is_v;
  int head_dim;
  std::vector<std::uint8_t> codes, meta;
};

template <class Body>
void for_each_shape(Body body) {
  for (const CodecId codec : kCodedRows) {
    for (const int head_dim : kHeadDims) {
      for (const bool is_v : {false, true}) {
        SCOPED_TRACE(std::string(codec_name(codec)) + (is_v ? " V D" : " K D") +
                     std::to_string(head_dim));
        body(codec, is_v, head_dim);
      }
    }
  }
}

/// Rows of every kind, among them those that no code can hold.
std::vector<Rows> all_kinds(int head_dim) {
  std::vector<Rows> all = {mixed_rows(head_dim, 1), mixed_rows(head_dim, 2)};
  // Halves of steps: what rounding to even is for.
  all.push_back(make_rows(head_dim, [](int t, int d) {
    return d % 64 == 0 ? 127.0f : d % 64 == 1 ? -127.0f : 0.5f * static_cast<float>(d - 3 * t);
  }));
  all.push_back(
      make_rows(head_dim, [](int t, int d) { return (d * 7 + t) % 3 == 0 ? -0.0f : 0.0f; }));
  all.push_back(make_rows(head_dim, [](int t, int d) {
    constexpr float kOdd[] = {0x1p-149f, -0x1p-130f, 1e30f,   -3e38f, 65504.0f, 8.3e6f,
                              8.33e6f,   6e-8f,      -1e-20f, 7e4f,   0x1p-24f, 3e-5f};
    return d == t ? kOdd[t % 12] : d % 5 == 0 ? 0.5f * kOdd[t % 12] : 0.0f;
  }));
  all.push_back(make_rows(head_dim, [&](int t, int d) {
    const float bad = t % 3 == 0 ? std::nanf("") : t % 3 == 1 ? kInf : -kInf;
    return t % 2 == 0 && d == (t * 11) % head_dim ? bad : static_cast<float>(d - t);
  }));
  return all;
}

TEST(CodedRows, SameBytesOnEveryTarget) {
  for_each_shape([](CodecId codec, bool is_v, int head_dim) {
    const std::vector<Rows> all = all_kinds(head_dim);
    std::vector<Strip> first;
    for_each_target([&](const char* target) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        Strip strip(codec, is_v, head_dim);
        strip.write(all[i], 0, 0, kStripTokens);
        if (first.size() == i) first.push_back(strip);
        EXPECT_EQ(strip.codes, first[i].codes) << target << ": kind " << i;
        EXPECT_EQ(strip.meta, first[i].meta) << target << ": kind " << i;
      }
    });
  });
}

TEST(CodedRows, EveryLaneAndLengthWritesItsLanesOnly) {
  for_each_target([](const char* target) {
    for_each_shape([&](CodecId codec, bool is_v, int head_dim) {
      const Rows rows = mixed_rows(head_dim, 3);
      Strip whole(codec, is_v, head_dim);
      whole.write(rows, 0, 0, kStripTokens);
      for (int lane = 0; lane < kStripTokens; ++lane) {
        for (int n = 0; lane + n <= kStripTokens; ++n) {
          Strip strip(codec, is_v, head_dim);
          strip.write(rows, lane, lane, n);
          Strip expected(codec, is_v, head_dim);
          const auto is_written = [&](int at) { return at >= lane && at < lane + n; };
          for (int i = 0; i + 1 < std::ssize(strip.codes); ++i) {
            if (is_written(strip.lane_of_code(i))) expected.codes[index(i)] = whole.codes[index(i)];
          }
          for (int i = 0; i + 1 < std::ssize(strip.meta); ++i) {
            if (is_written(Strip::lane_of_meta(i))) expected.meta[index(i)] = whole.meta[index(i)];
          }
          ASSERT_EQ(strip, expected) << target << ": lane " << lane << ", " << n << " rows";
        }
      }
    });
  });
}

/// The transform in double precision, by its definition: H[i][j] = (-1)^(bits that i and j share).
std::vector<double> hadamard(const float* row, int n) {
  const int block = n & -n;
  std::vector<double> out(index(n), 0.0);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < block; ++j) {
      const int shared = std::popcount(static_cast<unsigned>(i % block & j));
      out[index(i)] += (shared % 2 == 0 ? 1.0 : -1.0) * double{row[i / block * block + j]};
    }
    out[index(i)] /= std::sqrt(static_cast<double>(block));
  }
  return out;
}

/// An f16's rounding error: half a unit in the last of 11 bits, and of 2^-24 below normal numbers.
double f16_error(double x) { return std::max(std::abs(x) * 0x1p-11, 0x1p-25); }

/// Half a step; what a scale that was rounded down cuts off of the greatest values; f32 rounding of
/// some operations on values of at most `most`.
double code_error(double most, double scale) {
  const double cut = std::max(0.0, most - 127 * scale);
  EXPECT_LE(cut, 127 * f16_error(most / 127) * 1.001);
  return 0.5 * scale + cut + 0x1p-20 * most;
}

TEST(CodedRows, ErrorsStayWithinHalfAStep) {
  for_each_shape([](CodecId codec, bool is_v, int head_dim) {
    std::vector<Rows> all = {mixed_rows(head_dim, 4), mixed_rows(head_dim, 5)};
    for (const float tiny : {1e-4f, 3e-5f, 1e-6f, 1e-7f, 1e-41f}) {
      const Rows& normal = all[0];
      all.push_back(make_rows(head_dim, [&](int t, int d) { return tiny * normal.row(t)[d]; }));
    }
    all.push_back(make_rows(head_dim, [](int t, int) { return static_cast<float>(t) - 8.0f; }));
    all.push_back(make_rows(head_dim, [](int, int) { return 0.0f; }));
    for (std::size_t kind = 0; kind < all.size(); ++kind) {
      Strip strip(codec, is_v, head_dim);
      strip.write(all[kind], 0, 0, kStripTokens);
      for (int t = 0; t < kStripTokens; ++t) {
        const float* x = all[kind].row(t);
        std::vector<double> want(x, x + head_dim);
        if (codec == CodecId::kInt8) want = hadamard(x, head_dim);
        std::vector<float> got(index(head_dim));
        read_stored_row(codec, is_v, head_dim, strip.codes.data(), strip.meta.data(), t,
                        got.data());
        const int group_dim = codec == CodecId::kInt8 ? head_dim : kGroupChannels;
        for (int first = 0, group = 0; first < head_dim; first += group_dim, ++group) {
          const auto begin = want.begin() + first;
          const auto end = want.begin() + std::min(head_dim, first + group_dim);
          double most = 0.0;
          if (codec == CodecId::kInt8) {
            for (auto at = begin; at != end; ++at) most = std::max(most, std::abs(*at));
          } else {
            const auto [lo, hi] = std::minmax_element(begin, end);
            const double centre = strip.field(group, 1, t);
            ASSERT_NEAR(centre, 0.5 * (*lo + *hi), f16_error(centre) * 1.001);
            most = std::max(*hi - centre, centre - *lo);
          }
          const double scale = strip.field(group, 0, t);
          ASSERT_NEAR(scale, most / 127, 1.001 * f16_error(most / 127) + 0x1p-20 * most);
          const double limit = code_error(most, scale);
          for (auto at = begin; at != end; ++at) {
            ASSERT_NEAR(got[index(static_cast<int>(at - want.begin()))], *at,
                        limit + 0x1p-22 * std::abs(*at))
                << "kind " << kind << ", token " << t << ", channel " << at - want.begin();
          }
        }
        // The model's basis: the transform is orthonormal, so the row's error is as long as before.
        const std::vector<float> row = strip.read(t);
        double stored = 0.0, read = 0.0, length = 0.0;
        for (int d = 0; d < head_dim; ++d) {
          stored += std::pow(double{got[index(d)]} - want[index(d)], 2);
          read += std::pow(double{row[index(d)]} - x[d], 2);
          length += double{x[d]} * x[d];
        }
        ASSERT_NEAR(std::sqrt(read), std::sqrt(stored), 0x1p-20 * std::sqrt(length) + 1e-44);
      }
    }
  });
}

TEST(CodedRows, ZerosAndConstantsAreExact) {
  for_each_shape([](CodecId codec, bool is_v, int head_dim) {
    Strip strip(codec, is_v, head_dim);
    strip.write(make_rows(head_dim, [](int t, int) { return t == 0 ? 0.0f : -0.0f; }), 0, 0, 2);
    for (const int lane : {0, 1}) {
      for (const float x : strip.read(lane)) ASSERT_EQ(x, 0.0f);
    }
    if (codec != CodecId::kInt8G64) return;
    strip.write(make_rows(head_dim, [](int, int) { return -0.375f; }), 0, 2, 1);
    for (const float x : strip.read(2)) ASSERT_EQ(x, -0.375f);
  });
}

/// What cannot be held: of int8 the whole row is NaN, of int8-g64 its group of channels.
TEST(CodedRows, WhatNoCodeHoldsIsNaNAndItsNeighboursAreNot) {
  for_each_target([](const char* target) {
    for_each_shape([&](CodecId codec, bool is_v, int head_dim) {
      const Rows clean = mixed_rows(head_dim, 6);
      Strip expected(codec, is_v, head_dim);
      expected.write(clean, 0, 0, kStripTokens);
      for (const float bad : {std::nanf(""), -std::nanf(""), kInf, -kInf, 1e30f, -3.4e38f}) {
        for (const int channel : {0, 7, head_dim - 1}) {
          Rows rows = clean;
          rows.row(5)[channel] = bad;
          Strip strip(codec, is_v, head_dim);
          strip.write(rows, 0, 0, kStripTokens);
          const std::vector<float> want = expected.read(5), got = strip.read(5);
          const bool is_grouped = codec == CodecId::kInt8G64;
          for (int d = 0; d < head_dim; ++d) {
            const bool is_poisoned = !is_grouped || d / kGroupChannels == channel / kGroupChannels;
            if (is_poisoned) {
              ASSERT_TRUE(std::isnan(strip.field(is_grouped ? d / kGroupChannels : 0, 0, 5)));
              ASSERT_TRUE(std::isnan(got[index(d)])) << target << ": " << bad << " at " << channel;
            } else {
              ASSERT_EQ(got[index(d)], want[index(d)])
                  << target << ": " << bad << " at " << channel;
            }
          }
          for (int i = 0; i < std::ssize(strip.codes); ++i) {
            if (strip.lane_of_code(i) == 5) strip.codes[index(i)] = expected.codes[index(i)];
          }
          for (int i = 0; i + 1 < std::ssize(strip.meta); ++i) {
            if (Strip::lane_of_meta(i) == 5) strip.meta[index(i)] = expected.meta[index(i)];
          }
          ASSERT_EQ(strip, expected) << target << ": " << bad << " touched another lane";
        }
      }
    });
  });
}

/// write_kv over pages: every byte that is not of a written token stays as it was, in both head
/// orders, and every written token has the bytes of a strip of its own.
TEST(CodedRows, PagesHoldTheBytesOfStrips) {
  for_each_shape([](CodecId codec, bool is_v, int head_dim) {
    if (is_v) return;  // K and V at once below
    for (const HeadOrder order : {HeadOrder::kSplit, HeadOrder::kInterleaved}) {
      const PageGeometry geometry = PageGeometry::create({.shape = {2, 3, head_dim},
                                                          .codec_k = codec,
                                                          .codec_v = codec,
                                                          .page_tokens = 32,
                                                          .head_order = order})
                                        .value();
      AlignedBuffer memory(2 * geometry.frame_bytes()), expected(2 * geometry.frame_bytes());
      std::memset(memory.data(), 0xA5, memory.size());
      std::memset(expected.data(), 0xA5, expected.size());
      std::uint8_t* frames[] = {memory.data() + geometry.frame_bytes(), memory.data()};
      PagedKvView view = view_of(geometry, 1);
      view.rows.frames = frames;
      view.n_tokens = 64;
      constexpr int kFirst = 13, kRows = 39;
      std::mt19937 random(7);
      std::normal_distribution<float> normal;
      const std::size_t stride = index(3 * head_dim + 1);
      std::vector<float> k(kRows * stride), v(kRows * stride);
      for (float& x : k) x = normal(random);
      for (float& x : v) x = normal(random);
      write_kv(view, kFirst, kRows, k.data(), v.data(), stride);

      std::uint8_t* other[] = {expected.data() + geometry.frame_bytes(), expected.data()};
      PagedKvView twin = view;
      twin.rows.frames = other;
      for (int t = 0; t < kRows; ++t) {
        const int pos = kFirst + t, strip = pos / 16, lane = pos % 16;
        for (int head = 0; head < 3; ++head) {
          const std::size_t at = index(t) * stride + index(head * head_dim);
          write_coded_strip(codec, false, head_dim, k.data() + at, stride, lane, 1,
                            twin.k_strip(twin.rows, strip, head),
                            twin.k_meta(twin.rows, strip, head));
          write_coded_strip(codec, true, head_dim, v.data() + at, stride, lane, 1,
                            twin.v_strip(twin.rows, strip, head),
                            twin.v_meta(twin.rows, strip, head));
          std::vector<float> row(index(head_dim));
          for (const bool of_v : {false, true}) {
            (of_v ? read_v : read_k)(view, pos, head, row.data());
            const std::vector<float>& source = of_v ? v : k;
            for (int d = 0; d < head_dim; ++d) {
              ASSERT_NEAR(row[index(d)], source[at + index(d)], 0.1) << pos << " " << head;
            }
          }
        }
      }
      ASSERT_EQ(std::memcmp(memory.data(), expected.data(), memory.size()), 0)
          << (order == HeadOrder::kSplit ? "split" : "interleaved");
    }
  });
}

}  // namespace
}  // namespace kvasir::cache
