// Tiles of rows that are complete: what a tile codec makes of 64 tokens.
#pragma once

#include "cache/page/paged_kv_view.h"

namespace kvasir::cache {

/// Encodes K, or V, of one kv head's tokens [64 tile, 64 tile + 64) from their rows into the tile's
/// frame; a side with a row codec is copied. The result depends on the rows' bytes alone.
///
/// Requires  a layer with tiles; all 64 rows were written, and neither frame is freed
/// Threads   re-entrant for different tiles, heads or sides
void seal_tile(const PagedKvView& kv, int tile, int head, bool is_v);

}  // namespace kvasir::cache
