// Byte dots are exact on every SIMD target, at the extremes as well: nothing saturates.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/dot_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "simd/cpu.h"
#include "simd/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::simd {
namespace HWY_NAMESPACE {

template <class D>
void DotOf(const std::uint8_t* bytes, const std::int8_t* codes, std::int32_t minus_sum,
           std::int32_t* out) {
  for (int r = 0; r < kRegisters; ++r) {
    auto sum = D::start(&minus_sum);
    for (int quad = 0; quad < 8; ++quad) {
      sum = D::step(sum, D::prepare(LoadBytes(bytes + 64 * quad + 4 * kLanes * r)),
                    BroadcastQuad(codes + 4 * quad));
    }
    hn::StoreU(D::finish(sum, &minus_sum), DI32(), out + kLanes * r);
  }
}

template <template <int, int> class D>
void DotBytesBy(int bits, int zero_point, const std::uint8_t* bytes, const std::int8_t* codes,
                std::int32_t minus_sum, std::int32_t* out) {
  if (bits == 8) return DotOf<D<8, 128>>(bytes, codes, minus_sum, out);
  if (zero_point == 0) return DotOf<D<4, 0>>(bytes, codes, minus_sum, out);
  if (zero_point == 4) return DotOf<D<4, 4>>(bytes, codes, minus_sum, out);
  DotOf<D<4, 8>>(bytes, codes, minus_sum, out);
}

/// 32 columns of 16 rows: bytes [8 quads][16 rows][4], codes [32], out [16].
void DotBytes(int bits, int zero_point, const std::uint8_t* bytes, const std::int8_t* codes,
              std::int32_t minus_sum, std::int32_t* out) {
#if HWY_TARGET == HWY_AVX2
  if (use_avx_vnni()) return DotBytesBy<VnniDot>(bits, zero_point, bytes, codes, minus_sum, out);
#endif
  DotBytesBy<Dot>(bits, zero_point, bytes, codes, minus_sum, out);
}

void SplitNibbles(const std::uint8_t* in, std::uint8_t* low, std::uint8_t* high) {
  for (int r = 0; r < kRegisters; ++r) {
    const int at = 4 * kLanes * r;
    const Bytes v = LoadBytes(in + at);
    const Bytes lo = LowNibbles(v), hi = HighNibbles(v);
    std::memcpy(low + at, &lo, 4 * kLanes);
    std::memcpy(high + at, &hi, 4 * kLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "support/simd_targets.h"

namespace kvasir::simd {
namespace {

HWY_EXPORT(DotBytes);
HWY_EXPORT(SplitNibbles);

struct Case {
  std::array<std::uint8_t, 512> bytes;
  std::array<std::int8_t, 32> codes;
};

void expect_exact(const Case& c, int bits, int zero_point) {
  std::int32_t sum = 0;
  for (const std::int8_t q : c.codes) sum += q;
  std::array<std::int32_t, 16> want{};
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 32; ++k) {
      const std::size_t at = static_cast<std::size_t>(k / 4 * 64 + row * 4 + k % 4);
      want[static_cast<std::size_t>(row)] +=
          (c.bytes[at] - zero_point) * c.codes[static_cast<std::size_t>(k)];
    }
  }
  for_each_target([&](const char* target) {
    std::array<std::int32_t, 16> got{};
    HWY_DYNAMIC_DISPATCH(DotBytes)
    (bits, zero_point, c.bytes.data(), c.codes.data(), -sum, got.data());
    EXPECT_EQ(got, want) << target << " bits " << bits << " zero point " << zero_point;
  });
}

constexpr std::array<std::array<int, 2>, 4> kKinds{{{4, 0}, {4, 4}, {4, 8}, {8, 128}}};

TEST(Dot, IsExactOnRandomBytes) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    for (const auto& [bits, zero_point] : kKinds) {
      Case c;
      for (auto& b : c.bytes) b = static_cast<std::uint8_t>(random() & (bits == 4 ? 15 : 255));
      for (auto& q : c.codes) q = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
      expect_exact(c, bits, zero_point);
    }
  }
}

TEST(Dot, DoesNotSaturate) {
  for (const auto& [bits, zero_point] : kKinds) {
    for (const int byte :
         {0, 1, bits == 4 ? 15 : 127, bits == 4 ? 15 : 128, bits == 4 ? 15 : 255}) {
      for (const int code : {-127, 127, 1, 0}) {
        Case c;
        c.bytes.fill(static_cast<std::uint8_t>(byte));
        c.codes.fill(static_cast<std::int8_t>(code));
        expect_exact(c, bits, zero_point);
        for (std::size_t k = 0; k < 32; k += 2) c.codes[k] = static_cast<std::int8_t>(-code);
        expect_exact(c, bits, zero_point);
      }
    }
  }
}

TEST(Dot, NibblesComeApart) {
  std::array<std::uint8_t, 64> in, want_low, want_high;
  for (std::size_t i = 0; i < 64; ++i) {
    in[i] = static_cast<std::uint8_t>(i * 37 + 11);
    want_low[i] = in[i] & 15;
    want_high[i] = in[i] >> 4;
  }
  for_each_target([&](const char* target) {
    std::array<std::uint8_t, 64> low{}, high{};
    HWY_DYNAMIC_DISPATCH(SplitNibbles)(in.data(), low.data(), high.data());
    EXPECT_EQ(low, want_low) << target;
    EXPECT_EQ(high, want_high) << target;
  });
}

}  // namespace
}  // namespace kvasir::simd
#endif  // HWY_ONCE
