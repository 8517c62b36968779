// The records of a row's segments become one.
//
// Included once per target by kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_MERGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_MERGE_INL_H_
#undef KVASIR_ATTENTION_MERGE_INL_H_
#else
#define KVASIR_ATTENTION_MERGE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "attention/kernel.h"
#include "attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

/// Records that are merged into one at a time: their factors are one step of `exp`, their values
/// wait in no memory between them.
inline constexpr int kMergedTogether = 16;

/// What is merged into a record, in turn.
struct Merges {
  int n = 0;
  const float* from[kMergedTogether];
  MergeFactors factors[kMergedTogether];
};

/// Merges the headers of the records that hold something into `header`, as merge_headers does.
HWY_INLINE void merge_all_headers(std::span<const float* const> records, RecordHeader& header,
                                  Merges& merges) {
  HWY_ALIGN float exponents[kMergedTogether] = {};
  float sums[kMergedTogether];
  for (const float* record : records) {
    const RecordHeader segment = load_header(record);
    if (segment.is_used == 0.0f) continue;
    merges.factors[merges.n] = merge_maximum(header, segment.maximum);
    exponents[merges.n] = merges.factors[merges.n].exponent;
    sums[merges.n] = segment.sum;
    merges.from[merges.n++] = record;
  }
  const Tag16 tag;
  for (int i = 0; i < kMergedTogether; i += kLanes) {
    const auto x = hn::Load(tag, exponents + i);
    hn::Store(simd::HWY_NAMESPACE::ExpOfNegative(tag, x), tag, exponents + i);
  }
  for (int i = 0; i < merges.n; ++i) {
    merges.factors[i].finish(exponents[i]);
    merge_sum(header, sums[i], merges.factors[i]);
  }
}

/// kVecs vectors of values, from place `first` of each record on.
template <int kVecs>
HWY_INLINE void merge_values(const Merges& merges, int first, float* HWY_RESTRICT into) {
  const Tag16 tag;
  hn::Vec<Tag16> values[kVecs];
#pragma GCC unroll kUnroll
  for (int j = 0; j < kVecs; ++j) values[j] = hn::LoadU(tag, into + first + j * kLanes);
  for (int i = 0; i < merges.n; ++i) {
    const auto keep = hn::Set(tag, merges.factors[i].keep);
    const auto add = hn::Set(tag, merges.factors[i].add);
    const float* from = merges.from[i] + first;
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) {
      values[j] = simd::HWY_NAMESPACE::FusedMulAdd(hn::LoadU(tag, from + j * kLanes), add,
                                                   hn::Mul(values[j], keep));
    }
  }
#pragma GCC unroll kUnroll
  for (int j = 0; j < kVecs; ++j) hn::StoreU(values[j], tag, into + first + j * kLanes);
}

/// Merges `records`, kMergedTogether at most, into `into`, which is of segments before theirs.
HWY_INLINE void merge_records(std::span<const float* const> records, int head_dim, float* into) {
  const auto n_floats = static_cast<int>(record_floats(head_dim));  // whole panels
  while (!records.empty() && load_header(into).is_used == 0.0f) {
    std::memcpy(into, records.front(), static_cast<std::size_t>(n_floats) * sizeof(float));
    records = records.subspan(1);
  }
  Merges merges;
  RecordHeader header = load_header(into);
  merge_all_headers(records, header, merges);
  store_header(into, header);
  constexpr int kVecs = kIsScalar ? 1 : 4;
  int first = kRecordHeader;
  for (; first + kVecs * kLanes <= n_floats; first += kVecs * kLanes) {
    merge_values<kVecs>(merges, first, into);
  }
  for (; first < n_floats; first += kLanes) merge_values<1>(merges, first, into);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
