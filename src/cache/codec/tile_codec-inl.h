// What the encoders of K and V tiles share: reductions over a tile's floats, codes as words of four
// tokens, and the packing of codes into planes.
//
// Included once per target by tile_codec.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_CACHE_TILE_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_CACHE_TILE_CODEC_INL_H_
#undef KVASIR_CACHE_TILE_CODEC_INL_H_
#else
#define KVASIR_CACHE_TILE_CODEC_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cache/codec/tile_codec.h"
#include "hwy/highway.h"
#include "simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::cache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using V32 = hn::Vec<F32>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U8 = hn::Rebind<std::uint8_t, F32>;
using I8 = hn::Rebind<std::int8_t, F32>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
constexpr int kSumLanes = 16;

/// Tiles below are zero, tiles from kLargest on poisoned: between them no scale is subnormal, and
/// no product overflows.
constexpr float kSmallest = 0x1p-100f;
constexpr float kLargest = 0x1p120f;

/// Adding it rounds to the nearest integer, ties to even, which is left in the low mantissa bits.
constexpr float kRoundMagic = 12582912.0f;

HWY_INLINE V32 RoundedFloat(V32 x) {
  const V32 magic = hn::Set(F32(), kRoundMagic);
  return hn::Sub(hn::Add(x, magic), magic);
}

/// An integer below 2^22 in a float. (Highway 1.0.3's scalar NearestInt rounds 0.49999997 to 1.)
HWY_INLINE hn::Vec<I32> ToInt(V32 x) {
  const V32 magic = hn::Set(F32(), kRoundMagic);
  return hn::Sub(hn::BitCast(I32(), hn::Add(x, magic)), hn::BitCast(I32(), magic));
}

HWY_INLINE hn::Vec<I32> ClampInt(hn::Vec<I32> x, std::int32_t lo, std::int32_t hi) {
  return hn::Min(hn::Max(x, hn::Set(I32(), lo)), hn::Set(I32(), hi));
}

/// The bits of the largest magnitude: as integers, so NaN is above infinity, and that above all.
float max_magnitude(const float* rows, std::size_t row_stride, int head_dim) {
  const auto no_sign = hn::Set(I32(), 0x7FFFFFFF);
  auto most = hn::Zero(I32());
  for (std::size_t t = 0; t < kTileTokens; ++t) {
    const float* row = rows + t * row_stride;
    for (int c = 0; c < head_dim; c += kLanes) {
      const auto bits = hn::BitCast(I32(), hn::LoadU(F32(), row + c));
      most = hn::Max(most, hn::And(bits, no_sign));
    }
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(I32(), most)));
}

/// Whether a tile has no codes: it is zero or poisoned, and `base` is what says so.
bool is_blank(float max_magnitude, float* base) {
  const bool poisoned = !(max_magnitude < kLargest);
  *base = poisoned ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  return poisoned || max_magnitude < kSmallest;
}

/// The power of two that brings `max_magnitude` into [1, 2): squares neither overflow nor vanish.
float power_for(float max_magnitude) {
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(max_magnitude) >> 23;
  return std::bit_cast<float>((254 - exponent) << 23);
}

/// Lane i + lane (i + half of them), until one is left.
template <class D>
HWY_INLINE float TreeSum([[maybe_unused]] D d, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return TreeSum(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
  return hn::GetLane(v);
}

/// Root of the mean square of each token's channels times `power`: channel c is added in lane
/// c % 16.
void token_rms(const float* rows, std::size_t row_stride, int head_dim, float power, float* rms) {
  const F32 d;
  constexpr int kRegs = kSumLanes / kLanes;
  const V32 factor = hn::Set(d, power);
  for (std::size_t t = 0; t < kTileTokens; ++t) {
    const float* row = rows + t * row_stride;
    V32 acc[kRegs];
    for (V32& a : acc) a = hn::Zero(d);
    for (int c = 0; c < head_dim; c += kSumLanes) {
      for (int r = 0; r < kRegs; ++r) {
        const V32 x = hn::Mul(hn::LoadU(d, row + c + r * kLanes), factor);
        acc[r] = simd::HWY_NAMESPACE::FusedMulAdd(x, x, acc[r]);
      }
    }
    for (int half = kRegs / 2; half > 0; half /= 2) {
      for (int r = 0; r < half; ++r) acc[r] = hn::Add(acc[r], acc[r + half]);
    }
    rms[t] = TreeSum(d, acc[0]);
  }
  const V32 count = hn::Set(d, static_cast<float>(head_dim));
  for (int t = 0; t < kTileTokens; t += kLanes) {
    hn::StoreU(hn::Sqrt(hn::Div(hn::LoadU(d, rms + t), count)), d, rms + t);
  }
}

/// Smallest and largest value of each channel over the tokens of a tile.
struct ChannelRanges {
  float lo[kMaxCodedHeadDim], hi[kMaxCodedHeadDim];
};

/// Channels [c, c + kGroup vectors) of all tokens, each times its `inverse`.
template <int kGroup>
HWY_INLINE void group_ranges(const float* rows, std::size_t row_stride, const float* inverse, int c,
                             ChannelRanges& ranges) {
  const F32 d;
  V32 lo[kGroup], hi[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    lo[i] = hn::Set(d, std::numeric_limits<float>::infinity());
    hi[i] = hn::Neg(lo[i]);
  }
  for (std::size_t t = 0; t < kTileTokens; ++t) {
    const V32 factor = hn::Set(d, inverse[t]);
    for (int i = 0; i < kGroup; ++i) {
      const V32 y = hn::Mul(hn::LoadU(d, rows + t * row_stride + c + i * kLanes), factor);
      lo[i] = hn::Min(lo[i], y);
      hi[i] = hn::Max(hi[i], y);
    }
  }
  for (int i = 0; i < kGroup; ++i) {
    hn::StoreU(lo[i], d, ranges.lo + c + i * kLanes);
    hn::StoreU(hi[i], d, ranges.hi + c + i * kLanes);
  }
}

void channel_ranges(const float* rows, std::size_t row_stride, int head_dim, const float* inverse,
                    ChannelRanges& ranges) {
  int c = 0;
  for (; c + 4 * kLanes <= head_dim; c += 4 * kLanes) {
    group_ranges<4>(rows, row_stride, inverse, c, ranges);
  }
  for (; c < head_dim; c += kLanes) group_ranges<1>(rows, row_stride, inverse, c, ranges);
}

/// Smallest and largest value of each token over its channels.
void token_ranges(const float* rows, std::size_t row_stride, int head_dim, float* lo, float* hi) {
  const F32 d;
  for (std::size_t t = 0; t < kTileTokens; ++t) {
    const float* row = rows + t * row_stride;
    V32 least = hn::LoadU(d, row), most = least;
    for (int c = kLanes; c < head_dim; c += kLanes) {
      const V32 x = hn::LoadU(d, row + c);
      least = hn::Min(least, x);
      most = hn::Max(most, x);
    }
    lo[t] = hn::GetLane(hn::MinOfLanes(d, least));
    hi[t] = hn::GetLane(hn::MaxOfLanes(d, most));
  }
}

/// The nearest code to `code`, plus the bits of kRoundMagic.
HWY_INLINE hn::Vec<U32> CodeBits(V32 code, float max_code) {
  const F32 d;
  const V32 clamped = hn::Min(hn::Max(code, hn::Zero(d)), hn::Set(d, max_code));
  return hn::BitCast(U32(), hn::Add(clamped, hn::Set(d, kRoundMagic)));
}

/// Four tokens' codes in the bytes of a word.
HWY_INLINE hn::Vec<U32> FourCodes(hn::Vec<U32> a, hn::Vec<U32> b, hn::Vec<U32> c, hn::Vec<U32> e) {
  constexpr std::uint32_t kMagicBits = std::bit_cast<std::uint32_t>(kRoundMagic);
  const auto low = hn::Add(a, hn::ShiftLeft<8>(b));
  const auto high = hn::Add(hn::ShiftLeft<16>(c), hn::ShiftLeft<24>(e));
  const auto magic = hn::Set(U32(), kMagicBits * 0x01010101u);
  return hn::Sub(hn::Add(low, high), magic);
}

/// Four channels' words of four tokens -> four tokens' words of four channels.
HWY_INLINE void TransposeBytes(const std::uint32_t* words, std::uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int t = 0; t < 4; ++t) {
    for (int c = 0; c < 4; ++c) *to++ = static_cast<std::uint8_t>(words[c] >> (8 * t));
  }
#else
  const hn::FixedTag<std::uint8_t, 16> bytes;
  alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                          2, 6, 10, 14, 3, 7, 11, 15};
  const auto from = hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(words));
  hn::StoreU(hn::TableLookupBytes(from, hn::Load(bytes, kOrder)), bytes, to);
#endif
}

using Bytes = hn::CappedTag<std::uint8_t, 64>;

/// The lowest bits of `n` codes, 8 a byte; n is a multiple of 64.
void pack_lowest_bits(const std::uint8_t* form, std::size_t n, std::uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t i = 0; i < n; i += 8) {
    unsigned bits = 0;
    for (std::size_t j = 0; j < 8; ++j) bits |= (form[i + j] & 1u) << j;
    *to++ = static_cast<std::uint8_t>(bits);
  }
#else
  const Bytes d;
  const auto one = hn::Set(d, 1);
  for (std::size_t i = 0; i < n; i += hn::MaxLanes(d)) {
    hn::StoreMaskBits(d, hn::TestBit(hn::LoadU(d, form + i), one), to + i / 8);
  }
#endif
}

/// An 8-bit form of `n` codes into planes (tile_codec.h); n is a multiple of 256.
void pack_form(CodecId codec, const std::uint8_t* form, std::size_t n, std::uint8_t* to) {
  const Bytes d;
  const std::size_t plane = tile_plane_bytes(codec, n);
  for (std::size_t i = 0; i < plane; i += hn::MaxLanes(d)) {
    const auto field = [&](std::size_t m) HWY_ATTR { return hn::LoadU(d, form + m * plane + i); };
    auto packed = hn::Zero(d);
    if (codec == CodecId::kTile4) {
      packed = hn::Or(field(0), hn::ShiftLeft<4>(field(1)));
    } else if (codec == CodecId::kTile5) {
      // The high nibble: the upper four of bits 0 to 4, shifted from 1 to 4.
      packed = hn::Or(hn::ShiftRight<1>(field(0)),
                      hn::AndNot(hn::Set(d, 0x0F), hn::ShiftLeft<3>(field(1))));
    } else {
      const auto lower = hn::Or(hn::ShiftRight<1>(field(0)),
                                hn::ShiftLeft<1>(hn::AndNot(hn::Set(d, 1), field(1))));
      const auto upper = hn::Or(hn::ShiftLeft<3>(hn::AndNot(hn::Set(d, 1), field(2))),
                                hn::ShiftLeft<5>(hn::AndNot(hn::Set(d, 1), field(3))));
      packed = hn::Or(lower, upper);
    }
    hn::StoreU(packed, d, to + i);
  }
  if (tile_has_bit_plane(codec)) pack_lowest_bits(form, n, to + plane);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::cache
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
