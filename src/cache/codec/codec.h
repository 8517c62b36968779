// How K and V are stored: names, sizes, and what a layer uses.
//
// Row codecs write a token's row in place. Tile codecs encode 64 sealed tokens of a kv head at
// once; until then, and for the newest tokens, such a layer keeps int8 rows (ADR 11).
//
//   f32, f16, bf16   the values
//   int8             one scale per token and kv head, in the Hadamard basis
//   int8-g64         scale and centre per token and 64 channels, as the values are
//   tile3..tile5     3, 4, 5 bits in tiles (tile_codec.h), in the Hadamard basis; of K, and of the
//                    rows beside it, after the calibrated one where there is one (key_basis.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::cache {

class KeyBases;

/// Stable numbers: part of every stored key.
enum class CodecId : std::uint8_t {
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kInt8 = 4,
  kInt8G64 = 5,
  kTile3 = 6,
  kTile4 = 7,
  kTile5 = 8,
};

/// Tokens of a tile.
inline constexpr int kTileTokens = 64;
/// Channels that share a scale in int8-g64.
inline constexpr int kGroupChannels = 64;

/// What one layer's K and V are stored as.
struct LayerCodecs {
  CodecId k = CodecId::kF16;
  CodecId v = CodecId::kF16;
  bool operator==(const LayerCodecs&) const = default;
};

/// What all layers' K and V are stored as.
struct KvFormat {
  LayerCodecs all;                  ///< of every layer, unless
  std::vector<LayerCodecs> layers;  ///< [n_layers] is given
  /// Tiles of 64 tokens that a query reads as int8 rows although they are sealed: the first ones of
  /// its history, and the last ones before its own.
  int n_sink_tiles = 1, n_tail_tiles = 1;
  /// Of K, in layers where it has a tile codec; null: none.
  std::shared_ptr<const KeyBases> key_bases{};

  LayerCodecs of(int layer) const {
    return layers.empty() ? all : layers[static_cast<std::size_t>(layer)];
  }
  /// Whether some of `n_layers` layers has a tile codec.
  bool has_tiles(int n_layers) const;
  /// What `all` does not say, in few words; empty for row codecs. Part of every stored key.
  std::string details(int n_layers) const;
};

/// "f32", "f16", "bf16", "int8", "int8-g64", "tile3", ...
std::string_view codec_name(CodecId codec);
std::optional<CodecId> parse_codec(std::string_view name);

/// Bits of one value's code: 32, 16, 8, 5, 4, 3.
constexpr int codec_bits(CodecId codec) {
  switch (codec) {
    case CodecId::kF32:
      return 32;
    case CodecId::kF16:
    case CodecId::kBF16:
      return 16;
    case CodecId::kInt8:
    case CodecId::kInt8G64:
      return 8;
    case CodecId::kTile3:
      return 3;
    case CodecId::kTile4:
      return 4;
    case CodecId::kTile5:
      return 5;
  }
  return 0;
}

constexpr bool is_tile_codec(CodecId codec) { return codec >= CodecId::kTile3; }
/// Whether kernels multiply integer codes.
constexpr bool is_coded(CodecId codec) { return codec >= CodecId::kInt8; }
/// Whether values are stored in the basis of simd/hadamard-inl.h.
constexpr bool is_hadamard(CodecId codec) {
  return codec == CodecId::kInt8 || is_tile_codec(codec);
}
/// What a layer's newest tokens are stored as.
constexpr CodecId row_codec_of(CodecId codec) {
  return is_tile_codec(codec) ? CodecId::kInt8 : codec;
}

/// Groups of channels of int8-g64.
constexpr int channel_groups(CodecId codec, int head_dim) {
  return codec == CodecId::kInt8G64 ? (head_dim + kGroupChannels - 1) / kGroupChannels : 1;
}

/// Bytes of the codes of `n_tokens` tokens of one kv head, whole strips of 16.
constexpr std::size_t code_bytes(CodecId codec, int head_dim, int n_tokens) {
  return static_cast<std::size_t>(head_dim) * static_cast<std::size_t>(n_tokens) *
         static_cast<std::size_t>(codec_bits(codec)) / 8;
}

/// Bytes of scales and the like per strip of 16 tokens of one kv head; a tile's are four strips'.
///
///   int8      f16 scale [16]
///   int8-g64  per group of channels: f16 scale [16], f16 centre [16]
///   K tile    u8 step [D], s8 offset [D], u8 token scale [64], f32 base, f32 token base
///   V tile    u8 token scale [64], s8 centre [64], f32 scale base, f32 centre base
constexpr std::size_t meta_strip_bytes(CodecId codec, int head_dim, bool is_v) {
  switch (codec) {
    case CodecId::kInt8:
      return 32;
    case CodecId::kInt8G64:
      return 64 * static_cast<std::size_t>(channel_groups(codec, head_dim));
    case CodecId::kTile3:
    case CodecId::kTile4:
    case CodecId::kTile5:
      return is_v ? (2 * kTileTokens + 8) / 4
                  : (2 * static_cast<std::size_t>(head_dim) + kTileTokens + 8) / 4;
    case CodecId::kF32:
    case CodecId::kF16:
    case CodecId::kBF16:
      return 0;
  }
  return 0;
}

/// Whether codecs of integers can store heads of this size: 64, 80, 96, 112, 128, 256.
inline constexpr int kMaxCodedHeadDim = 256;
constexpr bool is_coded_head_dim(int head_dim) {
  return head_dim % 16 == 0 && head_dim >= 16 && head_dim <= kMaxCodedHeadDim;
}

}  // namespace kvasir::cache
