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

/// Transforms `row` in place. Butterflies go from stride 1 to half a block; an element is one sum
/// or difference a step, whatever the vectors, so targets agree. Requires: n a multiple of 8.
HWY_INLINE void Hadamard(float* HWY_RESTRICT row, int n) {
  const int block = n & -n;
  const float scale = 1.0f / std::sqrt(static_cast<float>(block));
  const hn::CappedTag<float, 16> tag;
  constexpr int kVec = static_cast<int>(hn::MaxLanes(tag));
  for (int first = 0; first < n; first += block) {
    float* HWY_RESTRICT x = row + first;
    int stride = 1;
    for (; stride < kVec && stride < block; stride *= 2) {
      for (int i = 0; i < block; i += 2 * stride) {
        for (int j = i; j < i + stride; ++j) {
          const float a = x[j], b = x[j + stride];
          x[j] = a + b;
          x[j + stride] = a - b;
        }
      }
    }
    for (; stride < block; stride *= 2) {
      for (int i = 0; i < block; i += 2 * stride) {
        for (int j = i; j < i + stride; j += kVec) {
          const auto a = hn::LoadU(tag, x + j);
          const auto b = hn::LoadU(tag, x + j + stride);
          hn::StoreU(hn::Add(a, b), tag, x + j);
          hn::StoreU(hn::Sub(a, b), tag, x + j + stride);
        }
      }
    }
    for (int i = 0; i < block; ++i) x[i] *= scale;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::simd
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
