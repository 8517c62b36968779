// One block of query rows against one segment: few rows straight from the stored values, many rows
// through copies in f32.
//
// Included once per target by kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_BLOCK_INL_H_
#undef KVASIR_ATTENTION_BLOCK_INL_H_
#else
#define KVASIR_ATTENTION_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/kernel.h"
#include "attention/lanes-inl.h"
#include "attention/tiles-inl.h"
#include "attention/work.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

/// Strips of one kv head that are read at a stretch, then those of the next kv head: 64 tokens, a
/// page of the usual size, in which the heads lie side by side.
inline constexpr int kChunkStrips = 4;

/// The strips of one segment that the block sees, in its first kv head, and where the next ones
/// lie.
struct Segment {
  int strip_begin = 0, strip_end = 0;  ///< counted from the segment's first
  int token_begin = 0, token_end = 0;  ///< visible to some row
  const std::uint8_t* k[kSegmentStrips];
  const std::uint8_t* v[kSegmentStrips];
  const std::uint8_t* next_k[kChunkStrips];  ///< of the following segment
  int n_next = 0;                            ///< 0: the task ends here
};

/// What a block's kernels share besides the segment.
struct Shape {
  int head_dim = 0;
  int n_rows = 0;
  int n_kv_heads = 1;
  float scale = 1.0f;
  std::size_t k_head_stride = 0, v_head_stride = 0, v_row_stride = 0;
  std::size_t k_strip_bytes = 0, v_row_bytes = 0;
  std::size_t record_stride = 0;  ///< floats
};

/// How far the prefetch runs ahead of the loads: kernels.md C measured 8-25 KB to be best.
inline constexpr int kPrefetchBytes = 16 << 10;

HWY_INLINE int strips_ahead(std::size_t strip_bytes) {
  return std::clamp(kPrefetchBytes / static_cast<int>(strip_bytes), 1, kSegmentStrips);
}

/// What to fetch while K strip `strip` is read: the K strip `ahead` strips later, or, past the
/// segment's end, the V strip in its place.
///
/// V rows that do not follow each other (interleaved heads) are fetched here and now; the caller
/// then gets the strip it reads, which costs nothing to fetch again.
HWY_INLINE const std::uint8_t* ahead_of_k(const Segment& segment, const Shape& shape, int strip,
                                          int ahead) {
  const int target = strip + ahead;
  if (target < segment.strip_end) return segment.k[target];
  const int place = segment.strip_begin + target - segment.strip_end;
  if (place >= segment.strip_end) return segment.k[strip];
  const std::uint8_t* v = segment.v[place];
  if (shape.v_row_stride == shape.v_row_bytes) return v;
  for (int t = 0; t < 16; ++t, v += shape.v_row_stride) {
    for (std::size_t byte = 0; byte < shape.v_row_bytes; byte += 64) hwy::Prefetch(v + byte);
  }
  return segment.k[strip];
}

// ---------------------------------------------------------------- few rows: straight from the page

/// Some strips of one kv head, and those that are read after them: fetched meanwhile, as many bytes
/// as are read.
struct Chunk {
  int kv_head = 0;
  int strip_begin = 0, strip_end = 0;      ///< kChunkStrips at most
  bool is_first = false, is_last = false;  ///< of this kv head in the segment
  const std::uint8_t* strips[kChunkStrips];
  const std::uint8_t* next[kChunkStrips];
  std::size_t next_row_stride = 0;  ///< of a strip's 16 parts (rows of V, equal shares of K)

  int n_strips() const { return strip_end - strip_begin; }
};

/// Calls visit(chunk) for the segment's chunks of K, or of V, in the order in which they lie in a
/// page.
template <bool kIsV, class Visit>
HWY_INLINE void for_each_chunk(const Segment& segment, const Shape& shape, Visit visit) {
  const std::uint8_t* const* strips = kIsV ? segment.v : segment.k;
  const std::size_t head_stride = kIsV ? shape.v_head_stride : shape.k_head_stride;
  const std::size_t k_row_stride = shape.k_strip_bytes / 16;
  const int first = segment.strip_begin / kChunkStrips * kChunkStrips;
  Chunk chunk;
  for (int at = first; at < segment.strip_end; at += kChunkStrips) {
    chunk.strip_begin = std::max(at, segment.strip_begin);
    chunk.strip_end = std::min(at + kChunkStrips, segment.strip_end);
    chunk.is_first = at == first;
    chunk.is_last = at + kChunkStrips >= segment.strip_end;
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      chunk.kv_head = head;
      // What follows: the next head, else the next strips, else V after K, K of the next segment.
      const std::uint8_t* const* next = strips + chunk.strip_begin;
      std::size_t next_head = static_cast<std::size_t>(head + 1) * head_stride;
      int n_next = chunk.n_strips();
      chunk.next_row_stride = kIsV ? shape.v_row_stride : k_row_stride;
      if (head + 1 == shape.n_kv_heads) {
        next_head = 0;
        if (!chunk.is_last) {
          next = strips + chunk.strip_end;
          n_next = std::min(kChunkStrips, segment.strip_end - chunk.strip_end);
        } else if (kIsV) {
          next = segment.next_k;
          n_next = segment.n_next;
          chunk.next_row_stride = k_row_stride;
        } else {
          next = segment.v + segment.strip_begin;
          n_next = std::min(first + kChunkStrips, segment.strip_end) - segment.strip_begin;
          chunk.next_row_stride = shape.v_row_stride;
        }
      }
      for (int i = 0; i < chunk.n_strips(); ++i) {
        chunk.strips[i] =
            strips[chunk.strip_begin + i] + static_cast<std::size_t>(head) * head_stride;
        // Where nothing follows, what is here already: fetched at no cost.
        chunk.next[i] = i < n_next ? next[i] + next_head : chunk.strips[i];
      }
      visit(chunk);
    }
  }
}

template <int R, class K>
HWY_NOINLINE void score_direct(const Chunk& chunk, const Shape& shape, const Work& work) {
  constexpr int S = strips_beside(R);
  const float* q = work.q + static_cast<std::ptrdiff_t>(chunk.kv_head) * R * shape.head_dim;
  float* scores = work.scores + chunk.kv_head * R * kSegmentTokens + chunk.strip_begin * 16;
  const K* const* strips = reinterpret_cast<const K* const*>(chunk.strips);
  int i = 0;
  for (; i + S <= chunk.n_strips(); i += S) {
    score_strips<R, S, true>(q, strips + i, chunk.next + i, shape.head_dim, shape.scale,
                             scores + i * 16);
  }
  for (; S > 1 && i < chunk.n_strips(); ++i) {
    score_strips<R, 1, true>(q, strips + i, chunk.next + i, shape.head_dim, shape.scale,
                             scores + i * 16);
  }
}

using ScoreDirectFunction = void (*)(const Chunk&, const Shape&, const Work&);

/// score_direct for `n_rows` rows of a kv head.
template <class K, int R = 1>
ScoreDirectFunction choose_score_direct(int n_rows) {
  if constexpr (R < kMaxDirectHeads) {
    if (n_rows > R) return choose_score_direct<K, R + 1>(n_rows);
  }
  return score_direct<R, K>;
}

/// Adds a chunk's tokens to channels [channel, channel + kVecs vectors of D) of a kv head's rows.
/// Their values so far are kept in `work.v` between chunks.
template <class D, int R, int kVecs, class T>
HWY_INLINE void weigh_direct_channels(const Chunk& chunk, const Segment& segment,
                                      const Shape& shape, const Work& work, int channel) {
  constexpr std::size_t kBytes = kVecs * kLanesOf<D> * sizeof(T);
  const auto first = static_cast<std::size_t>(channel);
  const auto row_stride = static_cast<std::ptrdiff_t>(shape.v_row_stride);
  const int row = chunk.kv_head * R;
  const float* p = work.scores + row * kSegmentTokens;
  float* values = work.v + static_cast<std::ptrdiff_t>(row) * shape.head_dim + channel;
  // Parts that follow each other are fetched from first to last, others as these rows are read.
  const bool is_dense = chunk.next_row_stride == shape.v_row_bytes;
  const auto next_stride = static_cast<std::ptrdiff_t>(is_dense ? kBytes : chunk.next_row_stride);
  const std::size_t next_offset = is_dense ? first * sizeof(T) * 16 : first * sizeof(T);

  ValueTile<D, R, kVecs> tile;
  if (!chunk.is_first) load_tile(tile, values, shape.head_dim);
  for (int i = 0; i < chunk.n_strips(); ++i) {
    const int base = (chunk.strip_begin + i) * 16;
    const int begin = std::max(segment.token_begin, base);
    const int end = std::min(segment.token_end, base + 16);
    const ValueRows<T> rows = {chunk.strips[i] + first * sizeof(T) - base * row_stride, row_stride,
                               16};
    const std::uint8_t* next = chunk.next[i] + next_offset - base * next_stride;
    if (end - begin == 16) {  // nearly always: a loop of a known length
      weigh<true>(tile, rows, p, begin, begin + 16, next, next_stride);
    } else {
      weigh<true>(tile, rows, p, begin, end, next, next_stride);
    }
  }
  if (!chunk.is_last) {
    store_tile(tile, values, shape.head_dim);
    return;
  }
  merge_tile(tile, work.rows + row,
             work.records + static_cast<std::size_t>(row) * shape.record_stride,
             shape.record_stride, channel);
}

template <int R, class T>
HWY_NOINLINE void weigh_direct(const Chunk& chunk, const Segment& segment, const Shape& shape,
                               const Work& work) {
  constexpr int kPanels = strips_beside(R);
  int channel = 0;
  for (; channel + 16 * kPanels <= shape.head_dim; channel += 16 * kPanels) {
    weigh_direct_channels<Tag16, R, kPanels * kRegs, T>(chunk, segment, shape, work, channel);
  }
  for (; kPanels > 1 && channel + 16 <= shape.head_dim; channel += 16) {
    weigh_direct_channels<Tag16, R, kRegs, T>(chunk, segment, shape, work, channel);
  }
  if (channel < shape.head_dim) {
    weigh_direct_channels<Tag8, R, 8 / kLanesOf<Tag8>, T>(chunk, segment, shape, work, channel);
  }
}

using WeighDirectFunction = void (*)(const Chunk&, const Segment&, const Shape&, const Work&);

template <class V, int R = 1>
WeighDirectFunction choose_weigh_direct(int n_rows) {
  if constexpr (R < kMaxDirectHeads) {
    if (n_rows > R) return choose_weigh_direct<V, R + 1>(n_rows);
  }
  return weigh_direct<R, V>;
}

// ------------------------------------------------------------------- many rows: through f32 copies

/// Rows are cut into tiles of nearly equal height.
struct Tiles {
  int n_tiles, height, n_taller;  ///< the first `n_taller` tiles are height + 1
  Tiles(int n_rows, int most)
      : n_tiles((n_rows + most - 1) / most), height(n_rows / n_tiles), n_taller(n_rows % n_tiles) {}
  int first_row(int tile) const { return tile * height + std::min(tile, n_taller); }
  int rows(int tile) const { return height + (tile < n_taller ? 1 : 0); }
};

/// Copies a K strip to f32 and fetches as many bytes from `ahead`.
template <class K>
HWY_INLINE void stage_strip(const std::uint8_t* from, const std::uint8_t* ahead, int head_dim,
                            float* HWY_RESTRICT to) {
  const Tag16 tag;
  constexpr int kPerLine = 64 / static_cast<int>(sizeof(K));
  const K* values = reinterpret_cast<const K*>(from);
  for (int i = 0; i < head_dim * 16; i += 16) {
    if (i % kPerLine == 0) hwy::Prefetch(ahead + i * static_cast<int>(sizeof(K)));
#pragma GCC unroll kUnroll
    for (int g = 0; g < kRegs; ++g) {
      hn::Store(load_f32(tag, values + i + g * kLanes), tag, to + i + g * kLanes);
    }
  }
}

template <int R>
HWY_NOINLINE void score_staged_tile(const float* q, const float* const* strips, int n_strips,
                                    const Shape& shape, float* scores) {
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

template <int R = 1>
ScoreTileFunction choose_score_tile(int n_rows) {
  if constexpr (R < kTileRows) {
    if (n_rows > R) return choose_score_tile<R + 1>(n_rows);
  }
  return score_staged_tile<R>;
}

/// Whether some row of the tile sees a token of [begin, end).
HWY_INLINE bool sees_any(const Row* rows, int n_rows, int begin, int end) {
  for (int r = 0; r < n_rows; ++r) {
    if (rows[r].begin < end && begin < rows[r].end) return true;
  }
  return false;
}

template <class K>
HWY_NOINLINE void score_staged(const Segment& segment, const Shape& shape, const Tiles& tiles,
                               const Work& work) {
  const int ahead = std::max(strips_ahead(shape.k_strip_bytes), kStagedStrips);
  const std::size_t strip_floats = static_cast<std::size_t>(shape.head_dim) * 16;
  for (int first = segment.strip_begin; first < segment.strip_end; first += kStagedStrips) {
    const int n_strips = std::min(kStagedStrips, segment.strip_end - first);
    const float* strips[kStagedStrips];
    for (int s = 0; s < n_strips; ++s) {
      float* to = work.k + static_cast<std::size_t>(s) * strip_floats;
      stage_strip<K>(segment.k[first + s], ahead_of_k(segment, shape, first + s, ahead),
                     shape.head_dim, to);
      strips[s] = to;
    }
    for (int tile = 0; tile < tiles.n_tiles; ++tile) {
      const int row = tiles.first_row(tile);
      if (!sees_any(work.rows + row, tiles.rows(tile), first * 16, (first + n_strips) * 16)) {
        continue;
      }
      const float* q = work.q + static_cast<std::ptrdiff_t>(row) * shape.head_dim;
      float* scores = work.scores + row * kSegmentTokens + first * 16;
      choose_score_tile(tiles.rows(tile))(q, strips, n_strips, shape, scores);
    }
  }
}

/// Copies channels [channel, channel + n_channels) of the visible rows into panels of 16 channels;
/// a last half panel is filled with zeros.
template <class T>
HWY_NOINLINE void stage_panels(const Segment& segment, const Shape& shape, int channel,
                               int n_channels, const Work& work) {
  const Tag16 tag;
  const Tag8 tag8;
  const int ahead = strips_ahead(shape.v_row_bytes * 16);
  const std::size_t column = static_cast<std::size_t>(channel) * sizeof(T);
  const std::size_t column_bytes = static_cast<std::size_t>(n_channels) * sizeof(T);
  for (int strip = segment.strip_begin; strip < segment.strip_end; ++strip) {
    const std::uint8_t* fetch = segment.v[std::min(strip + ahead, segment.strip_end - 1)] + column;
    const int begin = std::max(segment.token_begin, strip * 16);
    const int end = std::min(segment.token_end, strip * 16 + 16);
    for (int t = begin; t < end; ++t) {
      const std::size_t offset = static_cast<std::size_t>(t - strip * 16) * shape.v_row_stride;
      const T* values = reinterpret_cast<const T*>(segment.v[strip] + column + offset);
      for (std::size_t byte = 0; byte < column_bytes; byte += 64) {
        hwy::Prefetch(fetch + offset + byte);
      }
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

template <int R, int kPanels>
HWY_INLINE void weigh_panels(const float* panels, int row, int channel, const Shape& shape,
                             const Work& work) {
  const ValueRows<float> values = {reinterpret_cast<const std::uint8_t*>(panels),
                                   16 * sizeof(float), static_cast<std::ptrdiff_t>(kPanelFloats)};
  ValueTile<Tag16, R, kPanels * kRegs> tile;
  weigh_ragged(tile, work.rows + row, values, work.scores + row * kSegmentTokens);
  merge_tile(tile, work.rows + row,
             work.records + static_cast<std::size_t>(row) * shape.record_stride,
             shape.record_stride, channel);
}

/// One tile of rows against the staged panels, `n_panels` of them.
template <int R>
HWY_NOINLINE void weigh_staged_tile(int n_panels, int row, int channel, const Shape& shape,
                                    const Work& work) {
  constexpr int kPanels = strips_beside(R);
  int panel = 0;
  for (; panel + kPanels <= n_panels; panel += kPanels) {
    weigh_panels<R, kPanels>(work.v + static_cast<std::size_t>(panel) * kPanelFloats, row,
                             channel + panel * 16, shape, work);
  }
  for (; kPanels > 1 && panel < n_panels; ++panel) {
    weigh_panels<R, 1>(work.v + static_cast<std::size_t>(panel) * kPanelFloats, row,
                       channel + panel * 16, shape, work);
  }
}

using WeighTileFunction = void (*)(int, int, int, const Shape&, const Work&);

template <int R = 1>
WeighTileFunction choose_weigh_tile(int n_rows) {
  if constexpr (R < kTileRows) {
    if (n_rows > R) return choose_weigh_tile<R + 1>(n_rows);
  }
  return weigh_staged_tile<R>;
}

template <class T>
HWY_NOINLINE void weigh_staged(const Segment& segment, const Shape& shape, const Tiles& tiles,
                               const Work& work) {
  for (int channel = 0; channel < shape.head_dim; channel += 16 * kStagedPanels) {
    const int n_channels = std::min(16 * kStagedPanels, shape.head_dim - channel);
    const int n_panels = (n_channels + 15) / 16;
    stage_panels<T>(segment, shape, channel, n_channels, work);
    for (int tile = 0; tile < tiles.n_tiles; ++tile) {
      const int row = tiles.first_row(tile);
      if (!sees_any(work.rows + row, tiles.rows(tile), 0, kSegmentTokens)) continue;
      choose_weigh_tile(tiles.rows(tile))(n_panels, row, channel, shape, work);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
