// The tile codec: 64 tokens of one kv head's K or V in 3, 4 or 5 bits a value.
//
// Values (b the bits, D the head dim, t a token, d a channel; scales are powers with few bits):
//
//   K  x[t][d] = (token_scale(t) * base) * (step[d] * code + offset[d])
//      token_scale(t) = token_base * k_scale_unit(scale[t])
//      step * code + offset is in [-127, 127] for every code, so a kernel may multiply int8.
//   V  x[t][d] = scale(t) * v8 + centre(t)
//      scale(t) = scale_base * v_scale_unit(scale[t]),  centre(t) = centre_base * centre[t]
//      v8 = (code << (8 - b)) - 128 + (1 << (7 - b)): the code is the top bits of v8 + 128.
//
// Codes. Each tile has an 8-bit form, a code a byte; its bytes are packed in planes.
//
//   K  four strips of 16 tokens, each [D/4 channel quads][16 tokens][4 channels]: n = 16 D bytes
//   V  the whole tile, [16 token quads][D channels][4 tokens]: n = 64 D bytes
//
// Byte i of the 8-bit form is found, in the n b / 8 bytes of its strip (K) or tile (V), at
//
//   4 bits  nibble i / (n/2) of byte i % (n/2)
//   3 bits  upper two bits: field i / (n/4), bits [2 field, 2 field + 2), of byte i % (n/4);
//           lowest bit: bit i % 8 of byte n/4 + i/8
//   5 bits  upper four bits as with 4 bits; lowest bit: bit i % 8 of byte n/2 + i/8
//
// In registers of 64 bytes, K: register r of a nibble plane has quad r in the low nibbles and quad
// r + D/8 in the high ones; register r of a 2-bit plane has quads r + m D/16 in bits [2m, 2m + 2);
// the lowest bits of a quad are 8 bytes, bit 4 token + channel. V: the nibble plane is [8][D][4],
// token quads r and r + 8; the 2-bit plane [4][D][4], token quads r + 4 m; the lowest bits are
// [16 quads][D/16][8 bytes], bit 4 channel + token. K strips follow each other: 2 b D bytes each.
//
// A tile with a NaN, an infinity or a magnitude of 2^120 is poisoned: both bases are NaN, so every
// value reads back as NaN. A tile whose values are all below 2^-100 is zero: both bases are 0.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cache/codec/codec.h"

namespace kvasir::cache {

/// Bytes of one tile: codes, and metadata (each four strips' worth).
constexpr std::size_t tile_code_bytes(CodecId codec, int head_dim) {
  return code_bytes(codec, head_dim, kTileTokens);
}
constexpr std::size_t tile_meta_bytes(CodecId codec, int head_dim, bool is_v) {
  return 4 * meta_strip_bytes(codec, head_dim, is_v);
}

/// Bits of a field of the first plane: 2 with 3 bits, 4 with 4 and 5; the second plane has the
/// lowest bit, where there is one.
constexpr int tile_plane_bits(CodecId codec) { return codec == CodecId::kTile3 ? 2 : 4; }
constexpr bool tile_has_bit_plane(CodecId codec) { return codec != CodecId::kTile4; }

/// Bytes of the 8-bit form of a strip of K; of V.
constexpr std::size_t k_strip_form_bytes(int head_dim) {
  return 16 * static_cast<std::size_t>(head_dim);
}
constexpr std::size_t v_form_bytes(int head_dim) { return 4 * k_strip_form_bytes(head_dim); }

/// Bytes of the first plane of an 8-bit form of `form_bytes`, which is where the second begins.
constexpr std::size_t tile_plane_bytes(CodecId codec, std::size_t form_bytes) {
  return form_bytes * static_cast<std::size_t>(tile_plane_bits(codec)) / 8;
}

/// Largest step of a K channel: max_k_step * (2^b - 1) <= 252.
constexpr int max_k_step(CodecId codec) {
  return codec == CodecId::kTile3 ? 36 : codec == CodecId::kTile4 ? 16 : 8;
}

/// Scales are floats with few bits of exponent and mantissa: bits = (scale << shift) + bias.
inline constexpr int kKScaleShift = 19;  // 4 mantissa bits and 4 exponent bits: 2^-15 .. 1.9375
inline constexpr std::uint32_t kKScaleBias = 112u << 23;
inline constexpr int kVScaleShift = 18;  // 5 mantissa bits and 3 exponent bits: 2^-7 .. 1.96875
inline constexpr std::uint32_t kVScaleBias = 120u << 23;

constexpr float k_scale_unit(std::uint8_t scale) {
  return std::bit_cast<float>((std::uint32_t{scale} << kKScaleShift) + kKScaleBias);
}
constexpr float v_scale_unit(std::uint8_t scale) {
  return std::bit_cast<float>((std::uint32_t{scale} << kVScaleShift) + kVScaleBias);
}

/// v8 of a code.
constexpr int v8_of_code(CodecId codec, int code) {
  const int bits = codec_bits(codec);
  return code * (1 << (8 - bits)) - 128 + (1 << (7 - bits));
}

/// The metadata of a K tile; pointers into its bytes, which need no alignment.
struct KTileMeta {
  KTileMeta(int head_dim, const std::uint8_t* meta)
      : step(meta),
        offset(reinterpret_cast<const std::int8_t*>(meta + head_dim)),
        scale(meta + 2 * head_dim) {
    std::memcpy(&base, scale + kTileTokens, sizeof(base));
    std::memcpy(&token_base, scale + kTileTokens + sizeof(base), sizeof(token_base));
  }
  const std::uint8_t* step;   // [head_dim]
  const std::int8_t* offset;  // [head_dim]
  const std::uint8_t* scale;  // [64]
  float base = 0, token_base = 0;
};

/// The same of a V tile.
struct VTileMeta {
  explicit VTileMeta(const std::uint8_t* meta)
      : scale(meta), centre(reinterpret_cast<const std::int8_t*>(meta + kTileTokens)) {
    std::memcpy(&scale_base, meta + 2 * kTileTokens, sizeof(scale_base));
    std::memcpy(&centre_base, meta + 2 * kTileTokens + sizeof(scale_base), sizeof(centre_base));
  }
  const std::uint8_t* scale;  // [64]
  const std::int8_t* centre;  // [64]
  float scale_base = 0, centre_base = 0;
};

/// Encodes 64 tokens of one kv head. The same bytes on every CPU.
///
/// Shapes    rows: row t at `rows + t * row_stride` floats, [head_dim], in the basis of the codec
///           codes: tile_code_bytes(); meta: tile_meta_bytes()
/// Requires  is_tile_codec(codec), is_coded_head_dim(head_dim)
void encode_k_tile(CodecId codec, int head_dim, const float* rows, std::size_t row_stride,
                   std::uint8_t* codes, std::uint8_t* meta);
void encode_v_tile(CodecId codec, int head_dim, const float* rows, std::size_t row_stride,
                   std::uint8_t* codes, std::uint8_t* meta);

/// Decodes a tile into rows [64][head_dim]: what kernels must agree with.
void decode_k_tile(CodecId codec, int head_dim, const std::uint8_t* codes, const std::uint8_t* meta,
                   float* rows);
void decode_v_tile(CodecId codec, int head_dim, const std::uint8_t* codes, const std::uint8_t* meta,
                   float* rows);

/// The 8-bit forms: codes [4 strips][D/4][16][4] of K; v8 [16][D][4] of V.
void unpack_k_tile_codes(CodecId codec, int head_dim, const std::uint8_t* codes, std::uint8_t* out);
void unpack_v_tile_codes(CodecId codec, int head_dim, const std::uint8_t* codes, std::int8_t* out);

}  // namespace kvasir::cache
