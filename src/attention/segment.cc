#include "attention/segment.h"

#include <algorithm>

#include "attention/kernel.h"
#include "cache/codec/codec.h"

namespace kvasir::attention {
namespace {

/// First token that the row at `pos` sees.
int first_visible(Position pos, int window) {
  return window > 0 ? std::max(0, pos - window + 1) : 0;
}

/// Walks the page tables strip by strip, without a division per strip.
class StripWalk {
 public:
  StripWalk(const Block& block, int strip)
      : kv_(*block.kv),
        query_tile_(block.query_tile),
        head_(block.kv_head),
        strip_(strip),
        page_(strip / kv_.strips_per_page),
        in_page_(strip % kv_.strips_per_page) {}
  bool is_tile() const {
    return kv_.has_tiles() && kv_.reads_tile(strip_ / kTileStrips, query_tile_);
  }
  const std::uint8_t* k() const { return frame() + set().k.strip_at(in_page_, head_); }
  const std::uint8_t* v() const { return frame() + set().v.strip_at(in_page_, head_); }
  const std::uint8_t* k_meta() const { return frame() + set().k.meta_at(in_page_, head_); }
  const std::uint8_t* v_meta() const { return frame() + set().v.meta_at(in_page_, head_); }
  void next() {
    ++strip_;
    if (++in_page_ < kv_.strips_per_page) return;
    in_page_ = 0;
    ++page_;
  }

 private:
  static constexpr int kTileStrips = cache::kTileTokens / cache::kStripTokens;
  const cache::PageSet& set() const { return is_tile() ? kv_.tiles : kv_.rows; }
  const std::uint8_t* frame() const { return set().frames[page_]; }
  const cache::PagedKvView& kv_;
  int query_tile_, head_, strip_, page_, in_page_;
};

}  // namespace

StripRange visible_strips(const Block& block, int index) {
  const int first = first_visible(block.first_pos, block.params->window) / 16;
  const int last = (block.first_pos + block.n_positions - 1) / 16;
  return {std::max(first, index * kSegmentStrips),
          std::min(last + 1, (index + 1) * kSegmentStrips)};
}

void find_visible(const Block& block, int index, Row* rows, Segment& segment) {
  const int base = index * kSegmentTokens;
  segment.token_begin = kSegmentTokens;
  segment.token_end = 0;
  for (int i = 0; i < block.n_positions; ++i) {
    const Position pos = block.first_pos + i;
    Row row;
    row.begin = std::max(0, first_visible(pos, block.params->window) - base);
    row.end = std::min(kSegmentTokens, pos + 1 - base);
    if (row.is_visible()) {
      segment.token_begin = std::min(segment.token_begin, row.begin);
      segment.token_end = std::max(segment.token_end, row.end);
    } else {
      row.begin = row.end = 0;
    }
    std::fill_n(rows + i * block.n_heads, block.n_heads, row);
  }
  segment.strip_begin = segment.token_begin / 16;
  segment.strip_end = (segment.token_end + 15) / 16;
}

void find_strips(const Block& block, int index, bool goes_on, Segment& segment) {
  const bool has_meta =
      cache::is_coded(block.kv->rows.k.codec) || cache::is_coded(block.kv->rows.v.codec);
  // A tile is found by its first strip, be that below a window.
  const int begin = segment.strip_begin;
  const int first = block.kv->has_tiles() ? begin / kChunkStrips * kChunkStrips : begin;
  StripWalk walk(block, index * kSegmentStrips + first);
  for (int strip = first; strip < segment.strip_end; ++strip, walk.next()) {
    segment.k[strip] = walk.k();
    segment.v[strip] = walk.v();
    if (!has_meta) continue;
    segment.k_meta[strip] = walk.k_meta();
    segment.v_meta[strip] = walk.v_meta();
    segment.is_tile[strip / kChunkStrips] = walk.is_tile();
  }
  const int next = (index + 1) * kSegmentStrips;
  const int last_strip = (block.first_pos + block.n_positions - 1) / 16;
  const int most = block.is_direct() ? kChunkStrips : kSegmentStrips;
  segment.n_next = goes_on ? std::clamp(last_strip + 1 - next, 0, most) : 0;
  for (int strip = 0; strip < segment.n_next; ++strip, walk.next()) {
    segment.next_k[strip] = walk.k();
  }
}

}  // namespace kvasir::attention
