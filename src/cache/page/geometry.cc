#include "cache/page/geometry.h"

#include <fmt/core.h>

#include "base/units.h"

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

std::size_t codec_value_bytes(CodecId codec) {
  switch (codec) {
    case CodecId::kF32:
      return 4;
    case CodecId::kF16:
    case CodecId::kBF16:
      return 2;
    default:
      break;
  }
  KVASIR_CHECK(false && "unknown codec");
  return 0;
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
  const auto layers = static_cast<std::uint64_t>(shape.n_layers);
  const auto heads = static_cast<std::uint64_t>(shape.n_kv_heads);
  const auto tokens = static_cast<std::uint64_t>(options.page_tokens);
  // Bytes of one token of one head: a row of V, a sixteenth of a strip of K.
  const std::uint64_t k_row =
      static_cast<std::uint64_t>(shape.head_dim) * codec_value_bytes(options.codec_k);
  const std::uint64_t v_row =
      static_cast<std::uint64_t>(shape.head_dim) * codec_value_bytes(options.codec_v);
  const std::uint64_t rows = capped_product(capped_product(layers, heads), tokens);
  // Padding adds less than 64 bytes per tile, so this bound also keeps the sums below from
  // wrapping.
  if (capped_product(rows, k_row + v_row) > kMaxFrameBytes) {
    return invalid(fmt::format(
        "frame above 2^40 B; got {} layers x {} kv heads x {} tokens x {} B, want a smaller page",
        layers, heads, tokens, k_row + v_row));
  }

  const std::uint64_t strip = k_row * kStripTokens;
  if (options.head_order == HeadOrder::kSplit) {
    geometry.k_strip_stride_ = strip;
    geometry.k_head_stride_ = round_up(k_row * tokens, kTileAlignment);
    geometry.k_bytes_ = geometry.k_head_stride_ * heads;
    geometry.v_row_stride_ = v_row;
    geometry.v_head_stride_ = round_up(v_row * tokens, kTileAlignment);
    geometry.layer_stride_ = geometry.k_bytes_ + geometry.v_head_stride_ * heads;
  } else {
    geometry.k_head_stride_ = strip;
    geometry.k_strip_stride_ = round_up(strip * heads, kTileAlignment);
    geometry.k_bytes_ = geometry.k_strip_stride_ * (tokens / kStripTokens);
    geometry.v_head_stride_ = v_row;
    geometry.v_row_stride_ = v_row * heads;
    geometry.layer_stride_ =
        geometry.k_bytes_ + round_up(geometry.v_row_stride_ * tokens, kTileAlignment);
  }
  geometry.frame_bytes_ = geometry.layer_stride_ * layers;
  geometry.token_bytes_ = layers * heads * (k_row + v_row);
  return geometry;
}

}  // namespace kvasir::cache
