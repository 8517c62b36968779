// Register tiles: scores of some rows against some strips, and rows weighted by probabilities.
//
// Both kernels keep R rows x a few vectors in registers. A lane is one token (scores) or one
// channel (values), and lanes never mix, so the shape of the tile does not touch the result.
//
// Included once per target by kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_TILES_INL_H_
#undef KVASIR_ATTENTION_TILES_INL_H_
#else
#define KVASIR_ATTENTION_TILES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/kernel.h"
#include "attention/lanes-inl.h"
#include "attention/terms-inl.h"
#include "attention/work.h"
#include "hwy/cache_control.h"
#include "simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

/// Lanes [lane, lane + kLanes) of channel d of a strip; paired: of channels d and d + 1.
template <class K>
HWY_INLINE hn::Vec<Tag16> load_k(const K* strip, int d, int lane) {
#if KVASIR_DOT_BF16
  if constexpr (std::is_same_v<K, DotBF16>) return load_k_pair(strip + d * 16);
  if constexpr (std::is_same_v<K, BF16Pair>) return load_k_pair(strip + d * 8);
#endif
  if constexpr (!kIsPaired<K>) return load_f32(Tag16(), strip + d * 16 + lane);
}

/// Scores of R rows against S strips: lane t of strip s is sum over d of q[d] * K[d][t], in the
/// order of terms-inl.h, times `scale`. With kPrefetch, fetches as many bytes from `ahead` as it
/// reads.
///
/// Shapes    q: [head_dim][R], paired: [head_dim / 2][R]; strips, ahead: S x [head_dim][16];
/// scores:
///           rows kSegmentTokens apart, strips 16 apart
template <int R, int S, bool kPrefetch, class K>
HWY_INLINE void score_strips(const float* HWY_RESTRICT q, const K* const* strips,
                             const std::uint8_t* const* ahead, int head_dim, float scale,
                             float* HWY_RESTRICT scores) {
  const Tag16 tag;
  using V = hn::Vec<Tag16>;
  constexpr int kVecs = S * kRegs;
  // Lines of a strip that two steps of d read.
  constexpr int kLinesPerPair = static_cast<int>(sizeof(K)) / 2;
  constexpr bool kSideBySide = (R + 1) * kVecs + 1 <= kRegisters;

  V acc[R][kVecs];
#pragma GCC unroll kUnroll
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) acc[r][j] = hn::Zero(tag);
  }
  const K* base[S];
  const float* q_of[S];
#pragma GCC unroll kUnroll
  for (int s = 0; s < S; ++s) {
    base[s] = strips[s];
    q_of[s] = q;
    // Strips that do not fit side by side load q again: were the compiler to know that it is the
    // same q, it would keep the weights in registers and spill accumulators instead.
    if constexpr (!kSideBySide) asm("" : "+r"(q_of[s]));
  }

  // One strip after the other is fetched while all are read side by side: streams that alternate
  // are slower to fetch (ADR 0008).
  [[maybe_unused]] const std::uint8_t* fetch = nullptr;
  [[maybe_unused]] int next_strip = 0, next_strip_d = 0;
  for (int d0 = 0; d0 < head_dim; d0 += 2) {
    if constexpr (kPrefetch) {
      if (d0 == next_strip_d) {
        fetch = ahead[next_strip++];
        next_strip_d += head_dim / S;
      }
#pragma GCC unroll kUnroll
      for (int line = 0; line < S * kLinesPerPair; ++line, fetch += 64) hwy::Prefetch(fetch);
    }
#pragma GCC unroll kUnroll
    for (int step = 0; step < kSteps<K>; ++step) {
      const int d = term_of<K>(d0, step);
      const int factor = factor_of<K>(d) * R;
      if constexpr (kSideBySide) {
        V k[kVecs];
#pragma GCC unroll kUnroll
        for (int j = 0; j < kVecs; ++j) k[j] = load_k(base[j / kRegs], d, j % kRegs * kLanes);
#pragma GCC unroll kUnroll
        for (int r = 0; r < R; ++r) {
          const V qd = hn::Set(tag, q[factor + r]);
#pragma GCC unroll kUnroll
          for (int j = 0; j < kVecs; ++j) acc[r][j] = add_term<K>(qd, k[j], acc[r][j]);
        }
        continue;
      }
#pragma GCC unroll kUnroll
      for (int s = 0; s < S; ++s) {
        V k[kRegs];
#pragma GCC unroll kUnroll
        for (int g = 0; g < kRegs; ++g) k[g] = load_k(base[s], d, g * kLanes);
#pragma GCC unroll kUnroll
        for (int r = 0; r < R; ++r) {
          const V qd = hn::Set(tag, q_of[s][factor + r]);
#pragma GCC unroll kUnroll
          for (int g = 0; g < kRegs; ++g) {
            V& sum = acc[r][s * kRegs + g];
            sum = add_term<K>(qd, k[g], sum);
          }
        }
      }
    }
  }
  const V factor = hn::Set(tag, scale);
#pragma GCC unroll kUnroll
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) {
      hn::Store(hn::Mul(acc[r][j], factor), tag, scores + r * kSegmentTokens + j * kLanes);
    }
  }
}

/// R rows of accumulated values; vectors j of a row are kLanesOf<D> channels each.
template <class D, int R, int kVecs>
struct ValueTile {
  // Written out, because an implicit constructor is not compiled for the target.
  HWY_INLINE ValueTile() {
#pragma GCC unroll kUnroll
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
      for (int j = 0; j < kVecs; ++j) acc[r][j] = hn::Zero(D());
    }
  }
  hn::Vec<D> acc[R][kVecs];
};

/// Row r's vectors from (to) `values + r * row_floats`, exactly.
template <class D, int R, int kVecs>
HWY_INLINE void load_tile(ValueTile<D, R, kVecs>& tile, const float* values, int row_floats) {
#pragma GCC unroll kUnroll
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) {
      tile.acc[r][j] = hn::LoadU(D(), values + r * row_floats + j * kLanesOf<D>);
    }
  }
}
template <class D, int R, int kVecs>
HWY_INLINE void store_tile(const ValueTile<D, R, kVecs>& tile, float* values, int row_floats) {
#pragma GCC unroll kUnroll
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) {
      hn::StoreU(tile.acc[r][j], D(), values + r * row_floats + j * kLanesOf<D>);
    }
  }
}

/// Where V rows lie: token t's channels begin at `base + t * row_bytes`, those of copied pairs of
/// tokens at `base + t / 2 * row_bytes`; panels of 16 channels are `panel_step` values apart.
template <class T>
struct ValueRows {
  const std::uint8_t* base;
  std::ptrdiff_t row_bytes;
  std::ptrdiff_t panel_step;
  const T* row(int token) const {
    const int row = std::is_same_v<T, BF16Pair> ? token / 2 : token;
    return reinterpret_cast<const T*>(base + row * row_bytes);
  }
};

/// Which terms a step adds.
enum class Terms { kOne, kBoth, kEven, kOdd };

/// Vector j of token t's values; paired: of tokens t and t + 1, t being even.
template <Terms kTerms, class D, int kVecs, class T>
HWY_INLINE hn::Vec<D> load_v(const ValueRows<T>& values, int t, int j) {
  const std::ptrdiff_t place = j * kLanesOf<D> / 16 * values.panel_step + j * kLanesOf<D> % 16;
#if KVASIR_DOT_BF16
  if constexpr (std::is_same_v<T, DotBF16>) {
    const DotBF16* even = values.row(kTerms == Terms::kOdd ? t + 1 : t);
    const DotBF16* odd = values.row(kTerms == Terms::kEven ? t : t + 1);
    const auto pairs = load_v_pair<D, kVecs>(even, odd, j);
    if constexpr (kTerms == Terms::kBoth) return pairs;
    return keep_half<kTerms == Terms::kOdd>(pairs);
  }
  if constexpr (std::is_same_v<T, BF16Pair>) {
    const auto pairs = hn::LoadU(D(), reinterpret_cast<const float*>(values.row(t) + place));
    if constexpr (kTerms == Terms::kBoth) return pairs;
    return keep_half<kTerms == Terms::kOdd>(pairs);
  }
#endif
  if constexpr (!kIsPaired<T>) return load_f32(D(), values.row(t) + place);
}

/// acc[r] += p[r][t] * V[t], or two such terms.
template <Terms kTerms, class D, int R, int kVecs, class T>
HWY_INLINE void weigh_step(ValueTile<D, R, kVecs>& tile, const ValueRows<T>& values,
                           const float* HWY_RESTRICT p, int t) {
  const D tag;
  using V = hn::Vec<D>;
  const float* HWY_RESTRICT pt = p + factor_of<T>(t);
  // What is fewer is held in registers: the weights of a token, or its values.
  if constexpr (kVecs <= R) {
    V v[kVecs];
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) v[j] = load_v<kTerms, D, kVecs>(values, t, j);
#pragma GCC unroll kUnroll
    for (int r = 0; r < R; ++r) {
      const V weight = hn::Set(tag, pt[r * kSegmentTokens]);
#pragma GCC unroll kUnroll
      for (int j = 0; j < kVecs; ++j) {
        tile.acc[r][j] = add_term<T>(weight, v[j], tile.acc[r][j]);
      }
    }
  } else {
    V weight[R];
#pragma GCC unroll kUnroll
    for (int r = 0; r < R; ++r) weight[r] = hn::Set(tag, pt[r * kSegmentTokens]);
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) {
      const V v = load_v<kTerms, D, kVecs>(values, t, j);
#pragma GCC unroll kUnroll
      for (int r = 0; r < R; ++r) tile.acc[r][j] = add_term<T>(weight[r], v, tile.acc[r][j]);
    }
  }
}

/// The terms of tokens t and t + 1, t being even.
template <class D, int R, int kVecs, class T>
HWY_INLINE void weigh_pair(ValueTile<D, R, kVecs>& tile, const ValueRows<T>& values,
                           const float* HWY_RESTRICT p, int t) {
  if constexpr (kIsPaired<T>) {
    weigh_step<Terms::kBoth>(tile, values, p, t);
  } else {
    weigh_step<Terms::kOne>(tile, values, p, term_of<T>(t, 0));
    weigh_step<Terms::kOne>(tile, values, p, term_of<T>(t, 1));
  }
}

/// Always inlined: GCC takes a function that only prefetches for one without effect, and drops
/// calls.
template <int kBytes>
HWY_INLINE void fetch_bytes(const std::uint8_t* from) {
#pragma GCC unroll kUnroll
  for (int byte = 0; byte < kBytes; byte += 64) hwy::Prefetch(from + byte);
}

/// acc[r] += p[r][t] * V[t] for t in [begin, end), in the order of terms-inl.h. With kPrefetch,
/// fetches a row of as many bytes at `ahead + t * ahead_stride`.
///
/// Shapes    p: rows kSegmentTokens apart, indexed by the token's place in the segment;
///           values.row(t) likewise
template <bool kPrefetch, class D, int R, int kVecs, class T>
HWY_INLINE void weigh(ValueTile<D, R, kVecs>& tile, const ValueRows<T>& values,
                      const float* HWY_RESTRICT p, int begin, int end,
                      const std::uint8_t* ahead = nullptr, std::ptrdiff_t ahead_stride = 0) {
  constexpr int kFetch = kPrefetch ? kVecs * kLanesOf<D> * static_cast<int>(sizeof(T)) : 0;
  if constexpr (!kIsRounded<T>) {
    for (int t = begin; t < end; ++t) {
      fetch_bytes<kFetch>(ahead + t * ahead_stride);
      weigh_step<Terms::kOne>(tile, values, p, t);
    }
    return;
  }
  int t = begin;
  if (t % 2 != 0 && t < end) {
    fetch_bytes<kFetch>(ahead + t * ahead_stride);
    if constexpr (kIsPaired<T>) weigh_step<Terms::kOdd>(tile, values, p, t - 1);
    if constexpr (!kIsPaired<T>) weigh_step<Terms::kOne>(tile, values, p, t);
    ++t;
  }
  for (; t + 2 <= end; t += 2) {
    fetch_bytes<kFetch>(ahead + t * ahead_stride);
    fetch_bytes<kFetch>(ahead + (t + 1) * ahead_stride);
    weigh_pair(tile, values, p, t);
  }
  if (t < end) {
    fetch_bytes<kFetch>(ahead + t * ahead_stride);
    weigh_step<kIsPaired<T> ? Terms::kEven : Terms::kOne>(tile, values, p, t);
  }
}

/// The same for the one row `r` of the tile: the ragged ends that its neighbours do not share.
template <class D, int R, int kVecs, class T>
HWY_INLINE void weigh_row(ValueTile<D, R, kVecs>& tile, int r, const ValueRows<T>& values,
                          const float* HWY_RESTRICT p, int begin, int end) {
  ValueTile<D, 1, kVecs> row;
#pragma GCC unroll kUnroll
  for (int j = 0; j < kVecs; ++j) row.acc[0][j] = tile.acc[r][j];
  weigh<false>(row, values, p + r * kSegmentTokens, begin, end);
#pragma GCC unroll kUnroll
  for (int j = 0; j < kVecs; ++j) tile.acc[r][j] = row.acc[0][j];
}

/// Weighs rows whose visible ranges may differ: what all share in one register tile, the rest row
/// by row. A row never multiplies a token it does not see, so whatever lies there cannot reach it.
template <class D, int R, int kVecs, class T>
HWY_INLINE void weigh_ragged(ValueTile<D, R, kVecs>& tile, const Row* rows,
                             const ValueRows<T>& values, const float* HWY_RESTRICT p) {
  int shared_begin = 0, shared_end = kSegmentTokens;
  bool is_ragged = false;
  for (int r = 0; r < R; ++r) {
    if (!rows[r].is_visible()) continue;
    shared_begin = std::max(shared_begin, rows[r].begin);
    shared_end = std::min(shared_end, rows[r].end);
  }
  if constexpr (kIsRounded<T>) {  // pairs stay whole
    shared_begin += shared_begin % 2;
    shared_end -= shared_end % 2;
  }
  shared_end = std::max(shared_begin, shared_end);
  for (int r = 0; r < R; ++r) {
    is_ragged |=
        rows[r].is_visible() && (rows[r].begin != shared_begin || rows[r].end != shared_end);
  }
  if (!is_ragged) {
    weigh<false>(tile, values, p, shared_begin, shared_end);
    return;
  }
#pragma GCC unroll kUnroll
  for (int r = 0; r < R; ++r) {
    weigh_row(tile, r, values, p, rows[r].begin, std::min(rows[r].end, shared_begin));
  }
  weigh<false>(tile, values, p, shared_begin, shared_end);
#pragma GCC unroll kUnroll
  for (int r = 0; r < R; ++r) {
    weigh_row(tile, r, values, p, shared_end, rows[r].end);
  }
}

/// Merges the tile into the records: keep * record + add * tile, or the tile as it is.
template <class D, int R, int kVecs>
HWY_INLINE void merge_tile(const ValueTile<D, R, kVecs>& tile, const Row* rows,
                           float* HWY_RESTRICT records, std::size_t record_stride, int channel) {
  const D tag;
#pragma GCC unroll kUnroll
  for (int r = 0; r < R; ++r) {
    if (!rows[r].is_visible()) continue;
    float* HWY_RESTRICT to =
        records + static_cast<std::size_t>(r) * record_stride + kRecordHeader + channel;
    if (rows[r].is_first) {
#pragma GCC unroll kUnroll
      for (int j = 0; j < kVecs; ++j) hn::StoreU(tile.acc[r][j], tag, to + j * kLanesOf<D>);
      continue;
    }
    const auto keep = hn::Set(tag, rows[r].keep);
    const auto add = hn::Set(tag, rows[r].add);
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) {
      const auto held = hn::LoadU(tag, to + j * kLanesOf<D>);
      hn::StoreU(simd::HWY_NAMESPACE::FusedMulAdd(tile.acc[r][j], add, hn::Mul(held, keep)), tag,
                 to + j * kLanesOf<D>);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
