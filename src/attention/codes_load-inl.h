// What the byte dots of a block read: codes of q; of K and V codes, or tiles unpacked to bytes, and
// scales.
//
// Included once per target by coded_kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_CODES_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_CODES_LOAD_INL_H_
#undef KVASIR_ATTENTION_CODES_LOAD_INL_H_
#else
#define KVASIR_ATTENTION_CODES_LOAD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/codes-inl.h"
#include "attention/codes_places.h"
#include "attention/factors-inl.h"
#include "attention/packed-inl.h"
#include "attention/unpack-inl.h"
#include "cache/codec/tile_codec.h"
#include "simd/hadamard-inl.h"
#include "simd/multiply_row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

/// Codes of one row: q = factor * code, with the Hadamard transform where K has it, and before that
/// times `basis` (null: none) where K has a calibrated one. kHeadDim: 0, or that of the row;
/// kPartChannels: 0, or the channels that share a factor.
template <int kHeadDim, int kPartChannels>
void encode_query(const float* q, int head_dim, const float* basis, bool is_hadamard, float scale,
                  std::int8_t* codes, CodedQuery& query) {
  if constexpr (kHeadDim > 0) head_dim = kHeadDim;
  const int part_channels = kPartChannels > 0 ? kPartChannels : head_dim;
  HWY_ALIGN float transformed[kMaxHeadDim];
  const float* row = q;
  if (basis != nullptr) {
    sn::MultiplyRow(row, basis, head_dim, transformed);
    row = transformed;
  }
  if (is_hadamard) {
    sn::Hadamard(row, head_dim, 1.0f, transformed);
    row = transformed;
  }
  const Tag16 tag;
  const hn::RebindToSigned<Tag16> ti;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to nearest even
  query = {};
  for (int first = 0, part = 0; first < head_dim; first += part_channels, ++part) {
    const int end = std::min(head_dim, first + part_channels);
    const float most = largest_magnitude(row + first, end - first);
    const bool is_finite = std::isfinite(most);
    const bool is_usable = most > 0.0f && is_finite;
    query.factor[part] = is_finite ? most / 127.0f * scale : kNaN;
    const auto inverse = hn::Set(tag, is_usable ? 127.0f / most : 0.0f);
    auto sum = hn::Zero(ti);
    for (int d = first; d < end; d += kLanes) {
      const auto shifted = sn::FusedMulAdd(hn::LoadU(tag, row + d), inverse, hn::Set(tag, kMagic));
      auto code = hn::Sub(hn::BitCast(ti, shifted), hn::BitCast(ti, hn::Set(tag, kMagic)));
      if (!is_usable) code = hn::Zero(ti);
      store_low_bytes(code, reinterpret_cast<std::uint8_t*>(codes + d));
      sum = hn::Add(sum, code);
    }
    query.minus_sum[part] = -hn::GetLane(hn::SumOfLanes(ti, sum));
  }
}

void pack_coded_queries(const Block& block, const Tiles& tiles, const Work& work) {
  const int head_dim = block.params->head_dim;
  const bool is_hadamard = cache::is_hadamard(block.kv->rows.k.codec);
  // The loops of the sizes that most models have are unrolled.
  auto encode = head_dim == 64    ? encode_query<64, 0>
                : head_dim == 128 ? encode_query<128, 0>
                                  : encode_query<0, 0>;
  if (block.kv->rows.k.codec == CodecId::kInt8G64) encode = encode_query<0, kQueryPartChannels>;
  HWY_ALIGN std::int8_t codes[kMaxHeadDim];
  for (int tile = 0; tile < tiles.n_tiles; ++tile) {
    const int n_rows = tiles.rows(tile), first = tiles.first_row(tile);
    auto* packed =
        reinterpret_cast<std::int8_t*>(work.q + static_cast<std::ptrdiff_t>(first) * head_dim);
    for (int r = 0; r < n_rows; ++r) {
      const int row = first + r;
      const float* q =
          block.q + static_cast<std::size_t>(row / block.n_heads) * block.params->q_row_stride +
          static_cast<std::size_t>(row % block.n_heads) * static_cast<std::size_t>(head_dim);
      const int kv_head = block.kv_head + row % block.n_heads / block.heads_per_kv_head();
      encode(q, head_dim, block.kv->query_basis(kv_head), is_hadamard, block.params->scale, codes,
             work.queries[row]);
      for (int quad = 0; quad < head_dim / 4; ++quad) {
        std::memcpy(packed + (quad * n_rows + r) * 4, codes + 4 * quad, 4);
      }
    }
  }
}

/// Strips [begin, end) of the segment, which lie in one stretch of 64 tokens, of a kv head.
void load_keys(const Block& block, const Places& places, int head, int begin, int end,
               const Work& work, KeyChunk& chunk) {
  const int head_dim = block.params->head_dim;
  const CodecId codec = places.layout(begin).codec;
  chunk.n_strips = end - begin;
  if (cache::is_tile_codec(codec)) {  // of which the tile is whole
    const int first = begin / kChunkStrips * kChunkStrips;
    const PackedKeys keys(places.codes(first, head), places.meta(first, head), head_dim);
    auto* bytes = reinterpret_cast<std::uint8_t*>(work.k);
    with_tile_codec(
        codec, [&](auto tile) { unpack_keys<tile()>(keys.codes, keys.meta, head_dim, bytes); });
    const int skipped = 16 * (begin - first);
    for (int token = skipped; token < kChunkTokens; token += kLanes) {
      hn::Store(load_key_scales(keys.meta, token), Tag16(), chunk.scale[0] + token - skipped);
    }
    for (int i = 0; i < chunk.n_strips; ++i) {
      chunk.strips[i] = bytes + (begin - first + i) * 16 * head_dim;
    }
    return;
  }
  const int n_groups = cache::channel_groups(codec, head_dim);
  for (int i = 0; i < chunk.n_strips; ++i) {
    chunk.strips[i] = places.codes(begin + i, head);
    const std::uint8_t* meta = places.meta(begin + i, head);
    for (int group = 0; group < n_groups; ++group) {
      unpack_halves(meta, chunk.scale[group] + 16 * i);
      meta += 32;
      if (codec != CodecId::kInt8G64) continue;
      unpack_halves(meta, chunk.centre[group] + 16 * i);
      meta += 32;
    }
  }
}

/// Scales of V of a kv head and group of channels, of the segment's visible strips.
void load_value_scales(const Segment& segment, const Places& places, int head, int group,
                       ValueScales& scales) {
  scales.has_centre = false;
  for_each_stretch(segment.strips(), [&](int begin, int end) {
    const CodecId codec = places.layout(begin).codec;
    if (cache::is_tile_codec(codec)) {
      const int first = begin / kChunkStrips * kChunkStrips;
      unpack_value_scales(places.meta(first, head), scales.scale + 16 * first,
                          scales.centre + 16 * first);
      scales.has_centre = true;
      return;
    }
    for (int strip = begin; strip < end; ++strip) {
      const std::uint8_t* meta = places.meta(strip, head);
      float *const scale = scales.scale + 16 * strip, *const centre = scales.centre + 16 * strip;
      if (codec == CodecId::kInt8G64) {
        unpack_halves(meta + 64 * group, scale);
        unpack_halves(meta + 64 * group + 32, centre);
        scales.has_centre = true;
      } else {
        unpack_halves(meta, scale);
        std::fill_n(centre, 16, 0.0f);
      }
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
