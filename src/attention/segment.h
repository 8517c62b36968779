// What the kernels of a block know of the segment at hand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/work.h"

namespace kvasir::attention {

/// Strips of one kv head that are read at a stretch, then those of the next kv head: 64 tokens, a
/// page of the usual size, in which the heads lie side by side.
inline constexpr int kChunkStrips = 4;

/// Strips of a sequence, or of a segment: [begin, end).
struct StripRange {
  int begin, end;
};

/// The strips of one segment that the block sees, in its first kv head, and where the next ones
/// lie.
struct Segment {
  int strip_begin = 0, strip_end = 0;  ///< counted from the segment's first
  int token_begin = 0, token_end = 0;  ///< visible to some row
  const std::uint8_t* k[kSegmentStrips];
  const std::uint8_t* v[kSegmentStrips];
  /// Of coded K and V: their scales, and which stretches of 64 tokens are tiles.
  const std::uint8_t* k_meta[kSegmentStrips];
  const std::uint8_t* v_meta[kSegmentStrips];
  bool is_tile[kSegmentStrips / kChunkStrips];
  const std::uint8_t* next_k[kSegmentStrips];  ///< the first ones of the following segment
  int n_next = 0;                              ///< 0: the block ends here
  StripRange strips() const { return {strip_begin, strip_end}; }
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

/// Rows are cut into tiles of nearly equal height.
struct Tiles {
  int n_tiles, height, n_taller;  ///< the first `n_taller` tiles are height + 1
  Tiles(int n_rows, int most)
      : n_tiles((n_rows + most - 1) / most), height(n_rows / n_tiles), n_taller(n_rows % n_tiles) {}
  int first_row(int tile) const { return tile * height + std::min(tile, n_taller); }
  int rows(int tile) const { return height + (tile < n_taller ? 1 : 0); }
};

/// Strips of the sequence that lie in segment `index` and that some row of the block sees.
StripRange visible_strips(const Block& block, int index);

/// Calls visit(begin, end) for the strips of each stretch of 64 tokens. A segment begins with one.
template <class Visit>
void for_each_stretch(StripRange strips, Visit visit) {
  for (int at = strips.begin / kChunkStrips * kChunkStrips; at < strips.end; at += kChunkStrips) {
    visit(std::max(at, strips.begin), std::min(at + kChunkStrips, strips.end));
  }
}

/// Strips that lie side by side in one page and one stretch of 64 tokens: all tiles, or all rows.
struct Part {
  const cache::PageSet* set;
  const std::uint8_t* frame;
  int strip;              ///< the first one, of the sequence
  int in_page, n_strips;  ///< its place there, and how many
  bool is_tile;
};

/// Calls visit(part) for the parts of strips `strips` of the sequence, from first to last.
template <class Visit>
void for_each_part(const Block& block, StripRange strips, Visit visit) {
  const cache::PagedKvView& kv = *block.kv;
  int page = strips.begin / kv.strips_per_page, in_page = strips.begin % kv.strips_per_page;
  for (int strip = strips.begin; strip < strips.end;) {
    const int n = std::min(
        {strips.end - strip, kChunkStrips - strip % kChunkStrips, kv.strips_per_page - in_page});
    const bool is_tile = kv.reads_tile(strip / kChunkStrips, block.query_tile);
    const cache::PageSet& set = is_tile ? kv.tiles : kv.rows;
    visit(Part{&set, set.frames[page], strip, in_page, n, is_tile});
    strip += n;
    in_page += n;
    if (in_page < kv.strips_per_page) continue;
    in_page = 0;
    ++page;
  }
}

/// Fills in what each row and the block as a whole see of segment `index`.
void find_visible(const Block& block, int index, Row* rows, Segment& segment);

/// Looks the segment's strips up in the page table; when the block goes on to the next segment,
/// that one's K strips that are fetched early as well.
void find_strips(const Block& block, int index, bool goes_on, Segment& segment);

}  // namespace kvasir::attention
