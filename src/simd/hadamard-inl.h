// The fast Walsh-Hadamard transform of a row, in blocks of the largest power of two that divides
// its length: orthonormal and its own inverse, up to rounding. The same bits on every SIMD target.
//
// Included once per target, after simd/targets.h and hwy/foreach_target.h.

// clang-format off
#if defined(KVASIR_SIMD_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_SIMD_HADAMARD_INL_H_
#undef KVASIR_SIMD_HADAMARD_INL_H_
#else
#define KVASIR_SIMD_HADAMARD_INL_H_
#endif

#include <cmath>
#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// One step on a block: sums of neighbours to its first half, differences to its second. As many
/// steps as the block's length has bits are the transform, in the natural order of its rows.
/// Source: Pease, J. ACM 15(2), 1968.
HWY_INLINE void HadamardStep(const float* HWY_RESTRICT from, int block, float* HWY_RESTRICT to) {
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 16> tag;
  constexpr int kVec = static_cast<int>(hn::MaxLanes(tag));
  if (block >= 2 * kVec) {
    for (int i = 0; i < block; i += 2 * kVec) {
      const auto a = hn::LoadU(tag, from + i);
      const auto b = hn::LoadU(tag, from + i + kVec);
      const auto even = hn::ConcatEven(tag, b, a);
      const auto odd = hn::ConcatOdd(tag, b, a);
      hn::StoreU(hn::Add(even, odd), tag, to + i / 2);
      hn::StoreU(hn::Sub(even, odd), tag, to + (block + i) / 2);
    }
    return;
  }
#endif
  for (int i = 0; i < block / 2; ++i) {
    to[i] = from[2 * i] + from[2 * i + 1];
    to[block / 2 + i] = from[2 * i] - from[2 * i + 1];
  }
}

#if HWY_TARGET != HWY_SCALAR
/// A block of kVecs vectors, in registers.
template <int kVecs>
HWY_INLINE void HadamardInRegisters(const float* from, float scale, float* to) {
  const hn::CappedTag<float, 16> tag;
  constexpr int kVec = static_cast<int>(hn::MaxLanes(tag));
  hn::Vec<decltype(tag)> v[kVecs], w[kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) v[i] = hn::LoadU(tag, from + i * kVec);
#pragma GCC unroll 8
  for (int half = 1; half < kVecs * kVec; half *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kVecs / 2; ++i) {
      const auto even = hn::ConcatEven(tag, v[2 * i + 1], v[2 * i]);
      const auto odd = hn::ConcatOdd(tag, v[2 * i + 1], v[2 * i]);
      w[i] = hn::Add(even, odd);
      w[kVecs / 2 + i] = hn::Sub(even, odd);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) v[i] = w[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) {
    hn::StoreU(hn::Mul(v[i], hn::Set(tag, scale)), tag, to + i * kVec);
  }
}
#endif

/// to = factor times the transform of `from`, which may be the same row. An element is one sum or
/// difference a step, whatever the vectors, so targets agree. Requires: n at most 512.
HWY_INLINE void Hadamard(const float* from, int n, float factor, float* to) {
  const int block = n & -n;
  const float scale = factor / std::sqrt(static_cast<float>(block));
  HWY_ALIGN float other[512];
  for (int first = 0; first < n; first += block) {
    const float* source = from + first;
#if HWY_TARGET != HWY_SCALAR
    constexpr int kVec = static_cast<int>(hn::MaxLanes(hn::CappedTag<float, 16>()));
    if (block == 2 * kVec) {
      HadamardInRegisters<2>(source, scale, to + first);
      continue;
    }
    if (block == 4 * kVec) {
      HadamardInRegisters<4>(source, scale, to + first);
      continue;
    }
    if (block == 8 * kVec) {
      HadamardInRegisters<8>(source, scale, to + first);
      continue;
    }
#endif
    float* target = other;
    for (int half = 1; half < block; half *= 2) {
      HadamardStep(source, block, target);
      source = target;
      target = target == other ? to + first : other;
    }
    for (int i = 0; i < block; ++i) to[first + i] = source[i] * scale;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::simd
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
