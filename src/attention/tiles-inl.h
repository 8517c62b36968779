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
#include "attention/work.h"
#include "hwy/cache_control.h"
#include "simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

/// Scores of R rows against S strips: lane t of strip s is sum over d of q[d] * K[d][t], in the
/// order of d, times `scale`. With kPrefetch, fetches as many bytes from `ahead` as it reads.
///
/// Shapes    q: [head_dim][R]; strips, ahead: S x [head_dim][16]; scores: rows kSegmentTokens
///           apart, strips 16 apart
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
    for (int d = d0; d < d0 + 2; ++d) {
      if constexpr (kSideBySide) {
        V k[kVecs];
#pragma GCC unroll kUnroll
        for (int j = 0; j < kVecs; ++j) {
          k[j] = load_f32(tag, base[j / kRegs] + d * 16 + j % kRegs * kLanes);
        }
#pragma GCC unroll kUnroll
        for (int r = 0; r < R; ++r) {
          const V qd = hn::Set(tag, q[d * R + r]);
#pragma GCC unroll kUnroll
          for (int j = 0; j < kVecs; ++j) {
            acc[r][j] = simd::HWY_NAMESPACE::FusedMulAdd(qd, k[j], acc[r][j]);
          }
        }
        continue;
      }
#pragma GCC unroll kUnroll
      for (int s = 0; s < S; ++s) {
        V k[kRegs];
#pragma GCC unroll kUnroll
        for (int g = 0; g < kRegs; ++g) k[g] = load_f32(tag, base[s] + d * 16 + g * kLanes);
#pragma GCC unroll kUnroll
        for (int r = 0; r < R; ++r) {
          const V qd = hn::Set(tag, q_of[s][d * R + r]);
#pragma GCC unroll kUnroll
          for (int g = 0; g < kRegs; ++g) {
            V& sum = acc[r][s * kRegs + g];
            sum = simd::HWY_NAMESPACE::FusedMulAdd(qd, k[g], sum);
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

/// Where V rows lie: token t's channels begin at `base + t * row_bytes`; panels of 16 channels are
/// `panel_step` values apart.
template <class T>
struct ValueRows {
  const std::uint8_t* base;
  std::ptrdiff_t row_bytes;
  std::ptrdiff_t panel_step;
  const T* row(int token) const { return reinterpret_cast<const T*>(base + token * row_bytes); }
};

template <class D>
constexpr int vec_panel(int j) {
  return j * kLanesOf<D> / 16;
}
template <class D>
constexpr int vec_channel(int j) {
  return j * kLanesOf<D> % 16;
}

/// acc[r] = fma(p[r][t], V[t], acc[r]) for t in [begin, end), in order. With kPrefetch, fetches a
/// row of as many bytes at `ahead + t * ahead_stride`.
///
/// Shapes    p: rows kSegmentTokens apart, indexed by the token's place in the segment;
///           values.row(t) likewise
template <bool kPrefetch, class D, int R, int kVecs, class T>
HWY_INLINE void weigh(ValueTile<D, R, kVecs>& tile, const ValueRows<T>& values,
                      const float* HWY_RESTRICT p, int begin, int end,
                      const std::uint8_t* ahead = nullptr, std::ptrdiff_t ahead_stride = 0) {
  const D tag;
  using V = hn::Vec<D>;
  constexpr int kRowBytes = kVecs * kLanesOf<D> * static_cast<int>(sizeof(T));
  // What is fewer is held in registers: the weights of a token, or its values.
  constexpr bool kHoldValues = kVecs <= R;
  for (int t = begin; t < end; ++t) {
    const T* HWY_RESTRICT row = values.row(t);
    const float* HWY_RESTRICT pt = p + t;
    if constexpr (kPrefetch) {
#pragma GCC unroll kUnroll
      for (int byte = 0; byte < kRowBytes; byte += 64) {
        hwy::Prefetch(ahead + t * ahead_stride + byte);
      }
    }
    if constexpr (kHoldValues) {
      V v[kVecs];
#pragma GCC unroll kUnroll
      for (int j = 0; j < kVecs; ++j) {
        v[j] = load_f32(tag, row + vec_panel<D>(j) * values.panel_step + vec_channel<D>(j));
      }
#pragma GCC unroll kUnroll
      for (int r = 0; r < R; ++r) {
        const V weight = hn::Set(tag, pt[r * kSegmentTokens]);
#pragma GCC unroll kUnroll
        for (int j = 0; j < kVecs; ++j) {
          tile.acc[r][j] = simd::HWY_NAMESPACE::FusedMulAdd(weight, v[j], tile.acc[r][j]);
        }
      }
    } else {
      V weight[R];
#pragma GCC unroll kUnroll
      for (int r = 0; r < R; ++r) weight[r] = hn::Set(tag, pt[r * kSegmentTokens]);
#pragma GCC unroll kUnroll
      for (int j = 0; j < kVecs; ++j) {
        const V v = load_f32(tag, row + vec_panel<D>(j) * values.panel_step + vec_channel<D>(j));
#pragma GCC unroll kUnroll
        for (int r = 0; r < R; ++r) {
          tile.acc[r][j] = simd::HWY_NAMESPACE::FusedMulAdd(weight[r], v, tile.acc[r][j]);
        }
      }
    }
  }
}

/// The same for the one row `r` of the tile: the ragged ends that its neighbours do not share.
template <class D, int R, int kVecs, class T>
HWY_INLINE void weigh_row(ValueTile<D, R, kVecs>& tile, int r, const ValueRows<T>& values,
                          const float* HWY_RESTRICT p, int begin, int end) {
  const D tag;
  for (int t = begin; t < end; ++t) {
    const auto weight = hn::Set(tag, p[r * kSegmentTokens + t]);
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) {
      const auto v =
          load_f32(tag, values.row(t) + vec_panel<D>(j) * values.panel_step + vec_channel<D>(j));
      tile.acc[r][j] = simd::HWY_NAMESPACE::FusedMulAdd(weight, v, tile.acc[r][j]);
    }
  }
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
