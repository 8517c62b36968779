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
  const int base = index * kSegmentStrips;
  // A tile is found by its first strip, be that below a window.
  const int begin = segment.strip_begin;
  const int first = block.kv->has_tiles() ? begin / kChunkStrips * kChunkStrips : begin;
  for_each_part(block, {base + first, base + segment.strip_end}, [&](const Part& part) {
    const cache::SideLayout &k = part.set->k, &v = part.set->v;
    for (int i = 0; i < part.n_strips; ++i) {
      const int at = part.strip - base + i, in_page = part.in_page + i;
      segment.k[at] = part.frame + k.strip_at(in_page, block.kv_head);
      segment.v[at] = part.frame + v.strip_at(in_page, block.kv_head);
      if (!has_meta) continue;
      segment.k_meta[at] = part.frame + k.meta_at(in_page, block.kv_head);
      segment.v_meta[at] = part.frame + v.meta_at(in_page, block.kv_head);
    }
    segment.is_tile[(part.strip - base) / kChunkStrips] = part.is_tile;
  });
  const int next = base + kSegmentStrips;
  const int last_strip = (block.first_pos + block.n_positions - 1) / 16;
  const int most = block.is_direct() ? kChunkStrips : kSegmentStrips;
  segment.n_next = goes_on ? std::clamp(last_strip + 1 - next, 0, most) : 0;
  for_each_part(block, {next, next + segment.n_next}, [&](const Part& part) {
    for (int i = 0; i < part.n_strips; ++i) {
      segment.next_k[part.strip - next + i] =
          part.frame + part.set->k.strip_at(part.in_page + i, block.kv_head);
    }
  });
}

}  // namespace kvasir::attention
