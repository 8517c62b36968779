// A row times a square matrix. The same bits on every SIMD target.
//
// Included once per target, after simd/targets.h and hwy/foreach_target.h.

// clang-format off
#if defined(KVASIR_SIMD_MULTIPLY_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_SIMD_MULTIPLY_ROW_INL_H_
#undef KVASIR_SIMD_MULTIPLY_ROW_INL_H_
#else
#define KVASIR_SIMD_MULTIPLY_ROW_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Elements [first, first + kVecs vectors).
template <int kVecs>
HWY_INLINE void MultiplyRowPanel(const float* HWY_RESTRICT row, const float* HWY_RESTRICT matrix,
                                 int n, int first, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 16> tag;
  constexpr int kVec = static_cast<int>(hn::MaxLanes(tag));
  hn::Vec<decltype(tag)> sums[kVecs];
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) sums[v] = hn::Zero(tag);
  const float* HWY_RESTRICT at = matrix + first;
  for (int i = 0; i < n; ++i, at += n) {
    const auto value = hn::Set(tag, row[i]);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      sums[v] = FusedMulAdd(value, hn::LoadU(tag, at + v * kVec), sums[v]);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVecs; ++v) hn::StoreU(sums[v], tag, out + first + v * kVec);
}

/// out[j] = sum over i of row[i] * matrix[i][j]: a chain of fused multiply-adds over ascending i
/// from zero, whatever the vectors, so targets agree.
///
/// Shapes    row, out [n]; matrix [n][n]
/// Requires  n a multiple of 16
HWY_INLINE void MultiplyRow(const float* HWY_RESTRICT row, const float* HWY_RESTRICT matrix, int n,
                            float* HWY_RESTRICT out) {
  constexpr int kVec = static_cast<int>(hn::MaxLanes(hn::CappedTag<float, 16>()));
  // Enough chains side by side to hide the latency of one.
  constexpr int kWide = kVec == 1 ? 16 : 64;
  int j = 0;
  for (; j + kWide <= n; j += kWide) MultiplyRowPanel<kWide / kVec>(row, matrix, n, j, out);
  for (; j < n; j += 16) MultiplyRowPanel<16 / kVec>(row, matrix, n, j, out);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::simd
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
