// Where codes and scales of K and V lie.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel.h"
#include "attention/segment.h"

namespace kvasir::attention {

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
  /// Whether its codes are those of a tile, which is then read as a whole.
  bool is_packed(int strip) const { return cache::is_tile_codec(layout(strip).codec); }
  /// The first strip that is read of strips from `strip` of a stretch.
  int first_read(int strip) const {
    return is_packed(strip) ? strip / kChunkStrips * kChunkStrips : strip;
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

}  // namespace kvasir::attention
