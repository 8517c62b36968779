#include "cache/codec/codec.h"

#include "cache/codec/key_basis.h"

namespace kvasir::cache {
namespace {

struct CodecName {
  CodecId codec;
  std::string_view name;
};
constexpr CodecName kCodecNames[] = {
    {CodecId::kF32, "f32"},     {CodecId::kF16, "f16"},          {CodecId::kBF16, "bf16"},
    {CodecId::kInt8, "int8"},   {CodecId::kInt8G64, "int8-g64"}, {CodecId::kTile3, "tile3"},
    {CodecId::kTile4, "tile4"}, {CodecId::kTile5, "tile5"},
};

}  // namespace

std::string_view codec_name(CodecId codec) {
  for (const CodecName& entry : kCodecNames) {
    if (entry.codec == codec) return entry.name;
  }
  return "?";
}

std::optional<CodecId> parse_codec(std::string_view name) {
  for (const CodecName& entry : kCodecNames) {
    if (entry.name == name) return entry.codec;
  }
  return std::nullopt;
}

bool KvFormat::has_tiles(int n_layers) const {
  for (int layer = 0; layer < n_layers; ++layer) {
    if (is_tile_codec(of(layer).k) || is_tile_codec(of(layer).v)) return true;
  }
  return false;
}

std::string KvFormat::details(int n_layers) const {
  std::string text;
  if (!layers.empty()) {
    for (const LayerCodecs& codecs : layers) {
      text += static_cast<char>('0' + static_cast<int>(codecs.k));
      text += static_cast<char>('0' + static_cast<int>(codecs.v));
    }
  }
  if (!has_tiles(n_layers)) return text;
  text += " sinks " + std::to_string(n_sink_tiles) + " tail " + std::to_string(n_tail_tiles);
  bool has_basis = false;
  for (int layer = 0; layer < n_layers; ++layer) {
    has_basis = has_basis || (key_bases != nullptr && is_tile_codec(of(layer).k));
  }
  return has_basis ? text + " basis " + PageKey{key_bases->fingerprint()}.to_hex() : text;
}

}  // namespace kvasir::cache
