// Sixteen lanes over any SIMD target, and loads of every codec into them.
//
// Included once per target by kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_LANES_INL_H_
#undef KVASIR_ATTENTION_LANES_INL_H_
#else
#define KVASIR_ATTENTION_LANES_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A strip of 16 tokens, or a panel of 16 channels: 1 zmm, 2 ymm, 4 xmm or NEON registers.
using Tag16 = hn::CappedTag<float, 16>;
/// The last 8 channels of a head_dim that is no multiple of 16.
using Tag8 = hn::CappedTag<float, 8>;

template <class D>
inline constexpr int kLanesOf = static_cast<int>(hn::MaxLanes(D()));
inline constexpr int kLanes = kLanesOf<Tag16>;
inline constexpr int kRegs = 16 / kLanes;

/// x86 before AVX-512 has 16 vector registers, the others 32.
inline constexpr int kRegisters =
    (HWY_ARCH_ARM_A64 || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)) ? 32 : 16;
/// Accumulators that leave room for operands.
inline constexpr int kAccumulators = kRegisters * 3 / 4;
/// Rows of a register tile: 6 rows x 16 lanes fill the accumulators. The scalar target has none to
/// fill; neither tiles nor unrolled loops are worth their code there.
inline constexpr bool kIsScalar = kLanes == 1;
inline constexpr int kTileRows = kIsScalar ? 2 : 6;
/// Loops over registers are unrolled whole: 24 is more than any has.
inline constexpr int kUnroll = kIsScalar ? 1 : 24;

/// Strips (or panels of channels) beside `rows` rows that the accumulators hold: 1, 2 or 4.
constexpr int strips_beside(int rows) {
  const int fit = kAccumulators / (rows * kRegs);
  return fit >= 4 ? 4 : (fit >= 2 ? 2 : 1);
}

/// Stored values of the codecs; f16 and bf16 differ in type so that loads can be overloaded.
struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const float* HWY_RESTRICT from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const BF16* HWY_RESTRICT from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const F16* HWY_RESTRICT from) {
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  // Highway's emulation reads infinities and NaN as large numbers; this one keeps them.
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto bits =
      hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  const auto magnitude = hn::And(bits, hn::Set(d32, 0x7FFFu));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
  // The exponent's bias differs by 112; the multiplication makes subnormals right as well.
  const auto scaled = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto special = hn::VecFromMask(d32, hn::Gt(magnitude, hn::Set(d32, 0x7BFFu)));
  const auto infinity = hn::And(special, hn::Set(d32, 0x7F800000u));
  return hn::BitCast(d, hn::Or(hn::Or(hn::BitCast(d32, scaled), infinity), sign));
#endif
}

/// The largest |x| of `n` values, whole vectors of them; not finite if one is not.
HWY_INLINE float largest_magnitude(const float* x, int n) {
  const Tag16 tag;
  const hn::RebindToUnsigned<Tag16> tu;  // magnitudes in their order, NaN and infinity above all
  auto largest = hn::Zero(tu);
  for (int i = 0; i < n; i += kLanes) {
    largest = hn::Max(largest, hn::BitCast(tu, hn::Abs(hn::LoadU(tag, x + i))));
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(tu, largest)));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
