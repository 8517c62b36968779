// f16 and bf16 conversions against an oracle that works in double precision and knows no bit
// tricks.
#include "simd/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace kvasir::simd {
namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

/// The value a finite half stands for, by the definition of the format.
double half_value(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

/// Nearest half, ties to the even code: `value` is scaled to the step of its binade and rounded.
std::uint16_t slow_f32_to_f16(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | 0x7E00 | ((bits_of(value) >> 13) & 0x3FF));
  }
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) return static_cast<std::uint16_t>(sign | 0x7C00);
  int exponent = -14;  // of the step's binade; subnormals share the lowest one
  while (exponent < 15 && magnitude >= std::ldexp(1.0, exponent + 1)) ++exponent;
  const double steps = std::ldexp(magnitude, 10 - exponent);  // exact
  double rounded = std::floor(steps);
  const double rest = steps - rounded;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(rounded, 2.0) == 1.0)) rounded += 1.0;
  // Codes ascend with the value, also across binades: a binade has 1024 codes.
  const double code = rounded + 1024.0 * (exponent + 14);
  return static_cast<std::uint16_t>(sign | static_cast<int>(code));
}

std::uint16_t slow_f32_to_bf16(float value) {
  const std::uint32_t bits = bits_of(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  const std::uint32_t kept = bits >> 16, rest = bits & 0xFFFF;
  const bool up = rest > 0x8000 || (rest == 0x8000 && (kept & 1) == 1);
  return static_cast<std::uint16_t>(kept + (up ? 1 : 0));
}

TEST(Half, EveryHalfHasItsValue) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const float value = f16_to_f32(half);
    ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << i;
    if ((half & 0x7C00) != 0x7C00) {
      ASSERT_EQ(static_cast<double>(value), half_value(half)) << i;
    } else if ((half & 0x3FF) == 0) {
      ASSERT_TRUE(std::isinf(value)) << i;
    } else {
      ASSERT_TRUE(std::isnan(value)) << i;
      ASSERT_EQ(bits_of(value) & 0x00400000u, 0x00400000u) << "quiet, " << i;
    }
  }
}

TEST(Half, EveryHalfComesBack) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const bool is_nan = (half & 0x7C00) == 0x7C00 && (half & 0x3FF) != 0;
    const std::uint16_t expected = is_nan ? static_cast<std::uint16_t>(half | 0x200) : half;
    ASSERT_EQ(f32_to_f16(f16_to_f32(half)), expected) << i;
  }
}

TEST(Half, EveryBFloatComesBack) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bf16 = static_cast<std::uint16_t>(i);
    const bool is_nan = (bf16 & 0x7F80) == 0x7F80 && (bf16 & 0x7F) != 0;
    const std::uint16_t expected = is_nan ? static_cast<std::uint16_t>(bf16 | 0x40) : bf16;
    ASSERT_EQ(bits_of(bf16_to_f32(bf16)), i << 16);
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(bf16)), expected) << i;
  }
}

/// Every f32 within 3 steps of each half and of each midpoint between two halves.
TEST(Half, RoundingBordersOfF16) {
  for (std::uint32_t i = 0; i < 0x7C00; ++i) {
    const double low = half_value(static_cast<std::uint16_t>(i));
    const double high = i == 0x7BFF ? 65536.0 : half_value(static_cast<std::uint16_t>(i + 1));
    for (const double border : {low, (low + high) / 2}) {
      const auto center = static_cast<std::int64_t>(bits_of(static_cast<float>(border)));
      for (std::int64_t near = center - 3; near <= center + 3; ++near) {
        if (near < 0) continue;
        const float value = std::bit_cast<float>(static_cast<std::uint32_t>(near));
        ASSERT_EQ(f32_to_f16(value), slow_f32_to_f16(value)) << value;
        ASSERT_EQ(f32_to_f16(-value), slow_f32_to_f16(-value)) << -value;
      }
    }
  }
}

TEST(Half, RoundingBordersOfBF16) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    for (const std::uint32_t rest : {0x0u, 0x1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float value = std::bit_cast<float>(i << 16 | rest);
      ASSERT_EQ(f32_to_bf16(value), slow_f32_to_bf16(value)) << std::hex << (i << 16 | rest);
    }
  }
}

TEST(Half, RandomBitPatterns) {
  std::mt19937 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    ASSERT_EQ(f32_to_f16(value), slow_f32_to_f16(value)) << std::hex << bits_of(value);
    ASSERT_EQ(f32_to_bf16(value), slow_f32_to_bf16(value)) << std::hex << bits_of(value);
  }
}

TEST(Half, KnownValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static_assert(f32_to_f16(1.0f) == 0x3C00);
  static_assert(f16_to_f32(0x3555) == 0.333251953125f);
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-kInfinity), 0xFC00);
  EXPECT_EQ(f32_to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000) << "a tie goes to even";
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 0x0002) << "a tie goes to even";
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(f32_to_bf16(0x1p-149f), 0x0000);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7F800001u)), 0x7FC0) << "NaN stays NaN";
}

}  // namespace
}  // namespace kvasir::simd
