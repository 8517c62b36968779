// Where codes and scales of K and V lie, stretch by stretch of 64 tokens, and what to fetch ahead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/kernel.h"
#include "attention/segment.h"
#include "hwy/cache_control.h"

namespace kvasir::attention {

/// Measured: 2 and 3 are equal for tiles; 1, 3 and 4 are 5 to 10 % slower for int8.
inline constexpr int kHeadsAhead = 2;

/// Where strip `strip` of the segment lies in K, or V, of a kv head counted from the block's first.
struct Places {
  Places(const Block& block, const Segment& segment, bool is_v)
      : rows(is_v ? block.kv->rows.v : block.kv->rows.k),
        tiles(is_v ? block.kv->tiles.v : block.kv->tiles.k),
        is_tile(segment.is_tile),
        strips(is_v ? segment.v : segment.k),
        metas(is_v ? segment.v_meta : segment.k_meta) {}
  const cache::SideLayout& layout(int strip) const {
    return is_tile[strip / kChunkStrips] ? tiles : rows;
  }
  const std::uint8_t* codes(int strip, int head) const {
    return strips[strip] + static_cast<std::size_t>(head) * layout(strip).head_stride;
  }
  const std::uint8_t* meta(int strip, int head) const {
    return metas[strip] + static_cast<std::size_t>(head) * layout(strip).meta_head_stride;
  }
  const cache::SideLayout& rows;
  const cache::SideLayout& tiles;
  const bool* is_tile;
  const std::uint8_t* const* strips;
  const std::uint8_t* const* metas;
};

/// Strips [begin, end) of the segment in one stretch of 64 tokens: calls visit(begin, end).
template <class Visit>
void for_each_stretch(const Segment& segment, Visit visit) {
  for (int at = segment.strip_begin / kChunkStrips * kChunkStrips; at < segment.strip_end;
       at += kChunkStrips) {
    visit(std::max(at, segment.strip_begin), std::min(at + kChunkStrips, segment.strip_end));
  }
}

/// What is fetched while a stretch of a kv head is read: what lies kHeadsAhead kv heads on in the
/// order of reading, stretch by stretch; behind the last one of K is the first one of V, and behind
/// that of V the next segment's K.
class Ahead {
 public:
  Ahead(const Block& block, const Segment& segment, bool is_v)
      : here_(block, segment, is_v),
        segment_(segment),
        n_heads_(block.n_kv_heads),
        n_then_(is_v ? segment.n_next : segment.strip_end - segment.strip_begin),
        then_(is_v ? segment.next_k : segment.v + segment.strip_begin),
        then_meta_(is_v ? segment.next_k_meta : segment.v_meta + segment.strip_begin) {
    const cache::PagedKvView& kv = *block.kv;
    const Places values(block, segment, true);
    then_layout_ =
        is_v ? (kv.has_tiles() ? &kv.tiles.k : &kv.rows.k) : &values.layout(segment.strip_begin);
  }
  /// Fills in `ahead` for strips [begin, end) of a kv head, and fetches their scales.
  void find(int begin, int end, int head, const std::uint8_t** ahead) const {
    int stretch = begin / kChunkStrips;
    for (head += kHeadsAhead; head >= n_heads_; head -= n_heads_) ++stretch;
    const int first = stretch == begin / kChunkStrips ? begin : stretch * kChunkStrips;
    const int last_stretch = (segment_.strip_end + kChunkStrips - 1) / kChunkStrips;
    const auto offset = static_cast<std::size_t>(head);
    const bool is_here = first < segment_.strip_end;
    const int then = (stretch - last_stretch) * kChunkStrips;
    const cache::SideLayout& layout = is_here ? here_.layout(first) : *then_layout_;
    const std::uint8_t* meta = nullptr;
    if (is_here) {
      meta = here_.meta(first, head);
    } else if (then < n_then_) {
      meta = then_meta_[then] + offset * layout.meta_head_stride;
    }
    for (int i = 0; i < end - begin; ++i) {
      const std::uint8_t* at = nullptr;
      if (is_here) {
        if (first + i < segment_.strip_end) at = here_.codes(first + i, head);
      } else if (then + i < n_then_) {
        at = then_[then + i] + offset * layout.head_stride;
      }
      ahead[begin + i] = at;
    }
    if (meta == nullptr) return;
    for (std::size_t byte = 0; byte < kChunkStrips * layout.meta_strip_stride; byte += 64) {
      hwy::Prefetch(meta + byte);
    }
  }

 private:
  const Places here_;
  const Segment& segment_;
  const int n_heads_, n_then_;
  const std::uint8_t* const* then_;
  const std::uint8_t* const* then_meta_;
  const cache::SideLayout* then_layout_;
};

}  // namespace kvasir::attention
