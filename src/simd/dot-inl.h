// Dot products of unsigned weight bytes with int8 activations, one weight row to a lane, exact.
//
// A register of Bytes holds four consecutive columns of as many rows as a float register has lanes:
// byte 4r + i is column i of row r. `Dot` adds up to eight such registers, times the same four
// columns of the activations, into one int32 a lane. Integer sums are exact, so all targets agree.
//
// Included once per target, after simd/targets.h and hwy/foreach_target.h.

// clang-format off
#if defined(KVASIR_SIMD_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_SIMD_DOT_INL_H_
#undef KVASIR_SIMD_DOT_INL_H_
#else
#define KVASIR_SIMD_DOT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "simd/half.h"
#include "simd/math-inl.h"

// Loops over registers must unroll completely, or the registers become an array in memory.
#ifndef KVASIR_UNROLL
#define KVASIR_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace kvasir::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Float and int32 registers of at most the 16 canonical lanes.
using DF32 = hn::CappedTag<float, 16>;
using DI32 = hn::RebindToSigned<DF32>;
using VF32 = hn::Vec<DF32>;
using VI32 = hn::Vec<DI32>;
inline constexpr int kLanes = static_cast<int>(HWY_LANES(float) < 16 ? HWY_LANES(float) : 16);
/// Registers that make up the 16 lanes.
inline constexpr int kRegisters = 16 / kLanes;

#if HWY_TARGET == HWY_SCALAR

struct Bytes {
  std::uint32_t raw;
};
HWY_INLINE Bytes LoadBytes(const std::uint8_t* p) {
  Bytes bytes;
  std::memcpy(&bytes.raw, p, sizeof(bytes.raw));
  return bytes;
}
HWY_INLINE Bytes LowNibbles(Bytes v) { return {v.raw & 0x0F0F0F0Fu}; }
HWY_INLINE Bytes HighNibbles(Bytes v) { return {v.raw >> 4 & 0x0F0F0F0Fu}; }
HWY_INLINE Bytes BroadcastQuad(const std::int8_t* p) {
  return LoadBytes(reinterpret_cast<const std::uint8_t*>(p));
}

#else

using DU8 = hn::Repartition<std::uint8_t, DF32>;
using Bytes = hn::Vec<DU8>;

HWY_INLINE Bytes LoadBytes(const std::uint8_t* p) { return hn::LoadU(DU8(), p); }
HWY_INLINE Bytes LowNibbles(Bytes v) { return hn::And(v, hn::Set(DU8(), 15)); }
HWY_INLINE Bytes HighNibbles(Bytes v) { return hn::ShiftRight<4>(v); }
/// The four bytes at `p` in every lane.
HWY_INLINE Bytes BroadcastQuad(const std::int8_t* p) {
  std::int32_t quad;
  std::memcpy(&quad, p, sizeof(quad));
  return hn::BitCast(DU8(), hn::Set(DI32(), quad));
}

#endif  // HWY_SCALAR

constexpr int Log2(int power_of_two) { return power_of_two <= 1 ? 0 : 1 + Log2(power_of_two / 2); }

/// -zero_point * sum(codes), from `*minus_sum` = -sum(codes).
template <int kZeroPoint>
HWY_INLINE VI32 ZeroPointTerm(const std::int32_t* minus_sum) {
  if constexpr (kZeroPoint == 0) {
    return hn::Zero(DI32());
  } else {
    return hn::ShiftLeft<Log2(kZeroPoint)>(hn::Set(DI32(), *minus_sum));
  }
}

// One instance of Dot per way a target multiplies bytes. kBits: 4 (bytes 0..15) or 8 (0..255); the
// dot is that of (byte - kZeroPoint). Activations are -127..127.
//
//   Sum s = start(minus_sum);  s = step(s, prepare(bytes), quad) ...;  VI32 dot = finish(s,
//   minus_sum)

#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX2

/// vpdpbusd: of AVX-512 VNNI, or in AVX2's registers of AVX-VNNI (`use_avx_vnni`).
template <int kBits, int kZeroPoint>
struct VnniDot {
  using Weights = Bytes;
  using Sum = VI32;
  static HWY_INLINE Weights prepare(Bytes stored) { return stored; }
  static HWY_INLINE Sum start(const std::int32_t* minus_sum) {
    return ZeroPointTerm<kZeroPoint>(minus_sum);
  }
  static HWY_INLINE Sum step(Sum sum, Weights weights, Bytes quad) {
    // Not the intrinsics: GCC 12 spills the accumulators of the one (measured: 1.6x), and the other
    // needs a target that Highway does not have.
#if HWY_TARGET == HWY_AVX2
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(weights.raw), "x"(quad.raw));
#else
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(weights.raw), "v"(quad.raw));
#endif
    return sum;
  }
  static HWY_INLINE VI32 finish(Sum sum, const std::int32_t*) { return sum; }
};

#endif

#if HWY_TARGET == HWY_AVX3_DL

template <int kBits, int kZeroPoint>
using Dot = VnniDot<kBits, kZeroPoint>;

#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

// u8 x s8, pairs added in int16. The second operand is the signed one.
HWY_INLINE auto MulPairs(Bytes u8, Bytes s8) {
#if HWY_TARGET == HWY_AVX2
  return hn::Vec256<std::int16_t>{_mm256_maddubs_epi16(u8.raw, s8.raw)};
#else
  return hn::Vec512<std::int16_t>{_mm512_maddubs_epi16(u8.raw, s8.raw)};
#endif
}
using VI16 = decltype(MulPairs(Bytes(), Bytes()));

// Keeps a running sum a running sum: GCC turns a chain of integer adds into a tree and spills all
// its leaves (measured: 1.5x slower).
template <class V>
HWY_INLINE V KeepOrder(V v) {
#if HWY_COMPILER_GCC_ACTUAL
  asm("" : "+v"(v.raw));
#endif
  return v;
}

HWY_INLINE VI32 AddPairs(VI16 v) {
#if HWY_TARGET == HWY_AVX2
  return VI32{_mm256_madd_epi16(v.raw, _mm256_set1_epi16(1))};
#else
  return VI32{_mm512_madd_epi16(v.raw, _mm512_set1_epi16(1))};
#endif
}

template <int kBits, int kZeroPoint>
struct Dot;

// Eight products' pairs fit int16: 8 * 2 * 15 * 127 = 30480.
template <int kZeroPoint>
struct Dot<4, kZeroPoint> {
  using Weights = Bytes;
  using Sum = VI16;
  static HWY_INLINE Weights prepare(Bytes stored) { return stored; }
  static HWY_INLINE Sum start(const std::int32_t*) {
    return hn::Zero(hn::Repartition<std::int16_t, DF32>());
  }
  static HWY_INLINE Sum step(Sum sum, Weights weights, Bytes quad) {
    return KeepOrder(hn::Add(sum, MulPairs(weights, quad)));
  }
  static HWY_INLINE VI32 finish(Sum sum, const std::int32_t* minus_sum) {
    return hn::Add(AddPairs(sum), ZeroPointTerm<kZeroPoint>(minus_sum));
  }
};

// |w| * (sign(w) * a): one pair fits int16, 2 * 128 * 127 = 32512, two would not.
template <>
struct Dot<8, 128> {
  using Sum = VI32;
  struct Weights {
    Bytes magnitude;
#if HWY_TARGET == HWY_AVX2
    Bytes value;
#else
    __mmask64 negative;
#endif
  };
  static HWY_INLINE Weights prepare(Bytes stored) {
    const Bytes value = hn::Xor(stored, hn::Set(DU8(), 128));
#if HWY_TARGET == HWY_AVX2
    return {Bytes{_mm256_abs_epi8(value.raw)}, value};
#else
    return {Bytes{_mm512_abs_epi8(value.raw)}, _mm512_movepi8_mask(value.raw)};
#endif
  }
  static HWY_INLINE Sum start(const std::int32_t*) { return hn::Zero(DI32()); }
  static HWY_INLINE Sum step(Sum sum, Weights weights, Bytes quad) {
#if HWY_TARGET == HWY_AVX2
    const Bytes signed_quad{_mm256_sign_epi8(quad.raw, weights.value.raw)};
#else
    const Bytes signed_quad{
        _mm512_mask_sub_epi8(quad.raw, weights.negative, _mm512_setzero_si512(), quad.raw)};
#endif
    return KeepOrder(hn::Add(sum, AddPairs(MulPairs(weights.magnitude, signed_quad))));
  }
  static HWY_INLINE VI32 finish(Sum sum, const std::int32_t*) { return sum; }
};

#elif HWY_TARGET == HWY_NEON

template <int kBits, int kZeroPoint>
struct Dot {
  using Weights = int8x16_t;
  using Sum = VI32;
  static constexpr int kRemaining = kBits == 8 ? kZeroPoint - 128 : kZeroPoint;  // after prepare
  static HWY_INLINE Weights prepare(Bytes stored) {
    const Bytes value = kBits == 8 ? hn::Xor(stored, hn::Set(DU8(), 128)) : stored;
    return vreinterpretq_s8_u8(value.raw);
  }
  static HWY_INLINE Sum start(const std::int32_t* minus_sum) {
    return ZeroPointTerm<kRemaining>(minus_sum);
  }
  static HWY_INLINE Sum step(Sum sum, Weights weights, Bytes quad) {
    const int8x16_t a = vreinterpretq_s8_u8(quad.raw);
#if defined(__ARM_FEATURE_DOTPROD)
    return Sum(vdotq_s32(sum.raw, weights, a));
#else
    // Pairs of products fit int16: 2 * 128 * 127 = 32512.
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(a));
    const int16x8_t high = vmull_s8(vget_high_s8(weights), vget_high_s8(a));
    return Sum(vpadalq_s16(sum.raw, vpaddq_s16(low, high)));
#endif
  }
  static HWY_INLINE VI32 finish(Sum sum, const std::int32_t*) { return sum; }
};

#elif HWY_TARGET == HWY_SCALAR

template <int kBits, int kZeroPoint>
struct Dot {
  using Weights = Bytes;
  using Sum = std::int32_t;
  static HWY_INLINE Weights prepare(Bytes stored) { return stored; }
  static HWY_INLINE Sum start(const std::int32_t* minus_sum) { return kZeroPoint * *minus_sum; }
  static HWY_INLINE Sum step(Sum sum, Weights weights, Bytes quad) {
    for (int i = 0; i < 4; ++i) {
      sum += static_cast<std::int32_t>(weights.raw >> (8 * i) & 255) *
             static_cast<std::int8_t>(quad.raw >> (8 * i) & 255);
    }
    return sum;
  }
  static HWY_INLINE VI32 finish(Sum sum, const std::int32_t*) { return VI32(sum); }
};

#else
#error "dot-inl.h: no byte dot for this SIMD target"
#endif

/// sum plus the products of four neighbouring bytes each: `positive` in 0..127, `codes` in
/// -127..127. Two pairs of products fit int16: 2 * 127 * 127 = 32258.
HWY_INLINE VI32 DotPositive(VI32 sum, Bytes positive, Bytes codes) {
#if HWY_TARGET == HWY_AVX3_DL
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(positive.raw), "v"(codes.raw));
  return sum;
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return KeepOrder(hn::Add(sum, AddPairs(MulPairs(positive, codes))));
#elif HWY_TARGET == HWY_NEON
  const int8x16_t a = vreinterpretq_s8_u8(positive.raw), b = vreinterpretq_s8_u8(codes.raw);
#if defined(__ARM_FEATURE_DOTPROD)
  return VI32(vdotq_s32(sum.raw, a, b));
#else
  const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
  const int16x8_t high = vmull_s8(vget_high_s8(a), vget_high_s8(b));
  return VI32(vpadalq_s16(sum.raw, vpaddq_s16(low, high)));
#endif
#else
  std::int32_t total = sum.raw;
  for (int i = 0; i < 4; ++i) {
    total += static_cast<std::int32_t>(positive.raw >> (8 * i) & 255) *
             static_cast<std::int8_t>(codes.raw >> (8 * i) & 255);
  }
  return VI32(total);
#endif
}

/// kLanes scales at `p`, stored as f32 or f16.
template <bool kIsF32>
HWY_INLINE VF32 LoadScales(const std::uint8_t* p) {
  if constexpr (kIsF32) {
    return hn::LoadU(DF32(), reinterpret_cast<const float*>(p));
  } else {
#if HWY_TARGET == HWY_SCALAR
    std::uint16_t bits;
    std::memcpy(&bits, p, sizeof(bits));
    return VF32(f16_to_f32(bits));
#else
    const hn::Rebind<hwy::float16_t, DF32> d16;
    return hn::PromoteTo(DF32(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#endif
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::simd
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
