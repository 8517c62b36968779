// Row codecs: one token's K or V row written in place, value by value (f32, f16, bf16).
// Rounding is to nearest even on every CPU, so the stored bytes are the same everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/types.h"
#include "cache/page/paged_kv_view.h"

namespace kvasir::cache {

/// Writes K and V of `n_tokens` tokens at positions `first_pos`...
///
/// Shapes    k, v: row i at `k + i * row_stride` floats, each [n_kv_heads][head_dim]
/// Requires  the slots were appended; their pages are this sequence's own (Sequence::append)
/// Threads   re-entrant for disjoint token ranges
void write_kv(const PagedKvView& kv, Position first_pos, int n_tokens, const float* k,
              const float* v, std::size_t row_stride);

/// The same for K alone.
void write_k(const PagedKvView& kv, Position first_pos, int n_tokens, const float* k,
             std::size_t row_stride);

/// Reads one token's row of one head back as floats (oracle, `trace`, tests).
void read_k(const PagedKvView& kv, Position pos, int head, float* row);
void read_v(const PagedKvView& kv, Position pos, int head, float* row);

}  // namespace kvasir::cache
