#include "cache/codec/seal.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cache/codec/coded_rows.h"
#include "cache/codec/tile_codec.h"
#include "simd/half.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cache/codec/seal.cc"
#include "hwy/foreach_target.h"
// clang-format off: highway.h must come after foreach_target.h
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvasir::cache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// A strip of int8 K as rows, as it is stored: [16][head_dim].
void decode_k_strip(const std::uint8_t* codes, const float* scales, int head_dim, float* rows) {
  const hn::CappedTag<float, 4> tag;
  const hn::RebindToSigned<decltype(tag)> ti;
  const hn::Rebind<std::uint8_t, decltype(tag)> t8;
  constexpr int kVec = static_cast<int>(hn::MaxLanes(tag));
  for (int quad = 0; quad < head_dim / 4; ++quad) {
    for (int t = 0; t < kStripTokens; ++t) {
      for (int i = 0; i < 4; i += kVec, codes += kVec) {
        const auto code = hn::Sub(hn::PromoteTo(ti, hn::LoadU(t8, codes)), hn::Set(ti, 128));
        hn::StoreU(hn::Mul(hn::ConvertTo(tag, code), hn::Set(tag, scales[t])), tag,
                   rows + t * head_dim + 4 * quad + i);
      }
    }
  }
}

/// A strip of int8 V likewise.
void decode_v_strip(const std::uint8_t* codes, const float* scales, int head_dim, float* rows) {
  const hn::CappedTag<float, 16> tag;
  const hn::RebindToSigned<decltype(tag)> ti;
  constexpr int kVec = static_cast<int>(hn::MaxLanes(tag));
  for (int quad = 0; quad < 4; ++quad) {
    float* const row = rows + 4 * quad * head_dim;
    const float* const scale = scales + 4 * quad;
    for (int d = 0; d < head_dim; d += kVec, codes += 4 * kVec) {
      const auto bytes = hn::LoadU(ti, reinterpret_cast<const std::int32_t*>(codes));
      const auto store = [&](auto code, int i) {
        hn::StoreU(hn::Mul(hn::ConvertTo(tag, hn::ShiftRight<24>(code)), hn::Set(tag, scale[i])),
                   tag, row + i * head_dim + d);
      };
      store(hn::ShiftLeft<24>(bytes), 0);
      store(hn::ShiftLeft<16>(bytes), 1);
      store(hn::ShiftLeft<8>(bytes), 2);
      store(bytes, 3);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::cache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::cache {
namespace {

HWY_EXPORT(decode_k_strip);
HWY_EXPORT(decode_v_strip);

constexpr int kTileStrips = kTileTokens / kStripTokens;

/// Where strip `strip` lies: its codes and its scales.
struct Strip {
  std::uint8_t *codes, *meta;
};
Strip strip_of(const PagedKvView& kv, const PageSet& set, int strip, int head, bool is_v) {
  return is_v ? Strip{kv.v_strip(set, strip, head), kv.v_meta(set, strip, head)}
              : Strip{kv.k_strip(set, strip, head), kv.k_meta(set, strip, head)};
}

}  // namespace

void seal_tile(const PagedKvView& kv, int tile, int head, bool is_v) {
  const SideLayout& rows = is_v ? kv.rows.v : kv.rows.k;
  const SideLayout& tiles = is_v ? kv.tiles.v : kv.tiles.k;
  const int first = tile * kTileStrips;
  if (!is_tile_codec(tiles.codec)) {
    for (int strip = first; strip < first + kTileStrips; ++strip) {
      const Strip from = strip_of(kv, kv.rows, strip, head, is_v);
      const Strip to = strip_of(kv, kv.tiles, strip, head, is_v);
      // Of V, one row after the other: plain values of interleaved heads lie between each other.
      const int n_rows = is_v && !is_coded(rows.codec) ? kStripTokens : 1;
      const std::size_t bytes = code_bytes(rows.codec, kv.head_dim, kStripTokens / n_rows);
      for (int row = 0; row < n_rows; ++row) {
        const std::size_t at = static_cast<std::size_t>(row) * rows.row_stride();
        std::memcpy(to.codes + at, from.codes + at, bytes);
      }
      std::memcpy(to.meta, from.meta, rows.meta_strip_stride);
    }
    return;
  }
  alignas(64) float values[kTileTokens * 256];
  for (int i = 0; i < kTileStrips; ++i) {
    const Strip from = strip_of(kv, kv.rows, first + i, head, is_v);
    float scales[kStripTokens];
    for (int t = 0; t < kStripTokens; ++t) {
      std::uint16_t half;
      std::memcpy(&half, from.meta + 2 * t, sizeof(half));
      scales[t] = simd::f16_to_f32(half);
    }
    float* const to = values + i * kStripTokens * kv.head_dim;
    if (is_v) {
      HWY_DYNAMIC_DISPATCH(decode_v_strip)(from.codes, scales, kv.head_dim, to);
    } else {
      HWY_DYNAMIC_DISPATCH(decode_k_strip)(from.codes, scales, kv.head_dim, to);
    }
  }
  const Strip to = strip_of(kv, kv.tiles, first, head, is_v);
  const auto stride = static_cast<std::size_t>(kv.head_dim);
  if (is_v) {
    encode_v_tile(tiles.codec, kv.head_dim, values, stride, to.codes, to.meta);
  } else {
    encode_k_tile(tiles.codec, kv.head_dim, values, stride, to.codes, to.meta);
  }
}

}  // namespace kvasir::cache
#endif  // HWY_ONCE
