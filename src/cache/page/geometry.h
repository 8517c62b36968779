// Where every byte of a page lies: the one place that computes offsets inside a frame.
//
// A frame holds, in order, layer -> K|V -> kv head -> tile (architecture.md D1). Contiguous caches,
// 512-token blocks, 16-token pages, interleaved heads and per-layer pools are other values of the
// same struct.
//
//   K tile  [page_tokens / 16][head_dim][16]   16 tokens (a strip) side by side: a vector lane each
//   V tile  [page_tokens][head_dim]            one token's row after the other
//
// Letters: L layers of the group, G kv heads, D head_dim, P page_tokens (docs/numerics.md).
// Thread safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "cache/codec/codec.h"

namespace kvasir::cache {

/// Tokens that a K tile keeps side by side; every page holds whole strips.
inline constexpr int kStripTokens = 16;

/// Split: a tile is contiguous (one head's strips one after the other).
/// Interleaved: all heads of a strip (K) or of a token (V) lie side by side.
enum class HeadOrder : std::uint8_t { kSplit, kInterleaved };

/// What a cache group stores: (layers x kv heads x head_dim) for K and for V.
struct GroupShape {
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
};

class PageGeometry {
 public:
  struct Options {
    GroupShape shape;
    CodecId codec_k = CodecId::kF16;
    CodecId codec_v = CodecId::kF16;
    /// A multiple of 16: a power of two 16..512 for pages, or a whole context for "contiguous".
    int page_tokens = 64;
    HeadOrder head_order = HeadOrder::kSplit;
  };
  /// Errors: kInvalidArgument (zero or negative extents, page_tokens not a multiple of 16, a frame
  /// above 2^40 bytes).
  static Result<PageGeometry> create(const Options& options);

  const Options& options() const { return options_; }
  const GroupShape& shape() const { return options_.shape; }
  int page_tokens() const { return options_.page_tokens; }
  int strips_per_page() const { return options_.page_tokens / kStripTokens; }

  /// Bytes of one page: every layer's K and V. A multiple of 64.
  std::size_t frame_bytes() const { return frame_bytes_; }
  /// Bytes one token occupies in the frame, all layers, K and V, without padding.
  std::size_t token_bytes() const { return token_bytes_; }

  /// Byte offset in the frame of kv head 0's first strip (K) or first row (V).
  std::size_t k_offset(int layer) const { return static_cast<std::size_t>(layer) * layer_stride_; }
  std::size_t v_offset(int layer) const { return k_offset(layer) + k_bytes_; }
  /// Bytes between neighbours: heads, strips (K), token rows (V).
  std::size_t k_head_stride() const { return k_head_stride_; }
  std::size_t k_strip_stride() const { return k_strip_stride_; }
  std::size_t v_head_stride() const { return v_head_stride_; }
  std::size_t v_row_stride() const { return v_row_stride_; }

 private:
  Options options_;
  std::size_t frame_bytes_ = 0, token_bytes_ = 0, layer_stride_ = 0, k_bytes_ = 0;
  std::size_t k_head_stride_ = 0, k_strip_stride_ = 0, v_head_stride_ = 0, v_row_stride_ = 0;
};

/// Bytes of one stored value.
std::size_t codec_value_bytes(CodecId codec);

/// ceil(n_tokens / page_tokens).
inline int pages_for(int n_tokens, int page_tokens) {
  return (n_tokens + page_tokens - 1) / page_tokens;
}

}  // namespace kvasir::cache
