// One position against one segment, straight from the stored values: kv head by kv head, in the
// order in which they lie in a page (ADR 0008).
//
// Included once per target by kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_DIRECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_DIRECT_INL_H_
#undef KVASIR_ATTENTION_DIRECT_INL_H_
#else
#define KVASIR_ATTENTION_DIRECT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/kernel.h"
#include "attention/lanes-inl.h"
#include "attention/segment.h"
#include "attention/tiles-inl.h"
#include "attention/work.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

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

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
