// Fused multiply-add, exp and tanh on float vectors: the same bits on every SIMD target.
//
// Included once per target, after simd/targets.h and hwy/foreach_target.h.

// clang-format off
#if defined(KVASIR_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_SIMD_MATH_INL_H_
#undef KVASIR_SIMD_MATH_INL_H_
#else
#define KVASIR_SIMD_MATH_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// mul * x + add, rounded once on every target (hn::MulAdd rounds twice where there is no FMA).
template <class V>
HWY_INLINE V FusedMulAdd(V mul, V x, V add) {
#if HWY_TARGET == HWY_SCALAR
  return V(std::fma(mul.raw, x.raw, add.raw));
#else
  return hn::MulAdd(mul, x, add);
#endif
}

/// add - mul * x, rounded once on every target.
template <class V>
HWY_INLINE V FusedNegMulAdd(V mul, V x, V add) {
#if HWY_TARGET == HWY_SCALAR
  return V(std::fma(-mul.raw, x.raw, add.raw));
#else
  return hn::NegMulAdd(mul, x, add);
#endif
}

/// e^x in f32 lanes, within 2 ulp, subnormal results included. Below -104: 0 (the true value would
/// round to 0); above 88.73: infinity; NaN stays NaN.
///
/// Source: x = k ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q the degree-4 minimax fit of
/// relative error 3.1e-9 (a Lawson fit, made for this file).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low mantissa bits.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = FusedMulAdd(x, hn::Set(d, 1.44269504f), magic);
  const V k = hn::Sub(shifted, magic);
  V r = FusedNegMulAdd(k, hn::Set(d, 0.693147182f), x);
  r = FusedMulAdd(k, hn::Set(d, 1.90465421e-9f), r);

  V q = hn::Set(d, 0.0013814602f);
  q = FusedMulAdd(q, r, hn::Set(d, 0.008368716f));
  q = FusedMulAdd(q, r, hn::Set(d, 0.04166839f));
  q = FusedMulAdd(q, r, hn::Set(d, 0.16666521f));
  q = FusedMulAdd(q, r, hn::Set(d, 0.49999994f));
  const V e = hn::Add(FusedMulAdd(hn::Mul(r, r), q, r), hn::Set(d, 1.0f));

  // 2^k in two factors, so that a subnormal result is rounded once and 2^128 does not overflow
  // early.
  const auto exponent = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
  const auto half = hn::ShiftRight<1>(exponent);
  const auto bias = hn::Set(di, 127);
  const V scale_a = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V scale_b = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
  const V result = hn::Mul(hn::Mul(e, scale_a), scale_b);

  const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const V bounded = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.7228394f)), infinity, result);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -104.0f)), bounded);
}

/// tanh(x) in f32 lanes, within 3 ulp; NaN stays NaN.
///
/// Source: below 0.625 an odd polynomial (minimax, relative error 4.4e-9); above,
/// 1 - 2 / (e^(2|x|) + 1).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V magnitude = hn::Abs(x);
  const V x2 = hn::Mul(x, x);
  V p = hn::Set(d, -0.005704987f);
  p = FusedMulAdd(p, x2, hn::Set(d, 0.020639086f));
  p = FusedMulAdd(p, x2, hn::Set(d, -0.053739715f));
  p = FusedMulAdd(p, x2, hn::Set(d, 0.13331442f));
  p = FusedMulAdd(p, x2, hn::Set(d, -0.3333328f));
  const V small = FusedMulAdd(hn::Mul(p, x2), magnitude, magnitude);

  const V e = Exp(d, hn::Add(magnitude, magnitude));
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  const V result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), small, large);
  return hn::CopySign(result, x);
}

/// 1 / (1 + e^-x) in f32 lanes, within 3 ulp, without overflow for any x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = Exp(d, hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::simd
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
