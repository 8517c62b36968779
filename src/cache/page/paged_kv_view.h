// What a kernel sees of one layer of one sequence: frames in order and strides, nothing about who
// owns them. The boundary between the cache and the attention room.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "cache/page/geometry.h"

namespace kvasir::cache {

/// Non-owning. Valid until the sequence is next appended to, truncated or closed.
/// Slots at and after `n_tokens`, and appended slots not yet written, hold undefined bytes (frames
/// are reused, not cleared): possibly NaN, so a kernel must mask them, not multiply them by zero.
struct PagedKvView {
  /// Page index -> start of its frame. Null where a window group has freed the page: such pages lie
  /// wholly below every window that the kernel will be asked for.
  std::uint8_t* const* frames = nullptr;
  int n_tokens = 0;         ///< tokens stored, and slots already appended for the running step
  int strips_per_page = 0;  ///< page_tokens / kStripTokens
  int n_kv_heads = 0;
  int head_dim = 0;
  CodecId codec_k = CodecId::kF16;
  CodecId codec_v = CodecId::kF16;
  std::size_t k_offset = 0;  ///< byte offsets of this layer's K and V in a frame, kv head 0
  std::size_t v_offset = 0;
  std::size_t k_head_stride = 0, k_strip_stride = 0;
  std::size_t v_head_stride = 0, v_row_stride = 0;

  /// First byte of strip `strip` (absolute: token / 16) of kv head `head`: [head_dim][16] values.
  std::uint8_t* k_strip(int strip, int head) const {
    return frames[strip / strips_per_page] + k_offset +
           static_cast<std::size_t>(head) * k_head_stride +
           static_cast<std::size_t>(strip % strips_per_page) * k_strip_stride;
  }
  /// First byte of the row of token 16 * strip: 16 rows of head_dim values, `v_row_stride` apart.
  std::uint8_t* v_strip(int strip, int head) const {
    return frames[strip / strips_per_page] + v_offset +
           static_cast<std::size_t>(head) * v_head_stride +
           static_cast<std::size_t>(strip % strips_per_page) * kStripTokens * v_row_stride;
  }
};

}  // namespace kvasir::cache
