// Encoding of tiles: K per channel over the tokens, after a scale per token; V per token over the
// channels; both from the smallest value to the largest. Scales and centres are rounded to their
// few bits first, so that the codes make up for it.
//
// Source: K by channel and V by token are from KIVI (Liu et al. 2024).
//
// Lanes are channels, or tokens where each token has one number; sums over channels have 16 lanes
// and one tree. So all targets give the same bytes.
#include "cache/codec/tile_codec.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cache/codec/tile_codec.cc"
#include "hwy/foreach_target.h"
// clang-format off: after foreach_target.h
#include "cache/codec/tile_codec-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kvasir::cache {
namespace HWY_NAMESPACE {
namespace {

/// Quantises the tokens' rms to scales of few bits; `inverse` gets 1 / scale of each token.
/// `power`: the exact power of two by which `rms` was multiplied.
void encode_token_scales(const float* rms, float power, std::uint8_t* scales, float* token_base,
                         float* inverse) {
  const F32 d;
  float largest = 0;
  for (int t = 0; t < kTileTokens; ++t) largest = std::max(largest, rms[t]);
  const float unit = largest / k_scale_unit(255);
  *token_base = unit / power;
  const auto bias = hn::Set(I32(), static_cast<std::int32_t>(kKScaleBias));
  const auto half = hn::Set(I32(), 1 << (kKScaleShift - 1));
  for (int t = 0; t < kTileTokens; t += kLanes) {
    const auto ratio = hn::Div(hn::LoadU(d, rms + t), hn::Set(d, unit));
    const auto over = hn::Sub(hn::Add(hn::BitCast(I32(), ratio), half), bias);
    const auto scale = ClampInt(hn::ShiftRight<kKScaleShift>(over), 0, 255);
    hn::StoreU(hn::DemoteTo(U8(), scale), U8(), scales + t);
    const auto rounded = hn::BitCast(d, hn::Add(hn::ShiftLeft<kKScaleShift>(scale), bias));
    const auto value = hn::Mul(hn::Set(d, *token_base), rounded);
    hn::StoreU(hn::Div(hn::Set(d, 1.0f), value), d, inverse + t);
  }
}

/// Smallest step that covers `range` in units of 1 / inverse; a hair less is enough.
HWY_INLINE V32 step_of(V32 range, V32 inverse, V32 max_step) {
  const F32 d;
  const V32 steps = hn::Sub(hn::Mul(range, inverse), hn::Set(d, 1e-4f));
  return hn::Min(hn::Max(hn::Ceil(steps), hn::Zero(d)), max_step);
}

/// The unit of steps and offsets. The smallest possible one leaves some steps barely above an
/// integer, to be rounded up; of some larger ones the best is taken.
float choose_base(CodecId codec, int head_dim, const ChannelRanges& ranges) {
  const F32 d;
  V32 widest = hn::Zero(d), farthest = hn::Zero(d);
  for (int c = 0; c < head_dim; c += kLanes) {
    const V32 lo = hn::LoadU(d, ranges.lo + c), hi = hn::LoadU(d, ranges.hi + c);
    widest = hn::Max(widest, hn::Sub(hi, lo));
    farthest = hn::Max(farthest, hn::Max(hn::Abs(lo), hn::Abs(hi)));
  }
  const auto max_code = static_cast<float>((1 << codec_bits(codec)) - 1);
  const auto max_step = static_cast<float>(max_k_step(codec));
  const float smallest = std::max(hn::GetLane(hn::MaxOfLanes(d, farthest)) / 127.0f,
                                  hn::GetLane(hn::MaxOfLanes(d, widest)) / (max_step * max_code));
  float best = smallest, best_cost = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 8; ++i) {
    const float base = smallest * (1.0f + static_cast<float>(i) / 64.0f);
    const V32 inverse = hn::Set(d, 1.0f / (base * max_code));
    V32 squares = hn::Zero(d);  // of integers: exact, so the order of the sum is free
    for (int c = 0; c < head_dim; c += kLanes) {
      const V32 range = hn::Sub(hn::LoadU(d, ranges.hi + c), hn::LoadU(d, ranges.lo + c));
      const V32 step = step_of(range, inverse, hn::Set(d, max_step));
      squares = hn::Add(squares, hn::Mul(step, step));
    }
    const float cost = base * base * hn::GetLane(hn::SumOfLanes(d, squares));
    if (cost < best_cost) {
      best_cost = cost;
      best = base;
    }
  }
  return best;
}

/// Steps and offsets of channels; a code is then value * factor + bias, rounded.
void encode_channels(CodecId codec, int head_dim, const ChannelRanges& ranges, float base,
                     std::uint8_t* steps, std::uint8_t* offsets, float* factor, float* bias) {
  const F32 d;
  const int max_code = (1 << codec_bits(codec)) - 1;
  const V32 max_step = hn::Set(d, static_cast<float>(max_k_step(codec)));
  const V32 inverse = hn::Set(d, 1.0f / base);
  const V32 step_inverse = hn::Set(d, 1.0f / (base * static_cast<float>(max_code)));
  const V32 half_code = hn::Set(d, 0.5f * static_cast<float>(max_code));
  for (int c = 0; c < head_dim; c += kLanes) {
    const V32 lo = hn::LoadU(d, ranges.lo + c), hi = hn::LoadU(d, ranges.hi + c);
    const V32 step = step_of(hn::Sub(hi, lo), step_inverse, max_step);
    const V32 half_width = hn::Mul(step, half_code);
    const V32 middle = hn::Mul(hn::Mul(hn::Add(lo, hi), hn::Set(d, 0.5f)), inverse);
    // 127 - step * max_code >= -127 + 2: the bounds never cross.
    const V32 highest = hn::Sub(hn::Set(d, 127.0f), hn::Add(half_width, half_width));
    const V32 rounded = RoundedFloat(hn::Sub(middle, half_width));
    const V32 offset = hn::Min(hn::Max(rounded, hn::Set(d, -127.0f)), highest);
    hn::StoreU(hn::DemoteTo(U8(), ToInt(step)), U8(), steps + c);
    hn::StoreU(hn::BitCast(U8(), hn::DemoteTo(I8(), ToInt(offset))), U8(), offsets + c);
    const auto is_flat = hn::Eq(step, hn::Zero(d));
    const V32 divisor = hn::IfThenElse(is_flat, hn::Set(d, 1.0f), step);
    hn::StoreU(hn::IfThenZeroElse(is_flat, hn::Div(inverse, divisor)), d, factor + c);
    hn::StoreU(hn::IfThenZeroElse(is_flat, hn::Neg(hn::Div(offset, divisor))), d, bias + c);
  }
}

/// One strip's codes in the 8-bit form. `inverse`: of its tokens.
void k_strip_form(int head_dim, const float* rows, std::size_t row_stride, const float* inverse,
                  const float* factor, const float* bias, float max_code, std::uint8_t* form) {
  const F32 d;
  alignas(64) std::uint32_t words[kMaxCodedHeadDim];
  for (std::size_t t = 0; t < 16; t += 4) {
    const float* row = rows + t * row_stride;
    for (int c = 0; c < head_dim; c += kLanes) {
      const V32 channel_factor = hn::LoadU(d, factor + c), channel_bias = hn::LoadU(d, bias + c);
      const auto code = [&](std::size_t i) HWY_ATTR {
        const V32 x = hn::LoadU(d, row + i * row_stride + c);
        const V32 y = hn::Mul(x, hn::Set(d, inverse[t + i]));
        return CodeBits(simd::HWY_NAMESPACE::FusedMulAdd(y, channel_factor, channel_bias),
                        max_code);
      };
      hn::StoreU(FourCodes(code(0), code(1), code(2), code(3)), U32(), words + c);
    }
    for (int c = 0; c < head_dim; c += 4) TransposeBytes(words + c, form + 16 * c + 4 * t);
  }
}

void encode_k(CodecId codec, int head_dim, const float* rows, std::size_t row_stride,
              std::uint8_t* codes, std::uint8_t* meta) {
  std::uint8_t* scales = meta + 2 * head_dim;
  float bases[2];  // base and token base
  const float magnitude = max_magnitude(rows, row_stride, head_dim);
  if (is_blank(magnitude, &bases[0])) {
    bases[1] = bases[0];
    std::memset(codes, 0, tile_code_bytes(codec, head_dim));
    std::memset(meta, 0, tile_meta_bytes(codec, head_dim, false));
    std::memcpy(scales + kTileTokens, bases, sizeof(bases));
    return;
  }
  float per_token[kTileTokens], inverse[kTileTokens];
  const float power = power_for(magnitude);
  token_rms(rows, row_stride, head_dim, power, per_token);
  encode_token_scales(per_token, power, scales, &bases[1], inverse);

  ChannelRanges ranges;
  channel_ranges(rows, row_stride, head_dim, inverse, ranges);
  bases[0] = choose_base(codec, head_dim, ranges);
  float factor[kMaxCodedHeadDim], bias[kMaxCodedHeadDim];
  encode_channels(codec, head_dim, ranges, bases[0], meta, meta + head_dim, factor, bias);
  std::memcpy(scales + kTileTokens, bases, sizeof(bases));

  alignas(64) std::uint8_t form[16 * kMaxCodedHeadDim];
  const auto max_code = static_cast<float>((1 << codec_bits(codec)) - 1);
  for (std::size_t t = 0; t < kTileTokens; t += 16) {
    k_strip_form(head_dim, rows + t * row_stride, row_stride, inverse + t, factor, bias, max_code,
                 form);
    pack_form(codec, form, k_strip_form_bytes(head_dim), codes);
    codes += code_bytes(codec, head_dim, 16);
  }
}

/// What a token of a V tile is coded with.
struct VTokens {
  float lo[kTileTokens], hi[kTileTokens];
  float centre[kTileTokens], inverse[kTileTokens];  // of one code step
};

/// Centres, and what a v8 must be worth to reach a token's ends from there.
void encode_centres(VTokens& tokens, int bits, std::uint8_t* centres, float* centre_base,
                    float* widths) {
  const F32 d;
  V32 farthest = hn::Zero(d);
  const V32 half = hn::Set(d, 0.5f);
  const auto middle_of = [&](int t) HWY_ATTR {
    return hn::Mul(half, hn::Add(hn::LoadU(d, tokens.lo + t), hn::LoadU(d, tokens.hi + t)));
  };
  for (int t = 0; t < kTileTokens; t += kLanes) {
    farthest = hn::Max(farthest, hn::Abs(middle_of(t)));
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, farthest));
  *centre_base = largest < kSmallest ? 0.0f : largest / 127.0f;
  const float inverse_base = largest < kSmallest ? 0.0f : 1.0f / *centre_base;
  const auto v8_per_range = static_cast<float>(((1 << bits) - 1) << (8 - bits));
  for (int t = 0; t < kTileTokens; t += kLanes) {
    const V32 middle = middle_of(t);
    const V32 scaled = hn::Mul(middle, hn::Set(d, inverse_base));
    const V32 rounded =
        hn::Min(hn::Max(RoundedFloat(scaled), hn::Set(d, -127.0f)), hn::Set(d, 127.0f));
    hn::StoreU(hn::BitCast(U8(), hn::DemoteTo(I8(), ToInt(rounded))), U8(), centres + t);
    const V32 centre = hn::Mul(rounded, hn::Set(d, *centre_base));
    hn::StoreU(centre, d, tokens.centre + t);
    const V32 miss = hn::Abs(hn::Sub(centre, middle));
    const V32 range = hn::Sub(hn::LoadU(d, tokens.hi + t), hn::LoadU(d, tokens.lo + t));
    const V32 width = hn::Div(hn::Add(range, hn::Add(miss, miss)), hn::Set(d, v8_per_range));
    hn::StoreU(width, d, widths + t);
  }
}

/// Scales of few bits, rounded up: a token's ends stay within its codes.
void encode_widths(VTokens& tokens, int bits, const float* widths, std::uint8_t* scales,
                   float* scale_base) {
  const F32 d;
  float widest = 0;
  for (int t = 0; t < kTileTokens; ++t) widest = std::max(widest, widths[t]);
  if (widest < kSmallest / 1024) {  // all tokens are constant: nothing but centres
    *scale_base = 0;
    std::fill_n(scales, kTileTokens, std::uint8_t{0});
    std::fill_n(tokens.inverse, kTileTokens, 0.0f);
    return;
  }
  *scale_base = widest / v_scale_unit(255);
  const auto v8_per_code = static_cast<float>(1 << (8 - bits));
  const auto bias = hn::Set(I32(), static_cast<std::int32_t>(kVScaleBias));
  const auto up = hn::Set(I32(), (1 << kVScaleShift) - 1);
  for (int t = 0; t < kTileTokens; t += kLanes) {
    const V32 ratio = hn::Div(hn::LoadU(d, widths + t), hn::Set(d, *scale_base));
    const auto over = hn::Sub(hn::Add(hn::BitCast(I32(), ratio), up), bias);
    const auto scale = ClampInt(hn::ShiftRight<kVScaleShift>(over), 0, 255);
    hn::StoreU(hn::DemoteTo(U8(), scale), U8(), scales + t);
    const V32 rounded = hn::BitCast(d, hn::Add(hn::ShiftLeft<kVScaleShift>(scale), bias));
    const V32 step = hn::Mul(hn::Mul(hn::Set(d, *scale_base), rounded), hn::Set(d, v8_per_code));
    hn::StoreU(hn::Div(hn::Set(d, 1.0f), step), d, tokens.inverse + t);
  }
}

/// The tile's codes in the 8-bit form, which is [16 token quads][D] words of four codes.
void v_form(int head_dim, const float* rows, std::size_t row_stride, const VTokens& tokens,
            float max_code, std::uint32_t* form) {
  const F32 d;
  const V32 half_code = hn::Set(d, 0.5f * max_code);
  for (std::size_t t = 0; t < kTileTokens; t += 4) {
    const float* row = rows + t * row_stride;
    for (int c = 0; c < head_dim; c += kLanes) {
      const auto code = [&](std::size_t i) HWY_ATTR {
        const V32 x = hn::LoadU(d, row + i * row_stride + c);
        const V32 from_centre = hn::Sub(x, hn::Set(d, tokens.centre[t + i]));
        return CodeBits(simd::HWY_NAMESPACE::FusedMulAdd(
                            from_centre, hn::Set(d, tokens.inverse[t + i]), half_code),
                        max_code);
      };
      hn::StoreU(FourCodes(code(0), code(1), code(2), code(3)), U32(), form + c);
    }
    form += head_dim;
  }
}

void encode_v(CodecId codec, int head_dim, const float* rows, std::size_t row_stride,
              std::uint8_t* codes, std::uint8_t* meta) {
  float bases[2];
  if (is_blank(max_magnitude(rows, row_stride, head_dim), &bases[0])) {
    bases[1] = bases[0];
    std::memset(codes, 0, tile_code_bytes(codec, head_dim));
    std::memset(meta, 0, tile_meta_bytes(codec, head_dim, true));
    std::memcpy(meta + 2 * kTileTokens, bases, sizeof(bases));
    return;
  }
  VTokens tokens;
  float widths[kTileTokens];
  const int bits = codec_bits(codec);
  token_ranges(rows, row_stride, head_dim, tokens.lo, tokens.hi);
  encode_centres(tokens, bits, meta + kTileTokens, &bases[1], widths);
  encode_widths(tokens, bits, widths, meta, &bases[0]);
  std::memcpy(meta + 2 * kTileTokens, bases, sizeof(bases));

  alignas(64) std::uint32_t form[16 * kMaxCodedHeadDim];
  v_form(head_dim, rows, row_stride, tokens, static_cast<float>((1 << bits) - 1), form);
  pack_form(codec, reinterpret_cast<const std::uint8_t*>(form), v_form_bytes(head_dim), codes);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::cache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::cache {

namespace {

HWY_EXPORT(encode_k);
HWY_EXPORT(encode_v);

}  // namespace

void encode_k_tile(CodecId codec, int head_dim, const float* rows, std::size_t row_stride,
                   std::uint8_t* codes, std::uint8_t* meta) {
  KVASIR_DCHECK(is_tile_codec(codec) && is_coded_head_dim(head_dim));
  HWY_DYNAMIC_DISPATCH(encode_k)(codec, head_dim, rows, row_stride, codes, meta);
}

void encode_v_tile(CodecId codec, int head_dim, const float* rows, std::size_t row_stride,
                   std::uint8_t* codes, std::uint8_t* meta) {
  KVASIR_DCHECK(is_tile_codec(codec) && is_coded_head_dim(head_dim));
  HWY_DYNAMIC_DISPATCH(encode_v)(codec, head_dim, rows, row_stride, codes, meta);
}

}  // namespace kvasir::cache
#endif  // HWY_ONCE
