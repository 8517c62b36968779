// From scores to factors of V in codes: exp, the scale of each token's codes, and 14 bits of that,
// relative to the segment's largest, in two planes of 7.
//
// Included once per target by coded_kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_FACTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_FACTORS_INL_H_
#undef KVASIR_ATTENTION_FACTORS_INL_H_
#else
#define KVASIR_ATTENTION_FACTORS_INL_H_
#endif

#include <bit>
#include <cstring>

#include "attention/codes-inl.h"
#include "attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

inline constexpr int kMaxFactor = (1 << 14) - 1;

/// What codes of V are worth, of one kv head and group of channels: x = scale * code + centre.
struct ValueScales {
  bool has_centre = false;
  HWY_ALIGN float scale[kSegmentTokens];
  HWY_ALIGN float centre[kSegmentTokens];
};

/// The factors of a vector of tokens: e times their scale, 0 for what is not seen, whatever its
/// scale.
HWY_INLINE hn::Vec<Tag16> scaled(hn::Vec<Tag16> e, const float* scale) {
  const Tag16 tag;
  return hn::IfThenElseZero(hn::Gt(e, hn::Zero(tag)), hn::Mul(e, hn::Load(tag, scale)));
}

struct Factors {
  float largest;      ///< of factors; NaN if one is
  float centre = 0;   ///< sum of e times centre
};

/// The largest factor and the centres' sum of a row whose scores are exponents by now.
HWY_INLINE Factors measure_factors(const float* HWY_RESTRICT exponents, const Row& row,
                                   const ValueScales& scales) {
  const Tag16 tag;
  using V = hn::Vec<Tag16>;
  const int from = row.begin / 16 * 16, to = (row.end + 15) / 16 * 16;
  V largest = hn::Zero(tag), any_nan = hn::Zero(tag);
  V centre[kRegs];
#pragma GCC unroll kUnroll
  for (int g = 0; g < kRegs; ++g) centre[g] = hn::Zero(tag);
  for (int t = from; t < to; t += 16) {
#pragma GCC unroll kUnroll
    for (int g = 0; g < kRegs; ++g) {
      const int at = t + g * kLanes;
      const V e = hn::Load(tag, exponents + at);
      const V factor = scaled(e, scales.scale + at);
      largest = hn::Max(largest, factor);
      any_nan = hn::Add(any_nan, hn::Mul(factor, hn::Zero(tag)));
      if (scales.has_centre) {
        const V seen = hn::IfThenElseZero(hn::Gt(e, hn::Zero(tag)),
                                          hn::Load(tag, scales.centre + at));
        centre[g] = sn::FusedMulAdd(e, seen, centre[g]);
      }
    }
  }
  HWY_ALIGN float lanes[16];
  hn::Store(any_nan, tag, lanes);
  float nan = 0.0f;
  for (int i = 0; i < kLanes; ++i) nan += lanes[i];
  Factors factors{hn::GetLane(hn::MaxOfLanes(tag, largest)) + nan};
  if (scales.has_centre) {
#pragma GCC unroll kUnroll
    for (int g = 0; g < kRegs; ++g) hn::Store(centre[g], tag, lanes + g * kLanes);
    factors.centre = sum_of_lanes(lanes);
  }
  return factors;
}

/// Writes the planes of strips [strip_begin, strip_end), zero where the row sees nothing.
HWY_INLINE void write_planes(const float* HWY_RESTRICT exponents, const Row& row,
                             const ValueScales& scales, float largest, int strip_begin,
                             int strip_end, std::uint8_t* HWY_RESTRICT planes) {
  const Tag16 tag;
  const hn::RebindToSigned<Tag16> ti;
  const hn::Rebind<std::uint8_t, Tag16> t8;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to nearest even
  const int from = row.begin / 16, to = (row.end + 15) / 16;
  const auto inverse = hn::Set(tag, largest > 0.0f ? kMaxFactor / largest : 0.0f);
  for (int strip = strip_begin; strip < strip_end; ++strip) {
    std::uint8_t* out = planes + strip * 32;
    if (strip < from || strip >= to) {
      std::memset(out, 0, 32);
      continue;
    }
#pragma GCC unroll kUnroll
    for (int g = 0; g < kRegs; ++g, out += kLanes) {
      const int at = strip * 16 + g * kLanes;
      const auto e = hn::Load(tag, exponents + at);
      const auto factor = hn::Mul(scaled(e, scales.scale + at), inverse);
      const auto bits = hn::BitCast(ti, hn::Add(factor, hn::Set(tag, kMagic)));
      const auto code = hn::And(bits, hn::Set(ti, kMaxFactor));
      hn::StoreU(hn::DemoteTo(t8, hn::ShiftRight<7>(code)), t8, out);
      hn::StoreU(hn::DemoteTo(t8, hn::And(code, hn::Set(ti, 127))), t8, out + 16);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
