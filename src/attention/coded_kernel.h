// The steps of a block on one segment where K, or V, is in codes (codec.h).
//
// q is rounded to 8 bits a row, in the basis of K; the factors of V, exponents times the scale of
// each token's codes, to 14 bits relative to the segment's largest. Everything between is exact, so
// that a row's result depends on the stored bytes and its position alone (docs/numerics.md).
#pragma once

#include "attention/kernel.h"
#include "attention/segment.h"

namespace kvasir::attention {

/// Codes of the block's queries, in `work.q` and `work.queries`.
void pack_coded_queries(const Block& block, const Tiles& tiles, const Work& work);
/// Scores of all rows against the segment.
void score_coded_keys(const Block& block, const Segment& segment, const Shape& shape,
                      const Tiles& tiles, const Work& work);
/// The softmax of the scores, and V weighed with it, merged into the records.
void weigh_coded_values(const Block& block, const Segment& segment, const Shape& shape,
                        const Work& work);

}  // namespace kvasir::attention
