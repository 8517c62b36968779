// Many rows against one segment, through copies of K and V: in f32, or in pairs of bf16.
//
// Included once per target by kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_STAGED_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_STAGED_INL_H_
#undef KVASIR_ATTENTION_STAGED_INL_H_
#else
#define KVASIR_ATTENTION_STAGED_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/kernel.h"
#include "attention/lanes-inl.h"
#include "attention/meanwhile.h"
#include "attention/segment.h"
#include "attention/tiles-inl.h"
#include "attention/work.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

/// How far the prefetch of K runs ahead of the copies: kernels.md C measured 8-25 KB to be best.
inline constexpr int kPrefetchBytes = 16 << 10;

/// Copies a K strip and fetches as many bytes from `ahead`.
template <class K>
HWY_INLINE void stage_strip(const std::uint8_t* from, const std::uint8_t* ahead, int head_dim,
                            float* HWY_RESTRICT to) {
  const Tag16 tag;
  constexpr int kPairBytes = 32 * static_cast<int>(sizeof(K));
  const K* strip = reinterpret_cast<const K*>(from);
  for (int d = 0; d < head_dim; d += 2, ahead += kPairBytes) {
    for (int byte = 0; byte < kPairBytes; byte += 64) hwy::Prefetch(ahead + byte);
#pragma GCC unroll kUnroll
    for (int step = 0; step < kSteps<K>; ++step) {
#pragma GCC unroll kUnroll
      for (int g = 0; g < kRegs; ++g, to += kLanes) {
        hn::Store(load_k(strip, d + step, g * kLanes), tag, to);
      }
    }
  }
}

/// Against copies of type C.
template <class C, int R>
HWY_NOINLINE void score_staged_tile(const float* q, const float* const* copies, int n_strips,
                                    const Shape& shape, float* scores) {
  const C* const* strips = reinterpret_cast<const C* const*>(copies);
  constexpr int S = strips_beside(R);
  int strip = 0;
  for (; strip + S <= n_strips; strip += S) {
    score_strips<R, S, false>(q, strips + strip, nullptr, shape.head_dim, shape.scale,
                              scores + strip * 16);
  }
  for (; S > 1 && strip < n_strips; ++strip) {
    score_strips<R, 1, false>(q, strips + strip, nullptr, shape.head_dim, shape.scale,
                              scores + strip * 16);
  }
}

using ScoreTileFunction = void (*)(const float*, const float* const*, int, const Shape&, float*);

template <class C, int R = 1>
ScoreTileFunction choose_score_tile(int n_rows) {
  if constexpr (R < kTileRows) {
    if (n_rows > R) return choose_score_tile<C, R + 1>(n_rows);
  }
  return score_staged_tile<C, R>;
}

template <class K>
HWY_NOINLINE void score_staged(const Segment& segment, const Shape& shape, const Tiles& tiles,
                               const Work& work) {
  const int ahead = std::max(kPrefetchBytes / static_cast<int>(shape.k_strip_bytes), kStagedStrips);
  const int n_chunks =
      (segment.strip_end - segment.strip_begin + kStagedStrips - 1) / kStagedStrips;
  FetchedMeanwhile values(segment.v + segment.strip_begin, segment.strip_end - segment.strip_begin,
                          shape.v_row_stride, shape.v_row_bytes, n_chunks * tiles.n_tiles);
  const std::size_t strip_floats = static_cast<std::size_t>(shape.head_dim) * 16;
  for (int first = segment.strip_begin; first < segment.strip_end; first += kStagedStrips) {
    const int n_strips = std::min(kStagedStrips, segment.strip_end - first);
    const float* strips[kStagedStrips];
    for (int s = 0; s < n_strips; ++s) {
      float* to = work.k + static_cast<std::size_t>(s) * strip_floats;
      // Where nothing follows, what is here already: fetched at no cost.
      const int next = first + s + ahead < segment.strip_end ? first + s + ahead : first + s;
      stage_strip<K>(segment.k[first + s], segment.k[next], shape.head_dim, to);
      strips[s] = to;
    }
    for (int tile = 0; tile < tiles.n_tiles; ++tile) {
      values.step();
      const int row = tiles.first_row(tile);
      if (!sees_any(work.rows + row, tiles.rows(tile), first * 16, (first + n_strips) * 16)) {
        continue;
      }
      const float* q = work.q + static_cast<std::ptrdiff_t>(row) * shape.head_dim;
      float* scores = work.scores + row * kSegmentTokens + first * 16;
      choose_score_tile<CopyOf<K>>(tiles.rows(tile))(q, strips, n_strips, shape, scores);
    }
  }
}

#if KVASIR_DOT_BF16
/// One vector of tokens t and t + 1, zero in place of one that is not there.
template <class D>
HWY_INLINE hn::Vec<D> load_visible_pair(const ValueRows<DotBF16>& rows, int t, bool has_even,
                                        bool has_odd) {
  if (has_even && has_odd) return load_v<Terms::kBoth, D, 1>(rows, t, 0);
  return has_even ? load_v<Terms::kEven, D, 1>(rows, t, 0) : load_v<Terms::kOdd, D, 1>(rows, t, 0);
}
#endif

/// Copies channels [channel, channel + n_channels) of the visible rows into panels of 16 channels;
/// a last half panel is filled with zeros.
template <class T>
HWY_NOINLINE void stage_panels(const Segment& segment, const Shape& shape, int channel,
                               int n_channels, const Work& work) {
  const Tag16 tag;
  const Tag8 tag8;
  const std::size_t column = static_cast<std::size_t>(channel) * sizeof(T);
  for (int strip = segment.strip_begin; strip < segment.strip_end; ++strip) {
    const int begin = std::max(segment.token_begin, strip * 16);
    const int end = std::min(segment.token_end, strip * 16 + 16);
    for (int t = begin; t < end; ++t) {
      const std::size_t offset = static_cast<std::size_t>(t - strip * 16) * shape.v_row_stride;
      const T* values = reinterpret_cast<const T*>(segment.v[strip] + column + offset);
      float* HWY_RESTRICT to = work.v + t * 16;
      int c = 0;
      for (; c + 16 <= n_channels; c += 16, to += kPanelFloats) {
#pragma GCC unroll kUnroll
        for (int g = 0; g < kRegs; ++g) {
          hn::Store(load_f32(tag, values + c + g * kLanes), tag, to + g * kLanes);
        }
      }
      if (c == n_channels) continue;
      for (int i = 0; i < 8; i += kLanesOf<Tag8>) {
        hn::StoreU(load_f32(tag8, values + c + i), tag8, to + i);
        hn::StoreU(hn::Zero(tag8), tag8, to + 8 + i);
      }
    }
  }
}

#if KVASIR_DOT_BF16
/// The same for pairs of tokens; beside a visible one, an invisible one is zero.
template <>
HWY_NOINLINE void stage_panels<DotBF16>(const Segment& segment, const Shape& shape, int channel,
                                        int n_channels, const Work& work) {
  const std::size_t column = static_cast<std::size_t>(channel) * sizeof(DotBF16);
  const auto row_stride = static_cast<std::ptrdiff_t>(shape.v_row_stride);
  for (int strip = segment.strip_begin; strip < segment.strip_end; ++strip) {
    const int base = strip * 16;
    const int begin = std::max(segment.token_begin, base);
    const int end = std::min(segment.token_end, base + 16);
    const ValueRows<DotBF16> rows = {segment.v[strip] + column - base * row_stride, row_stride, 16};
    for (int t = begin / 2 * 2; t < end; t += 2) {
      const bool has_even = t >= begin, has_odd = t + 1 < end;
      float* HWY_RESTRICT to = work.v + t / 2 * 16;
      int c = 0;
      for (; c + 16 <= n_channels; c += 16, to += kPanelFloats) {
        const ValueRows<DotBF16> panel = {rows.base + c * 2, row_stride, 16};
        hn::Store(load_visible_pair<Tag16>(panel, t, has_even, has_odd), Tag16(), to);
      }
      if (c == n_channels) continue;
      const ValueRows<DotBF16> panel = {rows.base + c * 2, row_stride, 16};
      hn::StoreU(load_visible_pair<Tag8>(panel, t, has_even, has_odd), Tag8(), to);
      hn::StoreU(hn::Zero(Tag8()), Tag8(), to + 8);
    }
  }
}
#endif

template <class C, int R, int kPanels>
HWY_INLINE void weigh_panels(const float* panels, int row, int channel, const Shape& shape,
                             const Work& work) {
  const ValueRows<C> values = {reinterpret_cast<const std::uint8_t*>(panels), 16 * sizeof(float),
                               static_cast<std::ptrdiff_t>(kPanelFloats)};
  ValueTile<Tag16, R, kPanels * kRegs> tile;
  weigh_ragged(tile, work.rows + row, values, work.scores + row * kSegmentTokens);
  merge_tile(tile, work.rows + row,
             work.records + static_cast<std::size_t>(row) * shape.record_stride,
             shape.record_stride, channel);
}

/// One tile of rows against the staged panels, `n_panels` of them.
template <class C, int R>
HWY_NOINLINE void weigh_staged_tile(int n_panels, int row, int channel, const Shape& shape,
                                    const Work& work) {
  constexpr int kPanels = strips_beside(R);
  int panel = 0;
  for (; panel + kPanels <= n_panels; panel += kPanels) {
    weigh_panels<C, R, kPanels>(work.v + static_cast<std::size_t>(panel) * kPanelFloats, row,
                                channel + panel * 16, shape, work);
  }
  for (; kPanels > 1 && panel < n_panels; ++panel) {
    weigh_panels<C, R, 1>(work.v + static_cast<std::size_t>(panel) * kPanelFloats, row,
                          channel + panel * 16, shape, work);
  }
}

using WeighTileFunction = void (*)(int, int, int, const Shape&, const Work&);

template <class C, int R = 1>
WeighTileFunction choose_weigh_tile(int n_rows) {
  if constexpr (R < kTileRows) {
    if (n_rows > R) return choose_weigh_tile<C, R + 1>(n_rows);
  }
  return weigh_staged_tile<C, R>;
}

template <class T>
HWY_NOINLINE void weigh_staged(const Segment& segment, const Shape& shape, const Tiles& tiles,
                               const Work& work) {
  constexpr int kChannels = 16 * kStagedPanels;
  const int n_column_blocks = (shape.head_dim + kChannels - 1) / kChannels;
  FetchedMeanwhile next_keys(segment.next_k, segment.n_next, shape.k_strip_bytes / 16,
                             shape.k_strip_bytes / 16, n_column_blocks * tiles.n_tiles);
  for (int channel = 0; channel < shape.head_dim; channel += kChannels) {
    const int n_channels = std::min(kChannels, shape.head_dim - channel);
    const int n_panels = (n_channels + 15) / 16;
    stage_panels<T>(segment, shape, channel, n_channels, work);
    for (int tile = 0; tile < tiles.n_tiles; ++tile) {
      next_keys.step();
      const int row = tiles.first_row(tile);
      if (!sees_any(work.rows + row, tiles.rows(tile), 0, kSegmentTokens)) continue;
      choose_weigh_tile<CopyOf<T>>(tiles.rows(tile))(n_panels, row, channel, shape, work);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
