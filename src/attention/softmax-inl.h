// The softmax of one segment of one row, and the factors that merge two segments.
//
// Included once per target by kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_SOFTMAX_INL_H_
#undef KVASIR_ATTENTION_SOFTMAX_INL_H_
#else
#define KVASIR_ATTENTION_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "attention/lanes-inl.h"
#include "attention/terms-inl.h"
#include "attention/tiles-inl.h"
#include "simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

/// What a record's header holds of the segments merged so far.
struct RecordHeader {
  float maximum;
  float sum;
  float is_used;  ///< 1 or 0
};
static_assert(sizeof(RecordHeader) <= kRecordHeader * sizeof(float));

HWY_INLINE RecordHeader load_header(const float* record) {
  RecordHeader header;
  std::memcpy(&header, record, sizeof(header));
  return header;
}
HWY_INLINE void store_header(float* record, const RecordHeader& header) {
  std::memcpy(record, &header, sizeof(header));
}

/// e^x for x <= 0.
HWY_INLINE float exp_of_negative(float x) {
  const hn::CappedTag<float, 1> tag;
  return hn::GetLane(simd::HWY_NAMESPACE::ExpOfNegative(tag, hn::Set(tag, x)));
}

/// The sum of 16 lanes by one fixed tree: halves are added, 16 -> 8 -> 4 -> 2 -> 1.
HWY_INLINE float sum_of_lanes(const float* lanes) {
  float eight[8], four[4];
  for (int i = 0; i < 8; ++i) eight[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

/// e^x for x <= 0, as exact as factors of values of type V need it.
template <class V>
HWY_INLINE hn::Vec<Tag16> factors_of(hn::Vec<Tag16> x) {
  if constexpr (kIsRounded<V>) return simd::HWY_NAMESPACE::CoarseExpOfNegative(Tag16(), x);
  return simd::HWY_NAMESPACE::ExpOfNegative(Tag16(), x);
}

/// Stores p[t...], a vector of them, as values of type V are weighed with; returns what they then
/// are.
template <class V>
HWY_INLINE hn::Vec<Tag16> store_factors(hn::Vec<Tag16> p, float* scores, int t) {
#if KVASIR_DOT_BF16
  if constexpr (kIsPaired<V>) return store_pairs(p, scores, t);
#endif
  if constexpr (kIsRounded<V>) p = round_to_bf16(Tag16(), p);
  hn::Store(p, Tag16(), scores + t);
  return p;
}

/// Makes scores of tokens [begin, end) final: softcap, and -infinity in the lanes beside them in
/// the first and last strip. Returns the maximum. Shapes    scores: [kSegmentTokens]; only the
/// strips that [begin, end) touches are read
HWY_INLINE float finish_scores(float* HWY_RESTRICT scores, int begin, int end, float softcap) {
  const Tag16 tag;
  using V = hn::Vec<Tag16>;
  const int from = begin / 16 * 16;
  const int to = (end + 15) / 16 * 16;
  if (softcap > 0.0f) {
    const V cap = hn::Set(tag, softcap);
    for (int t = from; t < to; t += kLanes) {
      const V x = hn::Div(hn::Load(tag, scores + t), cap);
      hn::Store(hn::Mul(cap, simd::HWY_NAMESPACE::Tanh(tag, x)), tag, scores + t);
    }
  }
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  std::fill(scores + from, scores + begin, kMasked);
  std::fill(scores + end, scores + to, kMasked);
  V highest = hn::Load(tag, scores + from);
  for (int t = from + kLanes; t < to; t += kLanes) {
    highest = hn::Max(highest, hn::Load(tag, scores + t));
  }
  return hn::GetLane(hn::MaxOfLanes(tag, highest));
}

/// Turns final scores into exp(score - maximum), in place, as values of type V are weighed with.
/// Returns the sum of these, perhaps rounded, factors.
template <class V>
HWY_INLINE float exponentiate(float* scores, int begin, int end, float maximum) {
  const Tag16 tag;
  using Scores = hn::Vec<Tag16>;
  const int from = begin / 16 * 16;
  const int to = (end + 15) / 16 * 16;
  const Scores highest = hn::Set(tag, maximum);
  Scores sum[kRegs];
#pragma GCC unroll kUnroll
  for (int g = 0; g < kRegs; ++g) sum[g] = hn::Zero(tag);
  for (int t = from; t < to; t += 16) {
#pragma GCC unroll kUnroll
    for (int g = 0; g < kRegs; ++g) {
      const float* at = scores + t + g * kLanes;
      const Scores x = hn::Sub(hn::Load(tag, at), highest);
      sum[g] = hn::Add(sum[g], store_factors<V>(factors_of<V>(x), scores, t + g * kLanes));
    }
  }
  HWY_ALIGN float lanes[16];
#pragma GCC unroll kUnroll
  for (int g = 0; g < kRegs; ++g) hn::Store(sum[g], tag, lanes + g * kLanes);
  return sum_of_lanes(lanes);
}

/// How a segment's record is merged into what holds those before it: times `keep`, plus the
/// segment's times `add`. One of the two is 1; the other is `e^exponent` (or 1 as well).
struct MergeFactors {
  float exponent, keep, add;
  /// 0 stands for what `exponential`, of the exponent, is yet to say.
  HWY_INLINE void finish(float exponential) {
    if (keep == 0.0f) keep = exponential;
    if (add == 0.0f) add = exponential;
  }
};

/// Raises the header's maximum to the segment's. The factors are to be finished.
HWY_INLINE MergeFactors merge_maximum(RecordHeader& header, float maximum) {
  const float higher = std::max(header.maximum, maximum);
  const MergeFactors factors = {std::min(header.maximum, maximum) - higher,
                                header.maximum == higher ? 1.0f : 0.0f,
                                maximum == higher ? 1.0f : 0.0f};
  header.maximum = higher;
  return factors;
}

HWY_INLINE void merge_sum(RecordHeader& header, float sum, const MergeFactors& factors) {
  const hn::CappedTag<float, 1> tag;
  header.sum = hn::GetLane(simd::HWY_NAMESPACE::FusedMulAdd(
      hn::Set(tag, sum), hn::Set(tag, factors.add), hn::Set(tag, header.sum * factors.keep)));
}

/// Merges a segment's maximum and sum into `header` and says by what to scale the values.
HWY_INLINE void merge_headers(RecordHeader& header, const RecordHeader& segment, Row& row) {
  row.is_first = header.is_used == 0.0f;
  if (row.is_first) {
    header = segment;
    return;
  }
  MergeFactors factors = merge_maximum(header, segment.maximum);
  factors.finish(exp_of_negative(factors.exponent));
  merge_sum(header, segment.sum, factors);
  row.keep = factors.keep;
  row.add = factors.add;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
