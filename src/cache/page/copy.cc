#include "cache/page/copy.h"

#include <cstring>

namespace kvasir::cache {

void copy_slots(const PageGeometry& geometry, int n_slots, const std::uint8_t* source,
                std::uint8_t* target) {
  KVASIR_CHECK(0 <= n_slots && n_slots <= geometry.page_tokens());
  const auto n_strips = static_cast<std::size_t>(pages_for(n_slots, kStripTokens));
  const bool split = geometry.options().head_order == HeadOrder::kSplit;
  // Split: every head has strips of its own. Interleaved: a strip holds all heads side by side.
  const int n_tiles = split ? geometry.shape().n_kv_heads : 1;
  const std::size_t k_bytes = n_strips * geometry.k_strip_stride();
  const std::size_t v_bytes = n_strips * kStripTokens * geometry.v_row_stride();
  for (int layer = 0; layer < geometry.shape().n_layers; ++layer) {
    for (int tile = 0; tile < n_tiles; ++tile) {
      const auto tile_idx = static_cast<std::size_t>(tile);
      const std::size_t k = geometry.k_offset(layer) + tile_idx * geometry.k_head_stride();
      const std::size_t v = geometry.v_offset(layer) + tile_idx * geometry.v_head_stride();
      std::memcpy(target + k, source + k, k_bytes);
      std::memcpy(target + v, source + v, v_bytes);
    }
  }
}

}  // namespace kvasir::cache
