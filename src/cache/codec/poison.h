// Which tokens' K or V cannot be read back as finite numbers: what was contained is to be counted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "cache/page/paged_kv_view.h"

namespace kvasir::cache {

/// Sets is_poisoned[i] where K or V of token first_pos + i reads back with a value that is not
/// finite: it was none, or it is beyond its codec's range. Leaves the others as they are. A tile is
/// poisoned where one of its 64 rows is, and nowhere else.
///
/// Shapes    k, v: as of write_kv, which has just written them; is_poisoned [n_tokens]
/// Threads   re-entrant for disjoint token ranges
/// Cost      one pass over plain values, which are in the cache; of codes, over their scales
void note_poisoned(const PagedKvView& kv, Position first_pos, int n_tokens, const float* k,
                   const float* v, std::size_t row_stride, std::uint8_t* is_poisoned);

}  // namespace kvasir::cache
