// IEEE half precision and bfloat16, one value at a time: the definition that every vector kernel
// must agree with bit for bit.
//
// Rounding is to nearest, ties to even, with subnormal results exact. A NaN stays a NaN with its
// sign and its upper payload bits and becomes quiet, which is what F16C and NEON do; so a stored
// byte does not depend on the CPU. (AVX512_BF16's own conversion flushes subnormals: not used.)
// Thread safety: pure functions, given the default floating-point rounding mode.
#pragma once

#include <bit>
#include <cstdint>

namespace kvasir::simd {

/// f16 bits -> f32, exact.
constexpr float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1Fu;
  const std::uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | quiet | mantissa << 13);
  }
  return std::bit_cast<float>(sign | (exponent + (127 - 15)) << 23 | mantissa << 13);
}

/// f32 -> f16 bits; 65520 and above become infinity.
constexpr std::uint16_t f32_to_f16(float value) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  constexpr std::uint32_t kOverflow = 0x477FF000u;        // 65520: halfway from 65504 to 65536
  constexpr std::uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  std::uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (magnitude >= kOverflow) {
    half = 0x7C00u;
  } else if (magnitude < kSmallestNormal) {
    // A step of 0.5's mantissa is 2^-24, the step of f16 subnormals: the addition rounds for us.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u;
  } else {
    // Just under half a step plus the last kept bit: carries up exactly when nearest-even says so.
    const std::uint32_t last_kept = (magnitude >> 13) & 1u;
    half = (magnitude - ((127u - 15u) << 23) + 0xFFFu + last_kept) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

/// bf16 bits -> f32, exact; a signalling NaN keeps its bits.
constexpr float bf16_to_f32(std::uint16_t bf16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

/// f32 -> bf16 bits.
constexpr std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace kvasir::simd
