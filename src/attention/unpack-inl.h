// Tiles of 3, 4 and 5 bits to bytes, and scales of every coded codec to floats.
//
// Included once per target by coded_kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_UNPACK_INL_H_
#undef KVASIR_ATTENTION_UNPACK_INL_H_
#else
#define KVASIR_ATTENTION_UNPACK_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attention/codes-inl.h"
#include "attention/factors-inl.h"
#include "cache/codec/tile_codec.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

/// Bytes that are unpacked at a time.
using TagBytes = hn::CappedTag<std::uint8_t, 64>;
inline constexpr int kByteLanes = static_cast<int>(hn::MaxLanes(TagBytes()));

/// Field kField of the codes of `kCodec` at byte `at` of their first plane, with their lowest bits
/// at `bits`, if they have such a plane (cache/codec/tile_codec.h).
template <cache::CodecId kCodec, int kField>
HWY_INLINE hn::Vec<TagBytes> load_tile_codes(const std::uint8_t* HWY_RESTRICT at,
                                             const std::uint8_t* HWY_RESTRICT bits) {
  const TagBytes tag;
  constexpr int kFieldBits = cache::tile_plane_bits(kCodec);
  constexpr int kShift = kField * kFieldBits;
  const hn::Repartition<std::uint16_t, TagBytes> tag16;
  auto field = hn::LoadU(tag, at);
  if constexpr (kShift > 0) {  // bytes have no shifts of their own on x86
    field = hn::BitCast(tag, hn::ShiftRight<kShift>(hn::BitCast(tag16, field)));
  }
  field = hn::And(field, hn::Set(tag, (1 << kFieldBits) - 1));
  if constexpr (cache::tile_has_bit_plane(kCodec)) {
    std::uint8_t lowest[8] = {};  // what LoadMaskBits may read
    std::memcpy(lowest, bits, kByteLanes / 8);
    const auto one = hn::IfThenElseZero(hn::LoadMaskBits(tag, lowest), hn::Set(tag, 1));
    field = hn::Or(hn::Add(field, field), one);
  }
  return field;
}

/// visit(integral constant f) for the fields of a byte of the first plane.
template <cache::CodecId kCodec, class Visit>
HWY_INLINE void for_each_field(Visit visit) {
  visit(std::integral_constant<int, 0>());
  visit(std::integral_constant<int, 1>());
  if constexpr (cache::tile_plane_bits(kCodec) == 2) {
    visit(std::integral_constant<int, 2>());
    visit(std::integral_constant<int, 3>());
  }
}

/// K's strips as value + 128, and what is read next is fetched.
template <cache::CodecId kCodec>
HWY_NOINLINE void unpack_keys(const std::uint8_t* codes, const cache::KTileMeta& meta, int head_dim,
                              const std::uint8_t* ahead, std::uint8_t* out) {
  const TagBytes tag;
  const hn::Repartition<std::uint16_t, TagBytes> tag16;
  const hn::Repartition<std::uint32_t, TagBytes> tag32;
  const std::size_t form = cache::k_strip_form_bytes(head_dim);
  const std::size_t strip_bytes = cache::code_bytes(kCodec, head_dim, 16);
  const std::size_t plane = cache::tile_plane_bytes(kCodec, form);
  const auto low = hn::Set(tag16, 0x00FF);
  const std::uint8_t *fetched = ahead, *const end = ahead + 4 * strip_bytes;
  for_each_field<kCodec>([&](auto field) HWY_ATTR {
    const std::size_t first = field() * plane;
    for (std::size_t at = 0; at < plane; at += 64) {
      std::uint32_t step, offset;
      std::memcpy(&step, meta.step + (first + at) / 16, sizeof(step));
      std::memcpy(&offset, meta.offset + (first + at) / 16, sizeof(offset));
      const auto steps = hn::BitCast(tag16, hn::Set(tag32, step));
      const auto even_steps = hn::And(steps, low), odd_steps = hn::ShiftRight<8>(steps);
      const auto offsets = hn::BitCast(tag, hn::Set(tag32, offset ^ 0x80808080u));
#pragma GCC unroll 4
      for (std::size_t strip = 0; strip < 4; ++strip) {
        const std::uint8_t* from = codes + strip * strip_bytes;
        if (fetched < end) hwy::Prefetch(fetched);
        fetched += 64;
#pragma GCC unroll 4
        for (std::size_t part = 0; part < 64; part += kByteLanes) {
          const std::size_t place = first + at + part;
          const auto code = hn::BitCast(
              tag16, load_tile_codes<kCodec, field()>(from + at + part, from + plane + place / 8));
          // Byte products, modulo 256: the offset brings them back into range.
          const auto even = hn::And(hn::Mul(code, even_steps), low);
          const auto odd = hn::Mul(hn::AndNot(low, code), odd_steps);
          const auto value = hn::Add(hn::BitCast(tag, hn::Or(even, odd)), offsets);
          hn::StoreU(value, tag, out + strip * form + place);
        }
      }
    }
  });
}

/// V as v8.
template <cache::CodecId kCodec>
HWY_NOINLINE void unpack_values(const std::uint8_t* codes, int head_dim, const std::uint8_t* ahead,
                                std::uint8_t* out) {
  const TagBytes tag;
  const hn::Repartition<std::uint16_t, TagBytes> tag16;
  constexpr int kShift = 8 - cache::codec_bits(kCodec);
  const std::size_t plane = cache::tile_plane_bytes(kCodec, cache::v_form_bytes(head_dim));
  const auto centre = hn::Set(tag, 128 ^ (1 << (kShift - 1)));
  const std::size_t n_bytes = cache::code_bytes(kCodec, head_dim, cache::kTileTokens);
  const std::uint8_t *fetched = ahead, *const end = ahead + n_bytes;
  for (std::size_t at = 0; at < plane; at += kByteLanes) {
    for (int line = 0; line < (cache::tile_has_bit_plane(kCodec) ? 2 : 1); ++line, fetched += 64) {
      if (fetched < end) hwy::Prefetch(fetched);
    }
    for_each_field<kCodec>([&](auto field) HWY_ATTR {
      const std::size_t place = field() * plane + at;
      const auto code = hn::BitCast(
          tag16, load_tile_codes<kCodec, field()>(codes + at, codes + plane + place / 8));
      const auto upper =
          hn::BitCast(tag, hn::ShiftLeft<kShift>(code));  // codes stay in their bytes
      hn::StoreU(hn::Xor(upper, centre), tag, out + place);
    });
  }
}

#endif  // HWY_SCALAR

/// Floats of bytes that are scales of few bits (tile_codec.h), times two bases.
template <int kShift>
HWY_INLINE void unpack_scales(const std::uint8_t* scales, std::uint32_t bias, float first_base,
                              float second_base, int n, float* out) {
  const Tag16 tag;
  const hn::RebindToUnsigned<Tag16> tu;
  const hn::Rebind<std::uint8_t, Tag16> t8;
  for (int i = 0; i < n; i += kLanes) {
    const auto bits = hn::ShiftLeft<kShift>(hn::PromoteTo(tu, hn::LoadU(t8, scales + i)));
    const auto unit = hn::BitCast(tag, hn::Add(bits, hn::Set(tu, bias)));
    hn::Store(hn::Mul(hn::Mul(unit, hn::Set(tag, first_base)), hn::Set(tag, second_base)), tag,
              out + i);
  }
}

/// `n` floats of f16, sixteen at a time.
HWY_INLINE void unpack_halves(const std::uint8_t* from, float* out) {
  const Tag16 tag;
  const F16* halves = reinterpret_cast<const F16*>(from);
#pragma GCC unroll kUnroll
  for (int g = 0; g < kRegs; ++g) {
    hn::Store(load_f32(tag, halves + g * kLanes), tag, out + g * kLanes);
  }
}

/// Scales of 64 tokens of V of a tile.
HWY_INLINE void unpack_value_scales(const std::uint8_t* bytes, float* scale, float* centre) {
  const cache::VTileMeta meta(bytes);
  unpack_scales<cache::kVScaleShift>(meta.scale, cache::kVScaleBias, meta.scale_base, 1.0f,
                                     cache::kTileTokens, scale);
  const Tag16 tag;
  const hn::RebindToSigned<Tag16> ti;
  const hn::Rebind<std::int8_t, Tag16> t8;
  for (int i = 0; i < cache::kTileTokens; i += kLanes) {
    const auto whole = hn::PromoteTo(ti, hn::LoadU(t8, meta.centre + i));
    hn::Store(hn::Mul(hn::ConvertTo(tag, whole), hn::Set(tag, meta.centre_base)), tag, centre + i);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
