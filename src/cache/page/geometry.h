// Where every byte of a page lies: the one place that computes offsets inside a frame.
//
// A frame holds, in order, layer -> K|V -> kv head -> tile (architecture.md D1). Contiguous caches,
// 512-token blocks, 16-token pages, interleaved heads and per-layer pools are other values of the
// same struct.
//
//   K tile  [page_tokens / 16][head_dim][16]   16 tokens (a strip) side by side: a vector lane each
//   V tile  [page_tokens][head_dim]            one token's row after the other
//
// Codes of 8 bits are multiplied four at a time: K [page_tokens / 16][head_dim / 4][16][4], V
// [page_tokens / 4][head_dim][4]; those of tile codecs as tile_codec.h says. Their scales follow
// the layer's last V tile, strip by strip: all of K, then all of V, kv head by kv head.
//
// Letters: L layers of the group, G kv heads, D head_dim, P page_tokens (docs/numerics.md).
// Thread safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "cache/codec/codec.h"

namespace kvasir::cache {

/// Tokens that a K tile keeps side by side; every page holds whole strips.
inline constexpr int kStripTokens = 16;

/// Split: a tile is contiguous (one head's strips one after the other).
/// Interleaved: all heads of a strip (K, codes of V) or of a token (V) lie side by side; tiles of
/// tile codecs are split even so.
enum class HeadOrder : std::uint8_t { kSplit, kInterleaved };

/// What a cache group stores: (layers x kv heads x head_dim) for K and for V.
struct GroupShape {
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
};

/// Where K, or V, of one layer lies in a frame. In bytes.
struct SideLayout {
  CodecId codec = CodecId::kF16;
  std::size_t offset = 0;        ///< kv head 0's first strip
  std::size_t head_stride = 0;   ///< between kv heads
  std::size_t strip_stride = 0;  ///< between strips; a row of V, or of its codes, takes a sixteenth
  std::size_t meta_offset = 0;   ///< kv head 0's first scales
  std::size_t meta_head_stride = 0, meta_strip_stride = 0;

  std::size_t row_stride() const { return strip_stride / kStripTokens; }
  /// Codes, and scales, of a strip of the frame.
  std::size_t strip_at(int strip_in_page, int head) const {
    return offset + static_cast<std::size_t>(head) * head_stride +
           static_cast<std::size_t>(strip_in_page) * strip_stride;
  }
  std::size_t meta_at(int strip_in_page, int head) const {
    return meta_offset + static_cast<std::size_t>(head) * meta_head_stride +
           static_cast<std::size_t>(strip_in_page) * meta_strip_stride;
  }
};

class PageGeometry {
 public:
  struct Options {
    GroupShape shape;
    CodecId codec_k = CodecId::kF16;
    CodecId codec_v = CodecId::kF16;
    std::vector<LayerCodecs> layer_codecs = {};  ///< by layer; empty: codec_k and codec_v for all
    /// A multiple of 16, with a tile codec of 64: a power of two 16..512 for pages, or a whole
    /// context for "contiguous".
    int page_tokens = 64;
    HeadOrder head_order = HeadOrder::kSplit;
  };
  /// Errors: kInvalidArgument (zero or negative extents, page_tokens not a multiple of 16, a frame
  /// above 2^40 bytes), kUnsupported (a head size that a codec does not have).
  static Result<PageGeometry> create(const Options& options);

  const Options& options() const { return options_; }
  const GroupShape& shape() const { return options_.shape; }
  int page_tokens() const { return options_.page_tokens; }
  int strips_per_page() const { return options_.page_tokens / kStripTokens; }

  /// Bytes of one page: every layer's K and V. A multiple of 64.
  std::size_t frame_bytes() const { return frame_bytes_; }
  /// Bytes one token occupies in the frame, all layers, K and V, without padding.
  std::size_t token_bytes() const { return token_bytes_; }

  const SideLayout& k(int layer) const { return sides_[static_cast<std::size_t>(layer)].k; }
  const SideLayout& v(int layer) const { return sides_[static_cast<std::size_t>(layer)].v; }

 private:
  struct Sides {
    SideLayout k, v;
  };
  /// Lays out one layer from `offset` on; returns where it ends.
  std::size_t lay_out(LayerCodecs codecs, std::size_t offset, Sides& sides) const;
  Status check(LayerCodecs codecs) const;

  Options options_;
  std::size_t frame_bytes_ = 0, token_bytes_ = 0;
  std::vector<Sides> sides_;  ///< by layer
};

/// ceil(n_tokens / page_tokens).
inline int pages_for(int n_tokens, int page_tokens) {
  return (n_tokens + page_tokens - 1) / page_tokens;
}

}  // namespace kvasir::cache
