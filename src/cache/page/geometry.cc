#include "cache/page/geometry.h"

#include <fmt/core.h>

#include "base/units.h"
#include "cache/page/paged_kv_view.h"

namespace kvasir::cache {

namespace {

constexpr std::size_t kTileAlignment = 64;  // a cache line, and the widest vector
constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 40;
constexpr int kMaxPageTokens = 1 << 30;  // page arithmetic stays inside int

/// a * b, or a value above kMaxFrameBytes when the product is. Requires: b > 0.
std::uint64_t capped_product(std::uint64_t a, std::uint64_t b) {
  return a > kMaxFrameBytes / b ? kMaxFrameBytes + 1 : a * b;
}

Error invalid(std::string message) {
  return Error{ErrorCode::kInvalidArgument, "cache geometry: " + std::move(message)};
}

}  // namespace

Status PageGeometry::check(LayerCodecs codecs) const {
  for (const CodecId codec : {codecs.k, codecs.v}) {
    const int head_dim = options_.shape.head_dim;
    if (is_coded(codec) && !is_coded_head_dim(head_dim)) {
      return Error{
          ErrorCode::kUnsupported,
          fmt::format("kv type of {} bits: head size; got {}, want a multiple of 16 up to {}",
                      codec_bits(codec), head_dim, kMaxCodedHeadDim)};
    }
    if (is_tile_codec(codec) && options_.page_tokens % kTileTokens != 0) {
      return invalid(
          fmt::format("page-tokens of a type below 8 bits; got {}, want a multiple of {}",
                      options_.page_tokens, kTileTokens));
    }
  }
  return {};
}

std::size_t PageGeometry::lay_out(LayerCodecs codecs, std::size_t offset, Sides& sides) const {
  const auto heads = static_cast<std::size_t>(options_.shape.n_kv_heads);
  const auto strips = static_cast<std::size_t>(strips_per_page());
  const auto place = [&](CodecId codec, SideLayout& side) {
    const std::size_t strip = code_bytes(codec, options_.shape.head_dim, kStripTokens);
    side.codec = codec;
    side.offset = offset;
    if (options_.head_order == HeadOrder::kSplit || is_tile_codec(codec)) {
      side.strip_stride = strip;
      side.head_stride = round_up(strip * strips, kTileAlignment);
      offset += side.head_stride * heads;
    } else {
      side.head_stride = &side == &sides.k || is_coded(codec) ? strip : strip / kStripTokens;
      side.strip_stride =
          &side == &sides.k ? round_up(strip * heads, kTileAlignment) : strip * heads;
      offset += round_up(side.strip_stride * strips, kTileAlignment);
    }
  };
  place(codecs.k, sides.k);
  place(codecs.v, sides.v);
  const auto place_meta = [&](SideLayout& side, bool is_v) {
    side.meta_offset = offset;
    side.meta_strip_stride = meta_strip_bytes(side.codec, options_.shape.head_dim, is_v);
    side.meta_head_stride = side.meta_strip_stride * strips;
    offset += side.meta_head_stride * heads;
  };
  place_meta(sides.k, false);
  place_meta(sides.v, true);
  return round_up(offset, kTileAlignment);
}

Result<PageGeometry> PageGeometry::create(const Options& options) {
  const GroupShape& shape = options.shape;
  if (shape.n_layers <= 0 || shape.n_kv_heads <= 0 || shape.head_dim <= 0) {
    return invalid(fmt::format("empty group; got {} layers x {} kv heads x {} dims, want all > 0",
                               shape.n_layers, shape.n_kv_heads, shape.head_dim));
  }
  if (options.page_tokens <= 0 || options.page_tokens % kStripTokens != 0 ||
      options.page_tokens > kMaxPageTokens) {
    return invalid(fmt::format("page size; got {} tokens, want a multiple of {} up to {}",
                               options.page_tokens, kStripTokens, kMaxPageTokens));
  }

  PageGeometry geometry;
  geometry.options_ = options;
  const auto n_layers = static_cast<std::size_t>(shape.n_layers);
  KVASIR_CHECK(options.layer_codecs.empty() || options.layer_codecs.size() == n_layers);
  const auto layers = static_cast<std::uint64_t>(shape.n_layers);
  const auto heads = static_cast<std::uint64_t>(shape.n_kv_heads);
  const auto tokens = static_cast<std::uint64_t>(options.page_tokens);
  // No value takes more than 4 bytes, and padding adds less than 64 per tile: what this bound lets
  // pass keeps the sums below from wrapping.
  const std::uint64_t row_bytes = 8 * static_cast<std::uint64_t>(shape.head_dim);
  const std::uint64_t rows = capped_product(capped_product(layers, heads), tokens);
  if (capped_product(rows, row_bytes) > kMaxFrameBytes) {
    return invalid(fmt::format(
        "frame above 2^40 B; got {} layers x {} kv heads x {} tokens x {} B, want a smaller page",
        layers, heads, tokens, row_bytes));
  }

  std::size_t strip_bytes = 0;
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    const LayerCodecs codecs = options.layer_codecs.empty()
                                   ? LayerCodecs{options.codec_k, options.codec_v}
                                   : options.layer_codecs[layer];
    KVASIR_RETURN_IF_ERROR(geometry.check(codecs));
    Sides sides;
    geometry.frame_bytes_ = geometry.lay_out(codecs, geometry.frame_bytes_, sides);
    geometry.sides_.push_back(sides);
    for (const CodecId codec : {codecs.k, codecs.v}) {
      strip_bytes += heads * code_bytes(codec, shape.head_dim, kStripTokens);
    }
    strip_bytes += heads * (sides.k.meta_strip_stride + sides.v.meta_strip_stride);
  }
  geometry.token_bytes_ = strip_bytes / kStripTokens;
  return geometry;
}

PagedKvView view_of(const PageGeometry& geometry, int layer) {
  PagedKvView view;
  view.rows.k = geometry.k(layer);
  view.rows.v = geometry.v(layer);
  view.strips_per_page = geometry.strips_per_page();
  view.n_kv_heads = geometry.shape().n_kv_heads;
  view.head_dim = geometry.shape().head_dim;
  return view;
}

}  // namespace kvasir::cache
