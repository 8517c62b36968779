// Integer matmul: a tile of row blocks times tokens in registers.
//
// Included once per target, after simd/targets.h and hwy/foreach_target.h.

// clang-format off
#if defined(KVASIR_MODEL_MATMUL_INTEGER_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_MODEL_MATMUL_INTEGER_INL_H_
#undef KVASIR_MODEL_MATMUL_INTEGER_INL_H_
#else
#define KVASIR_MODEL_MATMUL_INTEGER_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "model/matmul_kernels.h"
#include "model/packed_layout.h"
#include "simd/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::model {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sn = simd::HWY_NAMESPACE;

template <int kBitsT, int kGroupColsT, bool kScaleF32T, bool kHasMinimumT, int kZeroPointT>
struct IntegerFormat {
  static constexpr int kBits = kBitsT;
  static constexpr int kGroupCols = kGroupColsT;
  static constexpr bool kScaleF32 = kScaleF32T;
  static constexpr bool kHasMinimum = kHasMinimumT;
  static constexpr int kZeroPoint = kZeroPointT;
  static constexpr PackedFormat kPacked{kBits == 4 ? PackedCodes::kW4 : PackedCodes::kW8,
                                        kGroupCols, kScaleF32, kHasMinimum, kZeroPoint};
  static constexpr std::size_t kCodeBytes = code_bytes(kPacked);
  static constexpr std::size_t kScaleBytes = scale_bytes(kPacked);
  static constexpr std::size_t kUnitBytes = unit_bytes(kPacked);
  using Dot = sn::Dot<kBits, kZeroPoint>;
};

// Tokens and row blocks of the largest tile, as the registers of the target allow.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr int kTileBlocks = 2, kTileTokens = 4;
#elif HWY_TARGET == HWY_SCALAR
inline constexpr int kTileBlocks = 1, kTileTokens = 1;
#else
inline constexpr int kTileBlocks = 1, kTileTokens = 4;
#endif

// How far ahead of its reads a GEMV fetches (measured: 8-16 KiB are equal, less and more are
// worse).
inline constexpr std::size_t kGemvPrefetchBytes = 12 * 1024;

/// Adds the products of the columns [4 * kFirstQuad, 4 * (kFirstQuad + 4)) of a unit to `sums`.
template <class F, int kHalf, int kBlocks, int kTokens>
HWY_INLINE void AddHalf(const std::uint8_t* const (&units)[kBlocks],
                        const ActivationGroup* const (&groups)[kTokens],
                        typename F::Dot::Sum (&sums)[kTokens][kBlocks * sn::kRegisters]) {
  using Dot = typename F::Dot;
  KVASIR_UNROLL
  for (int j = 0; j < 4; ++j) {
    typename Dot::Weights weights[kBlocks * sn::kRegisters];
    KVASIR_UNROLL
    for (int r = 0; r < kBlocks * sn::kRegisters; ++r) {
      const int line = F::kBits == 8 ? 4 * kHalf + j : j;
      const sn::Bytes stored = sn::LoadBytes(units[r / sn::kRegisters] + 64 * line +
                                             r % sn::kRegisters * 4 * sn::kLanes);
      if constexpr (F::kBits == 8) {
        weights[r] = Dot::prepare(stored);
      } else {
        weights[r] = Dot::prepare(kHalf == 0 ? sn::LowNibbles(stored) : sn::HighNibbles(stored));
      }
    }
    KVASIR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const sn::Bytes quad = sn::BroadcastQuad(groups[t]->codes + 16 * kHalf + 4 * j);
      KVASIR_UNROLL
      for (int r = 0; r < kBlocks * sn::kRegisters; ++r) {
        sums[t][r] = Dot::step(sums[t][r], weights[r], quad);
      }
    }
  }
}

/// Adds one group's share to the totals, in the order matmul.h gives. kHalf: 0 or 1 for a group of
/// 16 columns, -1 for one of 32.
template <class F, int kHalf, int kBlocks, int kTokens>
HWY_INLINE void AddGroup(const std::uint8_t* const (&units)[kBlocks],
                         const ActivationGroup* const (&groups)[kTokens],
                         sn::VF32 (&totals)[kTokens][kBlocks * sn::kRegisters]) {
  using Dot = typename F::Dot;
  constexpr int kRegs = kBlocks * sn::kRegisters;
  const sn::DF32 d;
  const auto minus_sum = [](const ActivationGroup* group) {
    return kHalf < 0 ? &group->minus_code_sum : &group->minus_half_code_sums[kHalf];
  };
  typename Dot::Sum sums[kTokens][kRegs];
  KVASIR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVASIR_UNROLL
    for (int r = 0; r < kRegs; ++r) sums[t][r] = Dot::start(minus_sum(groups[t]));
  }
  if constexpr (kHalf <= 0) AddHalf<F, 0, kBlocks, kTokens>(units, groups, sums);
  if constexpr (kHalf != 0) AddHalf<F, 1, kBlocks, kTokens>(units, groups, sums);

  constexpr std::size_t kScaleSize = F::kScaleF32 ? 4 : 2;
  KVASIR_UNROLL
  for (int r = 0; r < kRegs; ++r) {
    const std::uint8_t* scales =
        units[r / sn::kRegisters] + F::kCodeBytes +
        static_cast<std::size_t>((kHalf == 1 ? 16 : 0) + r % sn::kRegisters * sn::kLanes) *
            kScaleSize;
    const sn::VF32 scale = sn::LoadScales<F::kScaleF32>(scales);
    sn::VF32 minimum = hn::Zero(d);
    if constexpr (F::kHasMinimum) {
      minimum = sn::LoadScales<F::kScaleF32>(scales + F::kScaleBytes);
    }
    KVASIR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      if constexpr (F::kHasMinimum) {
        const float sum = kHalf < 0 ? groups[t]->sum : groups[t]->half_sums[kHalf < 0 ? 0 : kHalf];
        totals[t][r] = sn::FusedMulAdd(minimum, hn::Set(d, sum), totals[t][r]);
      }
      const sn::VI32 dot = Dot::finish(sums[t][r], minus_sum(groups[t]));
      const sn::VF32 scaled = hn::Mul(hn::ConvertTo(d, dot), hn::Set(d, groups[t]->scale));
      totals[t][r] = sn::FusedMulAdd(scaled, scale, totals[t][r]);
    }
  }
}

/// y of kBlocks x kTokens over all columns. Shapes: out [kTokens][kBlocks * 16].
/// Fetches `prefetch_bytes` ahead of each block's reads when that is not 0.
template <class F, int kBlocks, int kTokens>
HWY_NOINLINE void IntegerTile(const std::uint8_t* first_block, std::size_t block_stride,
                              const ActivationGroup* first_token, std::size_t token_stride,
                              int n_units, std::size_t prefetch_bytes, float* out) {
  const sn::DF32 d;
  sn::VF32 totals[kTokens][kBlocks * sn::kRegisters];
  const std::uint8_t* units[kBlocks];
  const ActivationGroup* groups[kTokens];
  KVASIR_UNROLL
  for (int b = 0; b < kBlocks; ++b)
    units[b] = first_block + static_cast<std::size_t>(b) * block_stride;
  KVASIR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    groups[t] = first_token + static_cast<std::size_t>(t) * token_stride;
    KVASIR_UNROLL
    for (int r = 0; r < kBlocks * sn::kRegisters; ++r) totals[t][r] = hn::Zero(d);
  }
  for (int u = 0; u < n_units; ++u) {
    if (prefetch_bytes != 0) {
      KVASIR_UNROLL
      for (int b = 0; b < kBlocks; ++b) {
        KVASIR_UNROLL
        for (std::size_t line = 0; line < F::kUnitBytes; line += 64) {
          hwy::Prefetch(units[b] + prefetch_bytes + line);
        }
      }
    }
    if constexpr (F::kGroupCols == 32) {
      AddGroup<F, -1, kBlocks, kTokens>(units, groups, totals);
    } else {
      AddGroup<F, 0, kBlocks, kTokens>(units, groups, totals);
      AddGroup<F, 1, kBlocks, kTokens>(units, groups, totals);
    }
    KVASIR_UNROLL
    for (int b = 0; b < kBlocks; ++b) units[b] += F::kUnitBytes;
    KVASIR_UNROLL
    for (int t = 0; t < kTokens; ++t) ++groups[t];
  }
  KVASIR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVASIR_UNROLL
    for (int r = 0; r < kBlocks * sn::kRegisters; ++r) {
      hn::StoreU(totals[t][r], d, out + t * kBlocks * kBlockRows + r * sn::kLanes);
    }
  }
}

/// Tiles of kBlocks row blocks at `block_idx` over the tokens of the range.
template <class F, int kBlocks>
void IntegerBlocks(const MatmulOperands& operands, const MatmulRange& range, int block_idx) {
  const Matrix& w = operands.weights;
  const std::size_t token_stride = static_cast<std::size_t>(w.n_cols() / kUnitCols);
  const int n_units = w.n_cols() / kUnitCols;
  const int first_row = block_idx * kBlockRows;
  const std::size_t n_rows =
      static_cast<std::size_t>(std::min(kBlocks * kBlockRows, w.n_rows() - first_row));
  // A GEMV reads one stream and runs ahead in it; the first tile of a GEMM fetches the next blocks.
  std::size_t prefetch_bytes = range.n_tokens == 1 ? kGemvPrefetchBytes : kBlocks * w.block_bytes();
  alignas(64) float out[kTileTokens * kBlocks * kBlockRows];
  for (int t = 0; t < range.n_tokens;) {
    const int token = range.first_token + t;
    const int n = std::min(kTileTokens, range.n_tokens - t);
    const auto run = [&](auto tile) {
      tile(w.block(block_idx), w.block_bytes(), operands.x.groups(token), token_stride, n_units,
           prefetch_bytes, out);
    };
    switch (n) {
      case 1:
        run(IntegerTile<F, kBlocks, 1>);
        break;
      case 2:
        run(IntegerTile<F, kBlocks, HWY_MIN(2, kTileTokens)>);
        break;
      case 3:
        run(IntegerTile<F, kBlocks, HWY_MIN(3, kTileTokens)>);
        break;
      default:
        run(IntegerTile<F, kBlocks, kTileTokens>);
        break;
    }
    for (int i = 0; i < n; ++i) {
      std::memcpy(operands.y + static_cast<std::size_t>(token + i) * operands.y_stride + first_row,
                  out + i * kBlocks * kBlockRows, n_rows * sizeof(float));
    }
    prefetch_bytes = 0;
    t += n;
  }
}

template <class F>
void IntegerMatmul(const MatmulOperands& operands, const MatmulRange& range) {
  int block = range.first_block;
  const int end = range.first_block + range.n_blocks;
  if constexpr (kTileBlocks > 1) {
    // One token alone is bound by memory: a single stream then.
    for (; range.n_tokens > 1 && block + kTileBlocks <= end; block += kTileBlocks) {
      IntegerBlocks<F, kTileBlocks>(operands, range, block);
    }
  }
  for (; block < end; ++block) IntegerBlocks<F, 1>(operands, range, block);
}

/// Runs the one of `Formats` that the weights are in.
template <class... Formats>
void DispatchFormat(const MatmulOperands& operands, const MatmulRange& range) {
  const PackedFormat& format = operands.weights.format();
  const bool found =
      ((format == Formats::kPacked && (IntegerMatmul<Formats>(operands, range), true)) || ...);
  KVASIR_CHECK(found);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::model
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
