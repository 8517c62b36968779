#include "cache/page/copy.h"

#include <cstring>

namespace kvasir::cache {

void copy_slots(const PageGeometry& geometry, int n_slots, const std::uint8_t* source,
                std::uint8_t* target) {
  KVASIR_CHECK(0 <= n_slots && n_slots <= geometry.page_tokens());
  const int n_heads = geometry.shape().n_kv_heads;
  const auto copy_side = [&](const SideLayout& side) {
    const bool is_tile = is_tile_codec(side.codec);
    // A tile that is not complete is encoded when it is, anew.
    const int n_whole = is_tile ? n_slots / kTileTokens * kTileTokens : n_slots;
    const auto copy = [&](std::size_t at, std::size_t stride) {
      const auto n_strips = static_cast<std::size_t>(pages_for(n_whole, kStripTokens));
      std::memcpy(target + at, source + at, n_strips * stride);
    };
    // Split: every head has strips of its own. Interleaved: a strip holds all heads side by side.
    const bool split = is_tile || geometry.options().head_order == HeadOrder::kSplit;
    for (int head = 0; head < (split ? n_heads : 1); ++head) {
      copy(side.strip_at(0, head), side.strip_stride);
    }
    for (int head = 0; head < n_heads; ++head) copy(side.meta_at(0, head), side.meta_strip_stride);
  };
  for (int layer = 0; layer < geometry.shape().n_layers; ++layer) {
    copy_side(geometry.k(layer));
    copy_side(geometry.v(layer));
  }
}

}  // namespace kvasir::cache
