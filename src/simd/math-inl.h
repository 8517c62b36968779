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

/// x = k ln 2 + r with |r| <= ln 2 / 2. Returns e^r; `shifted` holds `magic` + k, and k in its
/// lowest bits.
///
/// Source: e^r = 1 + r + r^2 q(r), q the degree-4 minimax fit of relative error 3.1e-9 (a Lawson
/// fit, made for this file).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfRemainder(D d, V x, float magic, V& shifted) {
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low mantissa bits.
  shifted = FusedMulAdd(x, hn::Set(d, 1.44269504f), hn::Set(d, magic));
  const V k = hn::Sub(shifted, hn::Set(d, magic));
  V r = FusedNegMulAdd(k, hn::Set(d, 0.693147182f), x);
  r = FusedMulAdd(k, hn::Set(d, 1.90465421e-9f), r);

  V q = hn::Set(d, 0.0013814602f);
  q = FusedMulAdd(q, r, hn::Set(d, 0.008368716f));
  q = FusedMulAdd(q, r, hn::Set(d, 0.04166839f));
  q = FusedMulAdd(q, r, hn::Set(d, 0.16666521f));
  q = FusedMulAdd(q, r, hn::Set(d, 0.49999994f));
  return hn::Add(FusedMulAdd(hn::Mul(r, r), q, r), hn::Set(d, 1.0f));
}

/// k + 127 in the lowest bits of what is added to it, and nothing beside them after a shift by 23:
/// the exponent of 2^k.
inline constexpr float kExponentMagic = 12582912.0f + 127.0f;

/// e * 2^k for x <= 0, `shifted` being kExponentMagic + k; 0 below 2^-126.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ScaleByPower(D d, V x, V e, V shifted) {
  const hn::RebindToUnsigned<D> du;
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3365402f)), hn::Mul(e, power));
}

/// e^x in f32 lanes for x <= 0, within 2 ulp. Results below 2^-126 are 0; e^0 is 1; NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfNegative(D d, V x) {
  V shifted;
  const V e = ExpOfRemainder(d, x, kExponentMagic, shifted);
  return ScaleByPower(d, x, e, shifted);
}

/// The same within 1.1e-4, a twentieth of what rounding to bf16 does, at two thirds of the price.
///
/// Source: degree 3 with e^0 = 1 (a Lawson fit, made for this file).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V CoarseExpOfNegative(D d, V x) {
  const V magic = hn::Set(d, kExponentMagic);
  const V shifted = FusedMulAdd(x, hn::Set(d, 1.44269504f), magic);
  const V r = FusedNegMulAdd(hn::Sub(shifted, magic), hn::Set(d, 0.693147182f), x);
  V e = FusedMulAdd(hn::Set(d, 0.16517982f), r, hn::Set(d, 0.50413048f));
  e = FusedMulAdd(e, r, hn::Set(d, 1.00019586f));
  e = FusedMulAdd(e, r, hn::Set(d, 1.0f));
  return ScaleByPower(d, x, e, shifted);
}

/// e^x in f32 lanes, within 2 ulp, subnormal results included. Below -104: 0 (the true value would
/// round to 0); above 88.73: infinity; NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  constexpr float kMagic = 12582912.0f;
  V shifted;
  const V e = ExpOfRemainder(d, x, kMagic, shifted);

  // 2^k in two factors, so that a subnormal result is rounded once and 2^128 does not overflow
  // early.
  const auto exponent = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, hn::Set(d, kMagic)));
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
