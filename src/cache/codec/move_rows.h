// Copies K and V of tokens from one sequence to other positions of another, with a change to K.
#pragma once

#include <functional>
#include <span>

#include "base/types.h"
#include "cache/page/paged_kv_view.h"

namespace kvasir::cache {

/// Changes K of some tokens in place: keys [n_rows][n_kv_heads][head_dim].
using ChangeKeys = std::function<void(int n_rows, float* keys)>;

/// Copies one layer's rows of the tokens [from, from + n_tokens) of `source` to the positions from
/// `to` on of `target`: V byte for byte, K decoded, changed and encoded again. Tokens whose source
/// page a window group has freed are left out.
///
/// Requires  the same shape and codecs; the target's slots were appended (Sequence::append), and
///           share no frame with the source's tokens; `scratch` has kStripTokens rows of keys
/// Threads   re-entrant for disjoint ranges of the target, with a scratch each
void move_rows(const PagedKvView& source, Position from, const PagedKvView& target, Position to,
               int n_tokens, const ChangeKeys& change, std::span<float> scratch);

}  // namespace kvasir::cache
