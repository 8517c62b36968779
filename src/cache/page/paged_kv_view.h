// What a kernel sees of one layer of one sequence: frames in order and strides, nothing about who
// owns them. The boundary between the cache and the attention room.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "cache/page/geometry.h"

namespace kvasir::cache {

/// One page table's frames, and where in them a layer lies.
struct PageSet {
  /// Page index -> start of its frame. Null where a page has been freed: no query that a kernel
  /// will be asked for reads it.
  std::uint8_t* const* frames = nullptr;
  SideLayout k, v;
};

/// The calibrated basis of one layer's K (codec/key_basis.h): what rows are multiplied by before
/// the Hadamard transform. Null: nothing.
struct KeyBasis {
  const float* keys = nullptr;     ///< [n_kv_heads][head_dim][head_dim]; of rows of K
  const float* queries = nullptr;  ///< the same of q: the inverses, transposed
};

/// Non-owning. Valid until the sequence is next appended to, truncated or closed.
/// Slots at and after `n_tokens`, and appended slots not yet written, hold undefined bytes (frames
/// are reused, not cleared): possibly NaN, so a kernel must mask them, not multiply them by zero.
struct PagedKvView {
  PageSet rows;             ///< what tokens are written to
  PageSet tiles;            ///< their sealed tiles; without frames: this layer has none
  int n_tokens = 0;         ///< tokens stored, and slots already appended for the running step
  int strips_per_page = 0;  ///< page_tokens / kStripTokens
  int n_kv_heads = 0;
  int head_dim = 0;
  /// A query reads the tiles of tokens except those of the first and of the last tiles of its
  /// history, which it reads as rows (reads_tile).
  int n_sink_tiles = 0, n_tail_tiles = 0;
  KeyBasis basis;  ///< of K's tiles, and of the rows beside them

  bool has_tiles() const { return tiles.frames != nullptr; }
  /// Whether a query in tile `query_tile` reads tile `tile`, rather than its rows: by position
  /// alone, so that results do not depend on how a history came about (architecture.md D2).
  bool reads_tile(int tile, int query_tile) const {
    return has_tiles() && tile >= n_sink_tiles && tile < query_tile - n_tail_tiles;
  }
  /// The matrices of kv head `head`; null: none.
  const float* key_basis(int head) const { return matrix_of(basis.keys, head); }
  const float* query_basis(int head) const { return matrix_of(basis.queries, head); }
  /// First byte of strip `strip` (absolute: token / 16) of kv head `head` of `set`.
  std::uint8_t* k_strip(const PageSet& set, int strip, int head) const {
    return set.frames[strip / strips_per_page] + set.k.strip_at(strip % strips_per_page, head);
  }
  std::uint8_t* v_strip(const PageSet& set, int strip, int head) const {
    return set.frames[strip / strips_per_page] + set.v.strip_at(strip % strips_per_page, head);
  }
  /// The scales of these.
  std::uint8_t* k_meta(const PageSet& set, int strip, int head) const {
    return set.frames[strip / strips_per_page] + set.k.meta_at(strip % strips_per_page, head);
  }
  std::uint8_t* v_meta(const PageSet& set, int strip, int head) const {
    return set.frames[strip / strips_per_page] + set.v.meta_at(strip % strips_per_page, head);
  }

 private:
  const float* matrix_of(const float* matrices, int head) const {
    const auto n = static_cast<std::size_t>(head_dim);
    return matrices == nullptr ? nullptr : matrices + static_cast<std::size_t>(head) * n * n;
  }
};

/// A view of `layer` whose pages have `geometry`; frames and n_tokens are left to be filled in.
PagedKvView view_of(const PageGeometry& geometry, int layer);

}  // namespace kvasir::cache
