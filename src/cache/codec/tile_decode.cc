// Decoding of tiles, value by value: the definition that encoders and kernels are tested against.
#include "base/check.h"
#include "cache/codec/tile_codec.h"

namespace kvasir::cache {

namespace {

/// Code `i` of a packed 8-bit form of `form_bytes`.
int unpack_code(CodecId codec, std::size_t form_bytes, const std::uint8_t* packed, std::size_t i) {
  const std::size_t plane_bytes = tile_plane_bytes(codec, form_bytes);
  const int bits = tile_plane_bits(codec);
  const int field = static_cast<int>(i / plane_bytes);
  const int upper = (packed[i % plane_bytes] >> (field * bits)) & ((1 << bits) - 1);
  if (!tile_has_bit_plane(codec)) return upper;
  return 2 * upper + ((packed[plane_bytes + i / 8] >> (i % 8)) & 1);
}

int k_code(CodecId codec, int head_dim, const std::uint8_t* codes, int t, int d) {
  const std::uint8_t* strip =
      codes + static_cast<std::size_t>(t / 16) * code_bytes(codec, head_dim, 16);
  const auto i = static_cast<std::size_t>((d / 4 * 16 + t % 16) * 4 + d % 4);
  return unpack_code(codec, k_strip_form_bytes(head_dim), strip, i);
}

int v_code(CodecId codec, int head_dim, const std::uint8_t* codes, int t, int d) {
  const auto i = static_cast<std::size_t>((t / 4 * head_dim + d) * 4 + t % 4);
  return unpack_code(codec, v_form_bytes(head_dim), codes, i);
}

}  // namespace

void decode_k_tile(CodecId codec, int head_dim, const std::uint8_t* codes, const std::uint8_t* meta,
                   float* rows) {
  KVASIR_DCHECK(is_tile_codec(codec) && is_coded_head_dim(head_dim));
  const KTileMeta tile(head_dim, meta);
  for (int t = 0; t < kTileTokens; ++t) {
    const float scale = tile.token_base * k_scale_unit(tile.scale[t]) * tile.base;
    for (int d = 0; d < head_dim; ++d) {
      const int value = tile.step[d] * k_code(codec, head_dim, codes, t, d) + tile.offset[d];
      *rows++ = scale * static_cast<float>(value);
    }
  }
}

void decode_v_tile(CodecId codec, int head_dim, const std::uint8_t* codes, const std::uint8_t* meta,
                   float* rows) {
  KVASIR_DCHECK(is_tile_codec(codec) && is_coded_head_dim(head_dim));
  const VTileMeta tile(meta);
  for (int t = 0; t < kTileTokens; ++t) {
    const float scale = tile.scale_base * v_scale_unit(tile.scale[t]);
    const float centre = tile.centre_base * static_cast<float>(tile.centre[t]);
    for (int d = 0; d < head_dim; ++d) {
      const int v8 = v8_of_code(codec, v_code(codec, head_dim, codes, t, d));
      *rows++ = scale * static_cast<float>(v8) + centre;
    }
  }
}

void unpack_k_tile_codes(CodecId codec, int head_dim, const std::uint8_t* codes,
                         std::uint8_t* out) {
  KVASIR_DCHECK(is_tile_codec(codec) && is_coded_head_dim(head_dim));
  const std::size_t form_bytes = k_strip_form_bytes(head_dim);
  for (int strip = 0; strip < kTileTokens / 16; ++strip) {
    for (std::size_t i = 0; i < form_bytes; ++i) {
      *out++ = static_cast<std::uint8_t>(unpack_code(codec, form_bytes, codes, i));
    }
    codes += code_bytes(codec, head_dim, 16);
  }
}

void unpack_v_tile_codes(CodecId codec, int head_dim, const std::uint8_t* codes, std::int8_t* out) {
  KVASIR_DCHECK(is_tile_codec(codec) && is_coded_head_dim(head_dim));
  const std::size_t form_bytes = v_form_bytes(head_dim);
  for (std::size_t i = 0; i < form_bytes; ++i) {
    *out++ = static_cast<std::int8_t>(v8_of_code(codec, unpack_code(codec, form_bytes, codes, i)));
  }
}

}  // namespace kvasir::cache
