#include "cache/codec/coded_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cache/page/geometry.h"
#include "simd/half.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cache/codec/coded_rows.cc"
#include "hwy/foreach_target.h"
// clang-format off: highway.h must come after foreach_target.h
#include "hwy/highway.h"
// clang-format on
#include "simd/hadamard-inl.h"
#include "simd/multiply_row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::cache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kMaxDim = 256;
constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to nearest even

struct Range {
  float least, greatest;
  bool is_finite;
};

HWY_INLINE Range range_of(const float* x, int n) {
  const hn::CappedTag<float, 16> tag;
  constexpr int kVec = static_cast<int>(hn::MaxLanes(tag));
  auto least = hn::LoadU(tag, x), greatest = least;
  auto zero = hn::Zero(tag);  // what is not finite makes it NaN
  for (int i = 0; i < n; i += kVec) {
    const auto value = hn::LoadU(tag, x + i);
    least = hn::Min(least, value);
    greatest = hn::Max(greatest, value);
    zero = hn::Add(zero, hn::Mul(value, hn::Zero(tag)));
  }
  return {hn::GetLane(hn::MinOfLanes(tag, least)), hn::GetLane(hn::MaxOfLanes(tag, greatest)),
          hn::AllTrue(tag, hn::Eq(zero, hn::Zero(tag)))};
}

/// code = (x - centre) / scale, within -127..127. `scale` may be 0: then all codes are.
HWY_INLINE void encode(const float* x, int n, float centre, float scale, std::int8_t* codes) {
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  const hn::CappedTag<float, 16> tag;
  const hn::RebindToSigned<decltype(tag)> ti;
  const hn::Rebind<std::int8_t, decltype(tag)> t8;
  constexpr int kVec = static_cast<int>(hn::MaxLanes(tag));
  const auto most = hn::Set(tag, 127.0f);
  for (int i = 0; i < n; i += kVec) {
    const auto y =
        hn::Mul(hn::Sub(hn::LoadU(tag, x + i), hn::Set(tag, centre)), hn::Set(tag, inverse));
    const auto clamped = hn::Min(hn::Max(y, hn::Neg(most)), most);
    const auto bits = hn::BitCast(ti, hn::Add(clamped, hn::Set(tag, kRoundMagic)));
    const auto whole = hn::Sub(bits, hn::Set(ti, std::bit_cast<std::int32_t>(kRoundMagic)));
    hn::StoreU(hn::DemoteTo(t8, whole), t8, codes + i);
  }
}

/// One group of channels. Writes f16 scale, and centre, of the lane.
HWY_INLINE void encode_group(const float* x, int n, bool has_centre, std::int8_t* codes,
                             std::uint16_t* scale, std::uint16_t* centre) {
  const Range range = range_of(x, n);
  float middle = 0.0f;
  if (has_centre) {
    *centre = simd::f32_to_f16(0.5f * range.least + 0.5f * range.greatest);
    middle = simd::f16_to_f32(*centre);
    // Which of two zeros is the least, targets do not agree on.
    if (middle == 0.0f) *centre = 0;
  }
  // From the rounded centre, so that rounding cuts nothing off.
  const float most = std::abs(std::max(range.greatest - middle, middle - range.least));
  *scale = simd::f32_to_f16(most / 127.0f);
  const float step = simd::f16_to_f32(*scale);
  if (!range.is_finite || !(step * 0.0f == 0.0f) || !(middle * 0.0f == 0.0f)) {
    *scale = 0x7E00;
    if (has_centre) *centre = 0;
    std::fill(codes, codes + n, std::int8_t{0});
    return;
  }
  encode(x, n, middle, step, codes);
}

/// Codes of V of tokens [lane, end) of a quad, of which `quad` has [4][kMaxDim], to [head_dim][4].
HWY_INLINE void store_v_quad(const std::uint8_t* quad, int lane, int end, int head_dim,
                             std::uint8_t* to) {
  if (end - lane < 4) {
    for (; lane < end; ++lane) {
      for (int d = 0; d < head_dim; ++d) to[4 * d + lane] = quad[lane * kMaxDim + d];
    }
    return;
  }
  const hn::CappedTag<std::uint8_t, 16> tag;
  constexpr int kVec = static_cast<int>(hn::MaxLanes(tag));
  for (int d = 0; d < head_dim; d += kVec) {
    hn::StoreInterleaved4(hn::LoadU(tag, quad + d), hn::LoadU(tag, quad + kMaxDim + d),
                          hn::LoadU(tag, quad + 2 * kMaxDim + d),
                          hn::LoadU(tag, quad + 3 * kMaxDim + d), tag, to + 4 * d);
  }
}

/// Codes of one row; lane `lane` of the strip's scales. kHeadDim: 0, or that of the row.
template <int kHeadDim>
void encode_row(CodecId codec, const float* x, int head_dim, const float* basis, int lane,
                std::uint16_t* scales, std::int8_t* codes) {
  if constexpr (kHeadDim > 0) head_dim = kHeadDim;
  if (codec == CodecId::kInt8) {
    HWY_ALIGN float row[kMaxDim];
    if (basis != nullptr) {
      simd::HWY_NAMESPACE::MultiplyRow(x, basis, head_dim, row);
      x = row;
    }
    simd::HWY_NAMESPACE::Hadamard(x, head_dim, 1.0f, row);
    encode_group(row, head_dim, false, codes, scales + lane, nullptr);
    return;
  }
  for (int first = 0, group = 0; first < head_dim; first += kGroupChannels, ++group) {
    std::uint16_t* at = scales + group * 2 * kStripTokens + lane;
    encode_group(x + first, std::min(kGroupChannels, head_dim - first), true, codes + first, at,
                 at + kStripTokens);
  }
}

/// Codes of K of one token to [head_dim / 4][16][4], of which it has lane `lane`.
HWY_INLINE void store_k_row(const std::int8_t* row_codes, int lane, int head_dim,
                            std::uint8_t* to) {
  for (int d = 0; d < head_dim; d += 4) {
    std::uint32_t quad;
    std::memcpy(&quad, row_codes + d, sizeof(quad));
    quad ^= 0x80808080u;
    std::memcpy(to + (d / 4 * kStripTokens + lane) * 4, &quad, sizeof(quad));
  }
}

void write_strip(CodecId codec, bool is_v, int head_dim, const float* rows, std::size_t row_stride,
                 int lane, int n_tokens, std::uint8_t* codes, std::uint8_t* meta,
                 const float* basis) {
  HWY_ALIGN std::uint8_t quad_codes[4 * kMaxDim];
  int first_lane = lane % 4;  // of the quad at hand
  auto* scales = reinterpret_cast<std::uint16_t*>(meta);
  // The loops of the sizes that most models have are unrolled.
  const auto encode_one = head_dim == 64    ? encode_row<64>
                          : head_dim == 128 ? encode_row<128>
                                            : encode_row<0>;
  for (int end = lane + n_tokens; lane < end; ++lane, rows += row_stride) {
    auto* row_codes = reinterpret_cast<std::int8_t*>(quad_codes + lane % 4 * kMaxDim);
    encode_one(codec, rows, head_dim, basis, lane, scales, row_codes);
    if (!is_v) {
      store_k_row(row_codes, lane, head_dim, codes);
    } else if (lane % 4 == 3 || lane + 1 == end) {
      store_v_quad(quad_codes, first_lane, lane % 4 + 1, head_dim, codes + lane / 4 * 4 * head_dim);
      first_lane = 0;
    }
  }
}

void transform(float* row, int n) { simd::HWY_NAMESPACE::Hadamard(row, n, 1.0f, row); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::cache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::cache {
namespace {

HWY_EXPORT(write_strip);
HWY_EXPORT(transform);

}  // namespace

void write_coded_strip(CodecId codec, bool is_v, int head_dim, const float* rows,
                       std::size_t row_stride, int lane, int n_tokens, std::uint8_t* codes,
                       std::uint8_t* meta, const float* basis) {
  HWY_DYNAMIC_DISPATCH(write_strip)
  (codec, is_v, head_dim, rows, row_stride, lane, n_tokens, codes, meta, basis);
}

void read_stored_row(CodecId codec, bool is_v, int head_dim, const std::uint8_t* codes,
                     const std::uint8_t* meta, int lane, float* row) {
  for (int d = 0; d < head_dim; ++d) {
    const int place =
        is_v ? (lane / 4 * head_dim + d) * 4 + lane % 4 : (d / 4 * kStripTokens + lane) * 4 + d % 4;
    const int code = is_v ? static_cast<std::int8_t>(codes[place]) : int{codes[place]} - 128;
    const int group = codec == CodecId::kInt8G64 ? d / kGroupChannels : 0;
    const int n_fields = codec == CodecId::kInt8G64 ? 2 : 1;
    const auto field = [&](int i) {
      std::uint16_t half;
      std::memcpy(&half, meta + ((group * n_fields + i) * kStripTokens + lane) * 2, sizeof(half));
      return simd::f16_to_f32(half);
    };
    row[d] = field(0) * static_cast<float>(code) + (n_fields == 2 ? field(1) : 0.0f);
  }
}

void read_coded_row(CodecId codec, bool is_v, int head_dim, const std::uint8_t* codes,
                    const std::uint8_t* meta, int lane, float* row) {
  read_stored_row(codec, is_v, head_dim, codes, meta, lane, row);
  if (is_hadamard(codec)) HWY_DYNAMIC_DISPATCH(transform)(row, head_dim);
}

}  // namespace kvasir::cache
#endif  // HWY_ONCE
