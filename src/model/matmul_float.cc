// Matmul kernels on float activations, and the activations' int8 form.
//
// Every format goes through the same tile: weights of a few columns as f32 [col][16 rows], products
// of 32 columns summed on their own, then added to the total. F32 weights are read where they are;
// others are converted into a panel, or, for a few tokens of a 16-bit format, in registers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "model/matmul_kernels.h"
#include "model/packed_layout.h"
#include "simd/half.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/matmul_float.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "simd/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::model {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sn = simd::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr int kFloatBlocks = 2, kFloatTokens = 8;
#elif HWY_TARGET == HWY_SCALAR
inline constexpr int kFloatBlocks = 1, kFloatTokens = 1;
#else
inline constexpr int kFloatBlocks = 1, kFloatTokens = 6;
#endif

// Columns of a panel: 128 x 16 rows x 4 B = 8 KiB a block, so that it stays in L1.
inline constexpr int kPanelCols = 128;

/// Readers of one register of weights as f32.
struct LoadF32 {
  using Value = float;
  static HWY_INLINE sn::VF32 load(const float* p) { return hn::LoadU(sn::DF32(), p); }
};
struct LoadF16 {
  using Value = std::uint16_t;
  static HWY_INLINE sn::VF32 load(const std::uint16_t* p) {
    return sn::LoadScales<false>(reinterpret_cast<const std::uint8_t*>(p));
  }
};
struct LoadBF16 {
  using Value = std::uint16_t;
  static HWY_INLINE sn::VF32 load(const std::uint16_t* p) {
    const hn::RebindToUnsigned<sn::DF32> du;
    const hn::Rebind<std::uint16_t, sn::DF32> d16;
    return hn::BitCast(sn::DF32(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, p))));
  }
};

/// Adds `n_cols` columns' products to the totals. Shapes: weights of block b at
/// `weights + b * block_stride`, [n_cols][16]; x of token t at `x + t * x_stride`;
/// totals [token][kFloatBlocks * 16].
template <class Load, int kBlocks, int kTokens>
HWY_NOINLINE void FloatTile(const typename Load::Value* weights, std::size_t block_stride,
                            const float* x, std::size_t x_stride, int n_cols, float* totals) {
  constexpr int kRegs = kBlocks * sn::kRegisters;
  const sn::DF32 d;
  const float* rows[kTokens];
  KVASIR_UNROLL
  for (int t = 0; t < kTokens; ++t) rows[t] = x + static_cast<std::size_t>(t) * x_stride;
  for (int first = 0; first < n_cols; first += kUnitCols) {
    const int end = std::min(n_cols, first + kUnitCols);
    sn::VF32 sums[kTokens][kRegs];
    KVASIR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVASIR_UNROLL
      for (int r = 0; r < kRegs; ++r) sums[t][r] = hn::Zero(d);
    }
    for (int col = first; col < end; ++col) {
      sn::VF32 w[kRegs];
      KVASIR_UNROLL
      for (int r = 0; r < kRegs; ++r) {
        w[r] = Load::load(weights + static_cast<std::size_t>(r / sn::kRegisters) * block_stride +
                          static_cast<std::size_t>(col) * kBlockRows +
                          r % sn::kRegisters * sn::kLanes);
      }
      KVASIR_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const sn::VF32 value = hn::Set(d, rows[t][col]);
        KVASIR_UNROLL
        for (int r = 0; r < kRegs; ++r) sums[t][r] = sn::FusedMulAdd(w[r], value, sums[t][r]);
      }
    }
    KVASIR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVASIR_UNROLL
      for (int r = 0; r < kRegs; ++r) {
        float* total = totals + t * kFloatBlocks * kBlockRows + r * sn::kLanes;
        hn::StoreU(hn::Add(hn::LoadU(d, total), sums[t][r]), d, total);
      }
    }
  }
}

/// FloatTile over any number of tokens.
template <class Load, int kBlocks>
void FloatTokens(const typename Load::Value* weights, std::size_t block_stride, const float* x,
                 std::size_t x_stride, int n_tokens, int n_cols, float* totals) {
  for (int t = 0; t < n_tokens;) {
    const auto run = [&](auto tile, int n) {
      tile(weights, block_stride, x + static_cast<std::size_t>(t) * x_stride, x_stride, n_cols,
           totals + t * kFloatBlocks * kBlockRows);
      t += n;
    };
    constexpr int kFour = HWY_MIN(4, kFloatTokens), kTwo = HWY_MIN(2, kFloatTokens);
    const int rest = n_tokens - t;
    if (rest >= kFloatTokens) {
      run(FloatTile<Load, kBlocks, kFloatTokens>, kFloatTokens);
    } else if (rest >= kFour) {
      run(FloatTile<Load, kBlocks, kFour>, kFour);
    } else if (rest >= kTwo) {
      run(FloatTile<Load, kBlocks, kTwo>, kTwo);
    } else {
      run(FloatTile<Load, kBlocks, 1>, 1);
    }
  }
}

/// Four columns of a unit of integer codes as f32. Shape: panel [4][16].
template <bool kScaleF32>
HWY_INLINE void DequantizeQuad(const PackedFormat& format, const std::uint8_t* unit, int quad,
                               float* panel) {
  const sn::DF32 d;
  const hn::RebindToUnsigned<sn::DF32> du;
  const sn::DI32 di;
  const bool w4 = format.codes == PackedCodes::kW4;
  const int line = w4 ? quad % 4 : quad;
  const int group = quad * 4 / format.group_cols;
  const std::size_t scale_size = kScaleF32 ? 4 : 2;
  const std::uint8_t* scales =
      unit + code_bytes(format) + static_cast<std::size_t>(group * kBlockRows) * scale_size;
  const auto mask = hn::Set(du, w4 ? 15u : 255u);
  const sn::VF32 zero_point = hn::Set(d, static_cast<float>(format.zero_point));
  for (int r = 0; r < sn::kRegisters; ++r) {
    const std::size_t first_lane = static_cast<std::size_t>(r * sn::kLanes);
    const sn::VF32 scale = sn::LoadScales<kScaleF32>(scales + first_lane * scale_size);
    auto bytes =
        hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(unit + 64 * line) + first_lane);
    if (w4 && quad >= 4) bytes = hn::ShiftRight<4>(bytes);
    for (int i = 0; i < 4; ++i) {
      const sn::VF32 stored = hn::ConvertTo(d, hn::BitCast(di, hn::And(bytes, mask)));
      const sn::VF32 code = hn::Sub(stored, zero_point);
      sn::VF32 value = hn::Mul(scale, code);
      if (format.has_minimum) {
        const sn::VF32 minimum =
            sn::LoadScales<kScaleF32>(scales + scale_bytes(format) + first_lane * scale_size);
        value = sn::FusedMulAdd(scale, code, minimum);
      }
      hn::StoreU(value, d, panel + i * kBlockRows + first_lane);
      bytes = hn::ShiftRight<8>(bytes);
    }
  }
}

/// Columns [first_col, first_col + n_cols) of a block as f32. Shape: panel [n_cols][16].
void FillPanel(const PackedFormat& format, const std::uint8_t* block, int first_col, int n_cols,
               float* panel) {
  if (is_integer(format)) {
    const std::uint8_t* unit =
        block + static_cast<std::size_t>(first_col / kUnitCols) * unit_bytes(format);
    for (int col = 0; col < n_cols; col += kUnitCols, unit += unit_bytes(format)) {
      for (int quad = 0; quad < 8; ++quad) {
        float* out = panel + (col + 4 * quad) * kBlockRows;
        if (format.scale_f32) {
          DequantizeQuad<true>(format, unit, quad, out);
        } else {
          DequantizeQuad<false>(format, unit, quad, out);
        }
      }
    }
    return;
  }
  const std::uint16_t* values = reinterpret_cast<const std::uint16_t*>(block) +
                                static_cast<std::size_t>(first_col) * kBlockRows;
  const bool is_f16 = format.codes == PackedCodes::kF16;
  for (int i = 0; i < n_cols * kBlockRows; i += sn::kLanes) {
    hn::StoreU(is_f16 ? LoadF16::load(values + i) : LoadBF16::load(values + i), sn::DF32(),
               panel + i);
  }
}

/// All columns of kBlocks blocks. Shape: totals [n_tokens][kFloatBlocks * 16], zero at the start.
template <int kBlocks>
void FloatBlocks(const MatmulOperands& operands, const MatmulRange& range, int block_idx,
                 float* totals) {
  const Matrix& w = operands.weights;
  const std::uint8_t* block = w.block(block_idx);
  const float* x = operands.x.row(range.first_token);
  const std::size_t x_stride = operands.x.row_stride;
  const auto direct = [&]<class Load>(Load) {
    using Value = typename Load::Value;
    FloatTokens<Load, kBlocks>(reinterpret_cast<const Value*>(block),
                               w.block_bytes() / sizeof(Value), x, x_stride, range.n_tokens,
                               w.n_cols(), totals);
  };
  const bool few_tokens = range.n_tokens <= kFloatTokens;
  if (w.format().codes == PackedCodes::kF32 && few_tokens) return direct(LoadF32());
  if (w.format().codes == PackedCodes::kF16 && few_tokens) return direct(LoadF16());
  if (w.format().codes == PackedCodes::kBF16 && few_tokens) return direct(LoadBF16());

  alignas(64) float panel[kBlocks * kPanelCols * kBlockRows];
  for (int col = 0; col < w.n_cols(); col += kPanelCols) {
    const int n_cols = std::min(kPanelCols, w.n_cols() - col);
    const float* weights = panel;
    std::size_t stride = kPanelCols * kBlockRows;
    if (w.format().codes == PackedCodes::kF32) {
      weights = reinterpret_cast<const float*>(block) + static_cast<std::size_t>(col) * kBlockRows;
      stride = w.block_bytes() / sizeof(float);
    } else {
      for (int b = 0; b < kBlocks; ++b) {
        FillPanel(w.format(), w.block(block_idx + b), col, n_cols,
                  panel + b * kPanelCols * kBlockRows);
      }
    }
    FloatTokens<LoadF32, kBlocks>(weights, stride, x + col, x_stride, range.n_tokens, n_cols,
                                  totals);
  }
}

void MatmulFloat(const MatmulOperands& operands, const MatmulRange& range) {
  alignas(64) float totals[kFloatTaskTokens * kFloatBlocks * kBlockRows];
  constexpr int kStride = kFloatBlocks * kBlockRows;
  const int end = range.first_block + range.n_blocks;
  for (int block = range.first_block; block < end; block += kFloatBlocks) {
    const int n_blocks = std::min(kFloatBlocks, end - block);
    std::memset(totals, 0, static_cast<std::size_t>(range.n_tokens * kStride) * sizeof(float));
    if (n_blocks == kFloatBlocks) {
      FloatBlocks<kFloatBlocks>(operands, range, block, totals);
    } else {
      FloatBlocks<1>(operands, range, block, totals);
    }
    const int first_row = block * kBlockRows;
    const std::size_t n_rows = static_cast<std::size_t>(
        std::min(n_blocks * kBlockRows, operands.weights.n_rows() - first_row));
    for (int t = 0; t < range.n_tokens; ++t) {
      const std::size_t token = static_cast<std::size_t>(range.first_token + t);
      std::memcpy(operands.y + token * operands.y_stride + first_row, totals + t * kStride,
                  n_rows * sizeof(float));
    }
  }
}

/// Sum of 16 int8 codes; as bytes 0..255, whose sums every target has an instruction for.
HWY_INLINE std::int32_t SumOfCodes(const std::int8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  return std::accumulate(codes, codes + 16, 0);
#else
  const hn::FixedTag<std::uint8_t, 16> d8;
  const hn::FixedTag<std::uint64_t, 2> d64;
  const auto bytes = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(codes));
  const auto sums = hn::SumsOf8(hn::Xor(bytes, hn::Set(d8, 128)));
  const auto sum = hn::Add(sums, hn::ConcatUpperUpper(d64, sums, sums));
  return static_cast<std::int32_t>(hn::GetLane(sum)) - 16 * 128;
#endif
}

/// One group of 32. The largest magnitude is found on the bit patterns, where NaN is above
/// infinity, so that a NaN reaches the scale and with it the results.
HWY_INLINE void QuantizeGroup(const float* x, ActivationGroup& group) {
  constexpr int kRegs = kUnitCols / sn::kLanes;
  const sn::DF32 d;
  const sn::DI32 di;
  const hn::Rebind<std::int8_t, sn::DI32> d8;
  sn::VF32 v[kRegs];
  auto largest = hn::Zero(di);
  KVASIR_UNROLL
  for (int r = 0; r < kRegs; ++r) {
    v[r] = hn::LoadU(d, x + r * sn::kLanes);
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(v[r])));
  }
  const float magnitude = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, largest)));
  // A group this small counts as zero: 127 / magnitude would overflow.
  const bool is_zero = magnitude < 1e-35f;
  const float scale = is_zero ? 0.0f : magnitude / 127.0f;
  const sn::VF32 inverse = hn::Set(d, is_zero ? 0.0f : 127.0f / magnitude);

  // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, on every target.
  const sn::VF32 magic = hn::Set(d, 12582912.0f);
  KVASIR_UNROLL
  for (int r = 0; r < kRegs; ++r) {
    const sn::VF32 shifted = hn::Add(hn::Mul(v[r], inverse), magic);
    auto q = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
    q = hn::Min(hn::Max(q, hn::Set(di, -127)), hn::Set(di, 127));
    hn::StoreU(hn::DemoteTo(d8, q), d8, group.codes + r * sn::kLanes);
  }
  const std::int32_t low = SumOfCodes(group.codes), high = SumOfCodes(group.codes + 16);
  group.scale = scale;
  group.sum = scale * static_cast<float>(low + high);
  group.half_sums[0] = scale * static_cast<float>(low);
  group.half_sums[1] = scale * static_cast<float>(high);
  group.minus_code_sum = -(low + high);
  group.minus_half_code_sums[0] = -low;
  group.minus_half_code_sums[1] = -high;
  group.unused = 0;
}

void QuantizeActivations(const float* x, int n_cols, ActivationGroup* groups) {
  for (int col = 0; col < n_cols; col += kUnitCols) QuantizeGroup(x + col, groups[col / kUnitCols]);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::model
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::model {

HWY_EXPORT(MatmulFloat);
HWY_EXPORT(QuantizeActivations);

void matmul_float(const MatmulOperands& operands, const MatmulRange& range) {
  KVASIR_DCHECK(range.n_tokens <= kFloatTaskTokens);
  HWY_DYNAMIC_DISPATCH(MatmulFloat)(operands, range);
}

void quantize_activations(const float* x, int n_cols, ActivationGroup* groups) {
  HWY_DYNAMIC_DISPATCH(QuantizeActivations)(x, n_cols, groups);
}

}  // namespace kvasir::model
#endif  // HWY_ONCE
