// How neighbouring terms of a sum, channels of K or tokens of V, are multiplied and added.
//
// f32 and f16: one after the other, in f32. bf16: the other factor (q, or the probability) is
// rounded to bf16 too, and of each pair the odd term is added before the even one, with one
// rounding each. That is what VDPBF16PS does to a pair, two FMAs do the same elsewhere
// (docs/numerics.md).
//
// Included once per target by kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_TERMS_INL_H_
#undef KVASIR_ATTENTION_TERMS_INL_H_
#else
#define KVASIR_ATTENTION_TERMS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/lanes-inl.h"
#include "hwy/highway.h"
#include "simd/cpu.h"
#include "simd/math-inl.h"

// Whether this target has kernels for VDPBF16PS, used if the CPU has it.
#undef KVASIR_DOT_BF16
#if HWY_TARGET == HWY_AVX3
#define KVASIR_DOT_BF16 1
#else
#define KVASIR_DOT_BF16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

/// A copy of a bf16 value in f32.
struct RoundedF32 {
  float value;
};
/// bf16 as stored, to be multiplied by VDPBF16PS.
struct DotBF16 {
  std::uint16_t bits;
};
/// A copy of two neighbours of these: the even one in the low half.
struct BF16Pair {
  std::uint32_t bits;
};

template <class T>
inline constexpr bool kIsPaired = std::is_same_v<T, DotBF16> || std::is_same_v<T, BF16Pair>;
template <class T>
inline constexpr bool kIsRounded =
    kIsPaired<T> || std::is_same_v<T, BF16> || std::is_same_v<T, RoundedF32>;

/// What copies of stored values T hold.
template <class T>
using CopyOf = std::conditional_t<std::is_same_v<T, DotBF16>, BF16Pair,
                                  std::conditional_t<std::is_same_v<T, BF16>, RoundedF32, float>>;

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const RoundedF32* HWY_RESTRICT from) {
  return hn::LoadU(d, &from->value);
}

/// Steps that the two terms of a pair take.
template <class T>
inline constexpr int kSteps = kIsPaired<T> ? 1 : 2;

/// The term that step `step` adds of the pair that begins with term `even`; paired: the first of
/// the two that it adds.
template <class T>
constexpr int term_of(int even, int step) {
  return even + (kIsRounded<T> && !kIsPaired<T> ? 1 - step : step);
}

/// Where the factor of term `term` lies among those of a row: paired, two are packed in a float.
template <class T>
constexpr int factor_of(int term) {
  return kIsPaired<T> ? term / 2 : term;
}

/// Rounded to bf16 by nearest even; subnormals become zero, NaN stays.
template <class D>
HWY_INLINE hn::Vec<D> round_to_bf16(D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto last_kept = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto carried = hn::Add(bits, hn::Add(last_kept, hn::Set(du, 0x7FFF)));
  const auto rounded = hn::BitCast(d, hn::And(carried, hn::Set(du, 0xFFFF0000u)));
  const auto is_tiny = hn::Lt(hn::Abs(value), hn::Set(d, 0x1p-126f));
  return hn::IfThenElse(hn::IsNaN(value), value, hn::IfThenZeroElse(is_tiny, rounded));
}

#if KVASIR_DOT_BF16

HWY_INLINE bool has_dot_bf16() { return simd::use_avx512_bf16(); }

/// `n` bf16 values in f32 become n / 2 pairs, each in the place of a float. In place: to == from.
/// Requires  n a multiple of 16
HWY_INLINE void pack_pairs(const float* from, int n, float* to) {
  for (int i = 0; i < n; i += 16) {
    const __m512i high = _mm512_srli_epi32(_mm512_loadu_si512(from + i), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i / 2), _mm512_cvtepi32_epi16(high));
  }
}

/// Stores p[t...] for pairs, 16 of them, and returns what was stored. `scores` becomes `p`: pairs
/// are written where scores were read before. Requires  no subnormals: the instruction takes them
/// for zero
HWY_INLINE hn::Vec<Tag16> store_pairs(hn::Vec<Tag16> p, float* scores, int t) {
  __m256i rounded;
  asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(p.raw));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(scores + t / 2), rounded);
  const __m512i words = _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16);
  return hn::Vec<Tag16>{_mm512_castsi512_ps(words)};
}

/// Word indices that put word i of the first and of the second operand side by side, from `first`.
HWY_INLINE __m512i side_by_side(int first, int second) {
  const __m512i place = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i low = _mm512_add_epi32(place, _mm512_set1_epi32(first));
  const __m512i high = _mm512_add_epi32(place, _mm512_set1_epi32(second));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/// Pairs of channels [0, 16) of a strip: its rows d and d + 1 follow each other.
HWY_INLINE hn::Vec<Tag16> load_k_pair(const DotBF16* rows) {
  const __m512i both = _mm512_loadu_si512(rows);
  return hn::Vec<Tag16>{_mm512_castsi512_ps(_mm512_permutexvar_epi16(side_by_side(0, 16), both))};
}
HWY_INLINE hn::Vec<Tag16> load_k_pair(const BF16Pair* pairs) {
  return hn::Vec<Tag16>{_mm512_loadu_ps(pairs)};
}

/// Pairs of channels of vector j of two rows of kVecs vectors of D.
template <class D, int kVecs>
HWY_INLINE hn::Vec<D> load_v_pair(const DotBF16* even, const DotBF16* odd, int j) {
  if constexpr (std::is_same_v<D, Tag8>) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd));
    return hn::Vec<D>{
        _mm256_castsi256_ps(_mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b)))};
  } else if (j / 2 * 2 + 1 < kVecs) {  // 32 channels at a time, a line of either row
    const __m512i a = _mm512_loadu_si512(even + j / 2 * 32);
    const __m512i b = _mm512_loadu_si512(odd + j / 2 * 32);
    const __m512i order = j % 2 == 0 ? side_by_side(0, 32) : side_by_side(16, 48);
    return hn::Vec<D>{_mm512_castsi512_ps(_mm512_permutex2var_epi16(a, order, b))};
  } else {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + j * 16));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + j * 16));
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    return hn::Vec<D>{_mm512_castsi512_ps(_mm512_permutexvar_epi16(side_by_side(0, 16), both))};
  }
}

/// The pairs with only the even or only the odd value left.
template <bool kOdd, class V>
HWY_INLINE V keep_half(V pairs) {
  const hn::DFromV<V> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  return hn::And(pairs, hn::BitCast(d, hn::Set(du, kOdd ? 0xFFFF0000u : 0x0000FFFFu)));
}

/// sum + odd product, then + even product.
template <class V>
HWY_INLINE V add_pair(V factor, V value, V sum) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(factor.raw), "v"(value.raw));
  return sum;
}

#else

HWY_INLINE bool has_dot_bf16() { return false; }

#endif  // KVASIR_DOT_BF16

/// sum plus the term, or the pair of terms, of T.
template <class T, class V>
HWY_INLINE V add_term(V factor, V value, V sum) {
#if KVASIR_DOT_BF16
  if constexpr (kIsPaired<T>) return add_pair(factor, value, sum);
#endif
  return simd::HWY_NAMESPACE::FusedMulAdd(factor, value, sum);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
