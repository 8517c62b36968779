// Byte dots of few rows straight from tiles of 3, 4 and 5 bits: a register of codes is unpacked and
// multiplied at once. The same sums as codes-inl.h has of unpacked tiles.
//
// Included once per target by coded_kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_PACKED_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_PACKED_INL_H_
#undef KVASIR_ATTENTION_PACKED_INL_H_
#else
#define KVASIR_ATTENTION_PACKED_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/codes-inl.h"
#include "attention/unpack-inl.h"
#include "cache/codec/tile_codec.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

using cache::CodecId;

/// Visits visit(integral constant codec) with a tile codec.
template <class Visit>
auto with_tile_codec(CodecId codec, Visit visit) {
  if (codec == CodecId::kTile3) return visit(std::integral_constant<CodecId, CodecId::kTile3>());
  if (codec == CodecId::kTile4) return visit(std::integral_constant<CodecId, CodecId::kTile4>());
  return visit(std::integral_constant<CodecId, CodecId::kTile5>());
}

/// A tile of K of one kv head.
struct PackedKeys {
  const std::uint8_t* codes;
  cache::KTileMeta meta;
  int head_dim;

  PackedKeys(const std::uint8_t* tile_codes, const std::uint8_t* tile_meta, int channels)
      : codes(tile_codes), meta(channels, tile_meta), head_dim(channels) {}
};

/// Scores of R rows against strips [first, first + S) of a tile, as score_codes_tile's.
template <class Dots, CodecId kCodec, int R, int S>
HWY_INLINE void score_packed_strips(const std::int8_t* HWY_RESTRICT q, const CodedQuery* queries,
                                    const PackedKeys& keys, int first, FetchAhead& fetch,
                                    float* HWY_RESTRICT scores) {
  using Dot = typename Dots::Keys;
  constexpr int kVecs = S * kRegs;
  const std::size_t plane =
      cache::tile_plane_bytes(kCodec, cache::k_strip_form_bytes(keys.head_dim));
  const std::size_t strip_bytes = cache::code_bytes(kCodec, keys.head_dim, 16);
  const int n_registers = static_cast<int>(plane / 64);
  typename Dot::Sum acc[R][kVecs];
#pragma GCC unroll kUnroll
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
    for (int j = 0; j < kVecs; ++j) acc[r][j] = Dot::start(queries[r].minus_sum);
  }
  for (int at = 0; at < n_registers; ++at) {
    const std::uint8_t* codes = keys.codes + first * strip_bytes;
    fetch.lines<std::max(1, kTileLines<kCodec> * S / kChunkStrips)>();
    for_each_field<kCodec>([&](auto field) HWY_ATTR {
      const int quad = field() * n_registers + at;
      const KeyDecoder<kCodec> decoder(keys.meta, quad);
      typename Dot::Weights k[kVecs];
#pragma GCC unroll kUnroll
      for (int j = 0; j < kVecs; ++j) {
        const std::uint8_t* strip = codes + j / kRegs * strip_bytes;
        const int part = j % kRegs * kRegBytes;
        k[j] = Dot::prepare(
            decoder.template decode<field()>(sn::LoadBytes(strip + 64 * at + part), strip + plane,
                                             static_cast<std::size_t>(64 * quad + part)));
      }
#pragma GCC unroll kUnroll
      for (int r = 0; r < R; ++r) {
        const auto factor = sn::BroadcastQuad(q + (quad * R + r) * 4);
#pragma GCC unroll kUnroll
        for (int j = 0; j < kVecs; ++j) acc[r][j] = Dot::step(acc[r][j], k[j], factor);
      }
    });
  }
  const Tag16 tag;
#pragma GCC unroll kUnroll
  for (int j = 0; j < kVecs; ++j) {
    const int token = first * 16 + j * kLanes;
    const auto scale = load_key_scales(keys.meta, token);
#pragma GCC unroll kUnroll
    for (int r = 0; r < R; ++r) {
      const auto dot = hn::ConvertTo(tag, Dot::finish(acc[r][j], queries[r].minus_sum));
      hn::Store(hn::Mul(hn::Mul(dot, scale), hn::Set(tag, queries[r].factor[0])), tag,
                scores + r * kSegmentTokens + token);
    }
  }
}

template <class Dots, CodecId kCodec, int R>
HWY_NOINLINE void score_packed(const std::int8_t* q, const CodedQuery* queries,
                               const PackedKeys& keys, FetchAhead& fetch, float* scores) {
  constexpr int S = strips_beside(R);
  for (int first = 0; first < kChunkStrips; first += S) {
    score_packed_strips<Dots, kCodec, R, S>(q, queries, keys, first, fetch, scores);
  }
}

using ScorePackedFunction = void (*)(const std::int8_t*, const CodedQuery*, const PackedKeys&,
                                     FetchAhead&, float*);

template <class Dots, CodecId kCodec, int R = 1>
ScorePackedFunction choose_score_packed(int n_rows) {
  if constexpr (R < kMaxDirectHeads) {
    if (n_rows > R) return choose_score_packed<Dots, kCodec, R + 1>(n_rows);
  }
  return score_packed<Dots, kCodec, R>;
}

/// Adds C panels of 16 channels of a tile of V, from channel `channel`, to `sums`, as weigh_codes
/// does. `planes`: the factors of the tile's first token.
template <class Dots, CodecId kCodec, int R, int C>
HWY_INLINE void weigh_packed(CodeSums<R, C>& sums, const std::uint8_t* HWY_RESTRICT codes,
                             int head_dim, int channel, FetchAhead& fetch,
                             const std::uint8_t* HWY_RESTRICT planes) {
  const std::size_t plane = cache::tile_plane_bytes(kCodec, cache::v_form_bytes(head_dim));
  const std::size_t quad_bytes = 4 * static_cast<std::size_t>(head_dim);
  constexpr int kQuads = kChunkTokens / 4 / kFields<kCodec>;
  for (int at = 0; at < kQuads; ++at) {
    const std::uint8_t* from = codes + at * quad_bytes + 4 * channel;
    fetch.lines<std::max(1, kTileLines<kCodec> * C / 4)>();
    for_each_field<kCodec>([&](auto field) HWY_ATTR {
      const int quad = field() * kQuads + at;
      const std::size_t place = quad * quad_bytes + 4 * static_cast<std::size_t>(channel);
      sn::Bytes v[C * kRegs];
#pragma GCC unroll kUnroll
      for (int j = 0; j < C * kRegs; ++j) {
        v[j] = decode_values<kCodec, field()>(sn::LoadBytes(from + j * kRegBytes), codes + plane,
                                              place + j * kRegBytes);
      }
#pragma GCC unroll kUnroll
      for (int r = 0; r < R; ++r) {
        const auto* factors = reinterpret_cast<const std::int8_t*>(planes + r * kPlaneBytes +
                                                                   quad / 4 * 32 + quad % 4 * 4);
        const auto upper = sn::BroadcastQuad(factors), lower = sn::BroadcastQuad(factors + 16);
#pragma GCC unroll kUnroll
        for (int j = 0; j < C * kRegs; ++j) {
          sums.upper[r][j] = Dots::add_values(sums.upper[r][j], upper, v[j]);
          sums.lower[r][j] = Dots::add_values(sums.lower[r][j], lower, v[j]);
        }
      }
    });
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
