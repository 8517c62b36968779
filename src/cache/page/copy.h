// Copies the filled slots of one page into another frame: the "copy" of copy-on-write.
#pragma once

#include <cstdint>

#include "cache/page/geometry.h"

namespace kvasir::cache {

/// Copies the first `n_slots` slots of every layer from `source` to `target`, in whole strips;
/// of tile codecs, the complete tiles.
/// A contiguous cache has one huge page, so empty strips are left alone (and not made resident).
///
/// Requires  0 <= n_slots <= page_tokens; both frames have this geometry and do not overlap
/// Cost      O(n_slots * token_bytes)
void copy_slots(const PageGeometry& geometry, int n_slots, const std::uint8_t* source,
                std::uint8_t* target);

}  // namespace kvasir::cache
