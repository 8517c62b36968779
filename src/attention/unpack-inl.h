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

/// Fields of a byte of a tile's first plane (cache/codec/tile_codec.h).
template <cache::CodecId kCodec>
inline constexpr int kFields = 8 / cache::tile_plane_bits(kCodec);
/// Lines of a tile beside each four of its first plane.
template <cache::CodecId kCodec>
inline constexpr int kTileLines = 4 * cache::codec_bits(kCodec) / cache::tile_plane_bits(kCodec);

/// visit(integral constant f) for each of them.
template <cache::CodecId kCodec, class Visit>
HWY_INLINE void for_each_field(Visit visit) {
  visit(std::integral_constant<int, 0>());
  visit(std::integral_constant<int, 1>());
  if constexpr (kFields<kCodec> == 4) {
    visit(std::integral_constant<int, 2>());
    visit(std::integral_constant<int, 3>());
  }
}

/// Four bytes in every lane.
HWY_INLINE sn::Bytes fill_quad(std::uint32_t quad) {
#if HWY_TARGET == HWY_SCALAR
  return {quad};
#else
  return hn::BitCast(sn::DU8(), hn::Set(sn::DI32(), static_cast<std::int32_t>(quad)));
#endif
}

/// (a & b) ^ c.
HWY_INLINE sn::Bytes and_xor(sn::Bytes a, sn::Bytes b, sn::Bytes c) {
#if HWY_TARGET == HWY_SCALAR
  return {(a.raw & b.raw) ^ c.raw};
#else
  return hn::Xor(hn::And(a, b), c);
#endif
}

HWY_INLINE void store_raw(sn::Bytes bytes, std::uint8_t* out) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(out, &bytes.raw, sizeof(bytes.raw));
#else
  hn::StoreU(bytes, sn::DU8(), out);
#endif
}

/// Bytes by `kShift` bits down, or up if it is negative; what comes in from their neighbours is for
/// the caller to mask.
template <int kShift>
HWY_INLINE sn::Bytes shift_bytes(sn::Bytes bytes) {
#if HWY_TARGET == HWY_SCALAR
  return {kShift < 0 ? bytes.raw << (kShift < 0 ? -kShift : 0) : bytes.raw >> kShift};
#else
  const hn::Repartition<std::uint16_t, sn::DU8> tag16;  // bytes have no shifts of their own on x86
  const auto pairs = hn::BitCast(tag16, bytes);
  if constexpr (kShift < 0) return hn::BitCast(sn::DU8(), hn::ShiftLeft<-kShift>(pairs));
  if constexpr (kShift > 0) return hn::BitCast(sn::DU8(), hn::ShiftRight<kShift>(pairs));
  return bytes;
#endif
}

/// `bytes` plus `addend` where the bits from bit `place` of `bits` are set, a bit a byte.
HWY_INLINE sn::Bytes add_where_set(sn::Bytes bytes, sn::Bytes addend, const std::uint8_t* bits,
                                   std::size_t place) {
#if HWY_TARGET == HWY_SCALAR
  std::uint32_t sum = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned added = bits[place / 8] >> (place % 8 + i) & 1 ? addend.raw >> (8 * i) : 0;
    sum |= (((bytes.raw >> (8 * i)) + added) & 255) << (8 * i);
  }
  return {sum};
#else
  std::uint8_t mask[8] = {};  // what LoadMaskBits may read
  std::memcpy(mask, bits + place / 8, kRegBytes / 8);
  return hn::Add(bytes, hn::IfThenElseZero(hn::LoadMaskBits(sn::DU8(), mask), addend));
#endif
}

#if HWY_TARGET == HWY_AVX3_DL
/// Lanes of a table of the values of four channels, sixteen bytes each.
struct TableLanes {
  alignas(64) std::uint8_t code[64], channel[64];
  alignas(64) std::uint8_t pair[64];  ///< the channel of codes 2i and 2i + 1, then none
};
inline constexpr TableLanes kTableLanes = [] {
  TableLanes lanes{};
  for (int i = 0; i < 64; ++i) {
    lanes.code[i] = static_cast<std::uint8_t>(i % 16);
    lanes.channel[i] = static_cast<std::uint8_t>(i / 16);
    lanes.pair[i] = i % 2 == 0 ? lanes.channel[i] : 0x80;
  }
  return lanes;
}();
#endif

/// What the codes of a quad of channels of K are: step * code + offset, which is in [-127, 127].
template <cache::CodecId kCodec>
class KeyDecoder {
 public:
  HWY_INLINE KeyDecoder(const cache::KTileMeta& meta, int quad) {
    std::uint32_t steps, offsets;
    std::memcpy(&steps, meta.step + 4 * quad, sizeof(steps));
    std::memcpy(&offsets, meta.offset + 4 * quad, sizeof(offsets));
    steps_ = fill_quad(steps);
    // What the first plane holds of a code counts twice where the lowest bit is in another.
#if HWY_TARGET == HWY_AVX3_DL
    const auto plane_steps = kHasBits ? hn::Add(steps_, steps_) : steps_;
    // Products of two codes that lie side by side are one of 16 bits: the lower one is below 256.
    const hn::Repartition<std::uint16_t, sn::DU8> tag16;
    const auto codes = hn::BitCast(tag16, hn::Load(sn::DU8(), kTableLanes.code));
    const auto pair_steps = hn::BitCast(
        tag16, hn::TableLookupBytesOr0(plane_steps, hn::Load(sn::DU8(), kTableLanes.pair)));
    const auto channel_offsets =
        hn::TableLookupBytes(fill_quad(offsets), hn::Load(sn::DU8(), kTableLanes.channel));
    values_ = hn::Xor(hn::Add(hn::BitCast(sn::DU8(), hn::Mul(codes, pair_steps)), channel_offsets),
                      fill_quad(0x80808080u));
#else
    offsets_ = fill_quad(offsets ^ 0x80808080u);
    plane_steps_ = fill_quad(kHasBits ? steps + steps : steps);
#endif
  }

  /// Field kField of `raw`, bytes of the first plane, as value + 128. Their lowest bits, if they
  /// have any, begin at bit `place` of `bits`.
  template <int kField>
  HWY_INLINE sn::Bytes decode(sn::Bytes raw, const std::uint8_t* bits, std::size_t place) const {
    constexpr int kFieldBits = cache::tile_plane_bits(kCodec);
    const sn::Bytes field = shift_bytes<kField * kFieldBits>(raw);
    constexpr std::uint32_t kMask = ((1u << kFieldBits) - 1) * 0x01010101u;
    sn::Bytes value;
#if HWY_TARGET == HWY_AVX3_DL
    const auto index = hn::OrAnd(fill_quad(0x30201000u), field, fill_quad(kMask));
    value.raw = _mm512_permutexvar_epi8(index.raw, values_.raw);
#elif HWY_TARGET == HWY_SCALAR
    value.raw = 0;
    for (unsigned i = 0; i < 32; i += 8) {
      const std::uint32_t code = (field.raw & kMask) >> i & 255;
      value.raw |= (((plane_steps_.raw >> i & 255) * code + (offsets_.raw >> i)) & 255) << i;
    }
#else
    const hn::Repartition<std::uint16_t, sn::DU8> tag16;
    const auto low = hn::Set(tag16, 0x00FF);
    const auto code = hn::BitCast(tag16, hn::And(field, fill_quad(kMask)));
    const auto steps = hn::BitCast(tag16, plane_steps_);
    // Byte products, modulo 256: the offset brings them back into range.
    const auto even = hn::And(hn::Mul(code, hn::And(steps, low)), low);
    const auto odd = hn::Mul(hn::AndNot(low, code), hn::ShiftRight<8>(steps));
    value = hn::Add(hn::BitCast(sn::DU8(), hn::Or(even, odd)), offsets_);
#endif
    if constexpr (kHasBits) value = add_where_set(value, steps_, bits, place);
    return value;
  }

 private:
  static constexpr bool kHasBits = cache::tile_has_bit_plane(kCodec);
  sn::Bytes steps_;
#if HWY_TARGET == HWY_AVX3_DL
  sn::Bytes values_;  // of code c of channel i at byte 16 i + c
#else
  sn::Bytes offsets_, plane_steps_;
#endif
};

#if HWY_TARGET == HWY_AVX3_DL
/// The matrix of VGF2P8AFFINEQB that moves field `field` of a byte to its top: the row of bit i is
/// byte 7 - i.
constexpr std::uint64_t field_to_top(int field_bits, int field) {
  std::uint64_t matrix = 0;
  for (int bit = 8 - field_bits; bit < 8; ++bit) {
    const int from = field * field_bits + bit - (8 - field_bits);
    matrix |= std::uint64_t{1} << (8 * (7 - bit) + from);
  }
  return matrix;
}
#endif

/// V's codes as v8.
///
/// Field kField of `raw`; the rest as KeyDecoder::decode.
template <cache::CodecId kCodec, int kField>
HWY_INLINE sn::Bytes decode_values(sn::Bytes raw, const std::uint8_t* bits, std::size_t place) {
  constexpr int kFieldBits = cache::tile_plane_bits(kCodec);
  constexpr int kShift = 8 - cache::codec_bits(kCodec);
  constexpr std::uint32_t kBytes = 0x01010101u;
  // The plane's field goes to the top of its byte, the lowest bit below.
  constexpr std::uint32_t kFlipped = 128u ^ 1u << (kShift - 1);
  sn::Bytes value;
#if HWY_TARGET == HWY_AVX3_DL
  static constexpr std::uint64_t kMatrix = field_to_top(kFieldBits, kField);
  asm("vgf2p8affineqb %3, %2%{1to8%}, %1, %0"
      : "=v"(value.raw)
      : "v"(raw.raw), "m"(kMatrix), "i"(kFlipped));
#else
  const sn::Bytes field = shift_bytes<kFieldBits*(kField + 1) - 8>(raw);
  value = and_xor(field, fill_quad((0x100u - (0x100u >> kFieldBits)) * kBytes),
                  fill_quad(kFlipped * kBytes));
#endif
  if constexpr (cache::tile_has_bit_plane(kCodec)) {
    value = add_where_set(value, fill_quad((1u << kShift) * kBytes), bits, place);
  }
  return value;
}

/// K's strips as value + 128.
template <cache::CodecId kCodec>
HWY_NOINLINE void unpack_keys(const std::uint8_t* codes, const cache::KTileMeta& meta, int head_dim,
                              std::uint8_t* out) {
  const std::size_t form = cache::k_strip_form_bytes(head_dim);
  const std::size_t strip_bytes = cache::code_bytes(kCodec, head_dim, 16);
  const std::size_t plane = cache::tile_plane_bytes(kCodec, form);
  for_each_field<kCodec>([&](auto field) HWY_ATTR {
    for (std::size_t at = 0; at < plane; at += 64) {
      const std::size_t first = field() * plane + at;
      const KeyDecoder<kCodec> decoder(meta, static_cast<int>(first / 64));
#pragma GCC unroll 4
      for (std::size_t strip = 0; strip < 4; ++strip) {
        const std::uint8_t* from = codes + strip * strip_bytes;
#pragma GCC unroll kUnroll
        for (std::size_t part = 0; part < 64; part += kRegBytes) {
          const auto raw = sn::LoadBytes(from + at + part);
          store_raw(decoder.template decode<field()>(raw, from + plane, first + part),
                    out + strip * form + first + part);
        }
      }
    }
  });
}

/// V as v8.
template <cache::CodecId kCodec>
HWY_NOINLINE void unpack_values(const std::uint8_t* codes, int head_dim, std::uint8_t* out) {
  const std::size_t plane = cache::tile_plane_bytes(kCodec, cache::v_form_bytes(head_dim));
  for (std::size_t at = 0; at < plane; at += kRegBytes) {
    const auto raw = sn::LoadBytes(codes + at);
    for_each_field<kCodec>([&](auto field) HWY_ATTR {
      const std::size_t place = field() * plane + at;
      store_raw(decode_values<kCodec, field()>(raw, codes + plane, place), out + place);
    });
  }
}

/// A vector of floats of bytes that are scales of few bits (tile_codec.h), times two bases.
template <int kShift>
HWY_INLINE hn::Vec<Tag16> load_scales(const std::uint8_t* scales, std::uint32_t bias,
                                      float first_base, float second_base) {
  const Tag16 tag;
  const hn::RebindToUnsigned<Tag16> tu;
  const hn::Rebind<std::uint8_t, Tag16> t8;
  const auto bits = hn::ShiftLeft<kShift>(hn::PromoteTo(tu, hn::LoadU(t8, scales)));
  const auto unit = hn::BitCast(tag, hn::Add(bits, hn::Set(tu, bias)));
  return hn::Mul(hn::Mul(unit, hn::Set(tag, first_base)), hn::Set(tag, second_base));
}

/// Scales of K of a tile's tokens from `token` on.
HWY_INLINE hn::Vec<Tag16> load_key_scales(const cache::KTileMeta& meta, int token) {
  return load_scales<cache::kKScaleShift>(meta.scale + token, cache::kKScaleBias, meta.token_base,
                                          meta.base);
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
  const Tag16 tag;
  const hn::RebindToSigned<Tag16> ti;
  const hn::Rebind<std::int8_t, Tag16> t8;
  for (int i = 0; i < cache::kTileTokens; i += kLanes) {
    hn::Store(
        load_scales<cache::kVScaleShift>(meta.scale + i, cache::kVScaleBias, meta.scale_base, 1.0f),
        tag, scale + i);
    const auto whole = hn::PromoteTo(ti, hn::LoadU(t8, meta.centre + i));
    hn::Store(hn::Mul(hn::ConvertTo(tag, whole), hn::Set(tag, meta.centre_base)), tag, centre + i);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
