// From scores to factors of V in codes: exp times the scale of each token's codes, in 14 bits
// relative to the largest of these scales, which are two planes of 7.
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

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/codes-inl.h"
#include "attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

inline constexpr int kMaxFactor = (1 << 14) - 1;
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// What codes of V are worth, of one kv head and group of channels: x = scale * code + centre.
struct ValueScales {
  bool has_centre = false;
  HWY_ALIGN float scale[kSegmentTokens];
  HWY_ALIGN float centre[kSegmentTokens];
};

/// The same of the tokens [begin, end) that some rows see, 0 beside them up to whole strips; scales
/// relative to the largest, which becomes kMaxFactor.
struct SeenScales : ValueScales {
  int begin = -1, end = -1;
  float unit = 0.0f;  ///< of a factor's code; NaN if some scale is not finite
};

/// Makes the scales in `seen`, whatever they were loaded from, those of tokens [begin, end).
HWY_INLINE void see_scales(int begin, int end, SeenScales& seen) {
  seen.begin = begin;
  seen.end = end;
  const int from = begin / 16 * 16, to = (end + 15) / 16 * 16;
  for (float* scales : {seen.scale, seen.centre}) {
    std::fill(scales + from, scales + begin, 0.0f);
    std::fill(scales + end, scales + to, 0.0f);
    if (!seen.has_centre) break;
  }
  const Tag16 tag;
  const float most = largest_magnitude(seen.scale + from, to - from);
  const bool is_finite = std::isfinite(most);
  seen.unit = is_finite ? most / kMaxFactor : kNaN;
  const auto inverse = hn::Set(tag, most > 0.0f && is_finite ? kMaxFactor / most : 0.0f);
  for (int t = from; t < to; t += kLanes) {
    hn::Store(hn::Mul(hn::Load(tag, seen.scale + t), inverse), tag, seen.scale + t);
  }
}

/// The same from those of a whole segment.
HWY_INLINE void see_scales(const ValueScales& scales, int begin, int end, SeenScales& seen) {
  const int from = begin / 16 * 16, to = (end + 15) / 16 * 16;
  seen.has_centre = scales.has_centre;
  std::copy(scales.scale + from, scales.scale + to, seen.scale + from);
  if (scales.has_centre) std::copy(scales.centre + from, scales.centre + to, seen.centre + from);
  see_scales(begin, end, seen);
}

/// Stores the lowest byte of each number.
template <class V>
HWY_INLINE void store_low_bytes(V numbers, std::uint8_t* out) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(numbers.raw));
#else
  using D = hn::DFromV<V>;
  const hn::Rebind<std::uint8_t, D> t8;
  hn::StoreU(hn::TruncateTo(t8, hn::BitCast(hn::RebindToUnsigned<D>(), numbers)), t8, out);
#endif
}

struct FactorSums {
  float exponents = 0.0f;
  float centres = 0.0f;  ///< exponents times centres
};

/// Scores of a row become codes of factors: exp(score - maximum) times scale. Writes the planes of
/// the strips that it sees. With kKeepsExponents they take the scores' place, for another group of
/// channels; with kHasExponents they are what is there.
template <bool kHasCentre, bool kKeepsExponents, bool kHasExponents>
HWY_NOINLINE FactorSums write_factors(float* HWY_RESTRICT scores, float maximum,
                                      const SeenScales& seen, FetchAhead& fetch,
                                      std::uint8_t* HWY_RESTRICT planes) {
  const Tag16 tag;
  const hn::RebindToSigned<Tag16> ti;
  using V = hn::Vec<Tag16>;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to nearest even
  const int from = seen.begin / 16 * 16, to = (seen.end + 15) / 16 * 16;
  const V highest = hn::Set(tag, maximum);
  V sum[kRegs], centre[kRegs];
#pragma GCC unroll kUnroll
  for (int g = 0; g < kRegs; ++g) sum[g] = centre[g] = hn::Zero(tag);
  for (int t = from; t < to; t += 16) {
    std::uint8_t* out = planes + 2 * t;
    fetch.lines<1>();
#pragma GCC unroll kUnroll
    for (int g = 0; g < kRegs; ++g, out += kLanes) {
      const int at = t + g * kLanes;
      V e = hn::Load(tag, scores + at);
      if constexpr (!kHasExponents) {
        e = sn::CoarseExpOfNegative(tag, hn::Sub(e, highest));
        sum[g] = hn::Add(sum[g], e);
        if constexpr (kKeepsExponents) hn::Store(e, tag, scores + at);
      }
      if constexpr (kHasCentre) {
        centre[g] = sn::FusedMulAdd(e, hn::Load(tag, seen.centre + at), centre[g]);
      }
      const V rounded = sn::FusedMulAdd(e, hn::Load(tag, seen.scale + at), hn::Set(tag, kMagic));
      const auto code = hn::And(hn::BitCast(ti, rounded), hn::Set(ti, kMaxFactor));
      store_low_bytes(hn::ShiftRight<7>(code), out);
      store_low_bytes(hn::And(code, hn::Set(ti, 127)), out + 16);
    }
  }
  HWY_ALIGN float lanes[16];
  const auto sum_of = [&](const V* parts) {
#pragma GCC unroll kUnroll
    for (int g = 0; g < kRegs; ++g) hn::Store(parts[g], tag, lanes + g * kLanes);
    return sum_of_lanes(lanes);
  };
  return {kHasExponents ? 0.0f : sum_of(sum), kHasCentre ? sum_of(centre) : 0.0f};
}

using WriteFactors = FactorSums (*)(float*, float, const SeenScales&, FetchAhead&, std::uint8_t*);

/// `group` of `n_groups`.
HWY_INLINE WriteFactors choose_write_factors(bool has_centre, int group, int n_groups) {
  if (group > 0) {
    return has_centre ? write_factors<true, false, true> : write_factors<false, false, true>;
  }
  if (n_groups > 1) {
    return has_centre ? write_factors<true, true, false> : write_factors<false, true, false>;
  }
  return has_centre ? write_factors<true, false, false> : write_factors<false, false, false>;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
