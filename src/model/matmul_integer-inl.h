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
#include "simd/cpu.h"
#include "simd/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::model {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sn = simd::HWY_NAMESPACE;

template <template <int, int> class DotT, int kBitsT, int kGroupColsT, bool kScaleF32T,
          bool kHasMinimumT, int kZeroPointT>
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
  using Dot = DotT<kBits, kZeroPoint>;
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

/// Running totals of a tile. With 32 registers they stay there; with 16 the sums of the group at
/// hand need the room, and totals that the compiler spills cost more than totals that live in
/// memory: on the stack, where no two of them are a multiple of 4 KiB apart.
template <int kTokens, int kRegs>
class Totals {
 public:
  HWY_INLINE Totals() {
    KVASIR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      KVASIR_UNROLL
      for (int r = 0; r < kRegs; ++r) set(t, r, hn::Zero(sn::DF32()));
    }
  }
  HWY_INLINE sn::VF32 get(int t, int r) const {
    if constexpr (kInRegisters) return registers_[t][r];
    return hn::Load(sn::DF32(), memory_ + (t * kRegs + r) * sn::kLanes);
  }
  HWY_INLINE void set(int t, int r, sn::VF32 value) {
    if constexpr (kInRegisters) {
      registers_[t][r] = value;
    } else {
      hn::Store(value, sn::DF32(), memory_ + (t * kRegs + r) * sn::kLanes);
    }
  }
  /// Row t goes to `out + t * out_stride`, [kRegs * lanes].
  HWY_INLINE void write(float* out, std::size_t out_stride) const {
    KVASIR_UNROLL
    for (int t = 0; t < kTokens; ++t, out += out_stride) {
      KVASIR_UNROLL
      for (int r = 0; r < kRegs; ++r) hn::StoreU(get(t, r), sn::DF32(), out + r * sn::kLanes);
    }
  }

 private:
  static constexpr bool kInRegisters =
      HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || kTokens * kRegs <= 4;
  sn::VF32 registers_[kInRegisters ? kTokens : 1][kInRegisters ? kRegs : 1];
  alignas(64) float memory_[kInRegisters ? 1 : kTokens * kRegs * sn::kLanes];
};

/// Adds the products of four columns, 4 * kQuad and on, to `sums`. `bytes` are theirs.
template <class F, int kQuad, int kTokens, int kRegs>
HWY_INLINE void AddQuad(const sn::Bytes (&bytes)[kRegs],
                        const ActivationGroup* const (&groups)[kTokens],
                        typename F::Dot::Sum (&sums)[kTokens][kRegs]) {
  using Dot = typename F::Dot;
  typename Dot::Weights weights[kRegs];
  KVASIR_UNROLL
  for (int r = 0; r < kRegs; ++r) weights[r] = Dot::prepare(bytes[r]);
  KVASIR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const sn::Bytes quad = sn::BroadcastQuad(groups[t]->codes + 4 * kQuad);
    KVASIR_UNROLL
    for (int r = 0; r < kRegs; ++r) sums[t][r] = Dot::step(sums[t][r], weights[r], quad);
  }
}

/// Adds the products of one 64-byte line of codes: kHalf 0 or 1 for the columns of that half of the
/// unit only, -1 for all that the line has.
template <class F, int kLine, int kHalf, int kBlocks, int kTokens>
HWY_INLINE void AddLine(const std::uint8_t* const (&units)[kBlocks],
                        const ActivationGroup* const (&groups)[kTokens],
                        typename F::Dot::Sum (&sums)[kTokens][kBlocks * sn::kRegisters]) {
  constexpr int kRegs = kBlocks * sn::kRegisters;
  sn::Bytes stored[kRegs], bytes[kRegs];
  KVASIR_UNROLL
  for (int r = 0; r < kRegs; ++r) {
    stored[r] =
        sn::LoadBytes(units[r / sn::kRegisters] + 64 * kLine + r % sn::kRegisters * 4 * sn::kLanes);
  }
  if constexpr (F::kBits == 8) {
    AddQuad<F, kLine, kTokens, kRegs>(stored, groups, sums);
    return;
  }
  if constexpr (kHalf <= 0) {
    KVASIR_UNROLL
    for (int r = 0; r < kRegs; ++r) bytes[r] = sn::LowNibbles(stored[r]);
    AddQuad<F, kLine, kTokens, kRegs>(bytes, groups, sums);
  }
  if constexpr (kHalf != 0) {
    KVASIR_UNROLL
    for (int r = 0; r < kRegs; ++r) bytes[r] = sn::HighNibbles(stored[r]);
    AddQuad<F, kLine + 4, kTokens, kRegs>(bytes, groups, sums);
  }
}

/// Adds one group's share to the totals, in the order matmul.h gives. kHalf: 0 or 1 for a group of
/// 16 columns, -1 for one of 32.
template <class F, int kHalf, int kBlocks, int kTokens>
HWY_INLINE void AddGroup(const std::uint8_t* const (&units)[kBlocks],
                         const ActivationGroup* const (&groups)[kTokens],
                         Totals<kTokens, kBlocks * sn::kRegisters>& totals) {
  using Dot = typename F::Dot;
  constexpr int kRegs = kBlocks * sn::kRegisters;
  const sn::DF32 d;
  const auto minus_sum = [](const ActivationGroup* group) {
    return kHalf < 0 ? &group->minus_code_sum : &group->minus_half_code_sums[kHalf < 0 ? 0 : kHalf];
  };
  typename Dot::Sum sums[kTokens][kRegs];
  KVASIR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    KVASIR_UNROLL
    for (int r = 0; r < kRegs; ++r) sums[t][r] = Dot::start(minus_sum(groups[t]));
  }
  constexpr int kFirstLine = F::kBits == 8 && kHalf == 1 ? 4 : 0;
  AddLine<F, kFirstLine + 0, kHalf, kBlocks, kTokens>(units, groups, sums);
  AddLine<F, kFirstLine + 1, kHalf, kBlocks, kTokens>(units, groups, sums);
  AddLine<F, kFirstLine + 2, kHalf, kBlocks, kTokens>(units, groups, sums);
  AddLine<F, kFirstLine + 3, kHalf, kBlocks, kTokens>(units, groups, sums);
  if constexpr (F::kBits == 8 && kHalf < 0) {
    AddLine<F, 4, kHalf, kBlocks, kTokens>(units, groups, sums);
    AddLine<F, 5, kHalf, kBlocks, kTokens>(units, groups, sums);
    AddLine<F, 6, kHalf, kBlocks, kTokens>(units, groups, sums);
    AddLine<F, 7, kHalf, kBlocks, kTokens>(units, groups, sums);
  }

  constexpr std::size_t kScaleSize = F::kScaleF32 ? 4 : 2;
  sn::VF32 scales[kRegs], minima[kRegs];
  KVASIR_UNROLL
  for (int r = 0; r < kRegs; ++r) {
    const std::uint8_t* stored =
        units[r / sn::kRegisters] + F::kCodeBytes +
        static_cast<std::size_t>((kHalf == 1 ? 16 : 0) + r % sn::kRegisters * sn::kLanes) *
            kScaleSize;
    scales[r] = sn::LoadScales<F::kScaleF32>(stored);
    if constexpr (F::kHasMinimum) {
      minima[r] = sn::LoadScales<F::kScaleF32>(stored + F::kScaleBytes);
    }
  }
  KVASIR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const sn::VF32 token_scale = hn::Set(d, groups[t]->scale);
    const sn::VF32 token_sum =
        hn::Set(d, kHalf < 0 ? groups[t]->sum : groups[t]->half_sums[kHalf < 0 ? 0 : kHalf]);
    KVASIR_UNROLL
    for (int r = 0; r < kRegs; ++r) {
      sn::VF32 total = totals.get(t, r);
      if constexpr (F::kHasMinimum) total = sn::FusedMulAdd(minima[r], token_sum, total);
      const sn::VI32 dot = Dot::finish(sums[t][r], minus_sum(groups[t]));
      const sn::VF32 scaled = hn::Mul(hn::ConvertTo(d, dot), token_scale);
      totals.set(t, r, sn::FusedMulAdd(scaled, scales[r], total));
    }
  }
}

/// Lines fetched while a tile of several tokens computes.
struct FetchPlan {
  const std::uint8_t* from = nullptr;
  int lines_per_unit = 0;
};

/// y of kBlocks x kTokens over all columns. Shapes: kTokens rows of out, [kBlocks * 16], are
/// `out_stride` floats apart.
template <class F, int kBlocks, int kTokens>
HWY_NOINLINE void IntegerTile(const std::uint8_t* first_block, std::size_t block_stride,
                              const ActivationGroup* first_token, std::size_t token_stride,
                              int n_units, FetchPlan fetch, float* out, std::size_t out_stride) {
  Totals<kTokens, kBlocks * sn::kRegisters> totals;
  const std::uint8_t* units[kBlocks];
  const ActivationGroup* groups[kTokens];
  KVASIR_UNROLL
  for (int b = 0; b < kBlocks; ++b)
    units[b] = first_block + static_cast<std::size_t>(b) * block_stride;
  KVASIR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    groups[t] = first_token + static_cast<std::size_t>(t) * token_stride;
  }
  for (int u = 0; u < n_units; ++u) {
    if constexpr (kTokens == 1) {  // a GEMV reads one stream and runs ahead in it
      KVASIR_UNROLL
      for (std::size_t line = 0; line < F::kUnitBytes; line += 64) {
        hwy::Prefetch(units[0] + kGemvPrefetchBytes + line);
      }
    } else {
      for (int line = 0; line < fetch.lines_per_unit; ++line, fetch.from += 64) {
        hwy::Prefetch(fetch.from);
      }
    }
    if constexpr (kTokens == kTileTokens && kTokens > 1) {
      // The next tile's activations: from L2, in streams too short for the hardware to see.
      KVASIR_UNROLL
      for (int t = 0; t < kTokens; ++t) hwy::Prefetch(groups[t] + kTokens * token_stride);
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
  totals.write(out, out_stride);
}

/// Fetches the lines of y that the next tile writes: they come from as far as L3, and a store that
/// waits for its line holds up all behind it.
HWY_INLINE void PrefetchOut(const float* out, std::size_t out_stride, int n_tokens, int n_rows) {
  for (int t = 0; t < n_tokens; ++t, out += out_stride) {
    for (int row = 0; row < n_rows; row += 16) hwy::Prefetch(out + row);
  }
}

/// Tiles of kBlocks row blocks at `block_idx` over the tokens of the range.
template <class F, int kBlocks>
void IntegerBlocks(const MatmulOperands& operands, const MatmulRange& range, int block_idx) {
  const Matrix& w = operands.weights;
  constexpr int kRows = kBlocks * kBlockRows;
  const std::size_t token_stride = static_cast<std::size_t>(w.n_cols() / kUnitCols);
  const int n_units = w.n_cols() / kUnitCols;
  const int first_row = block_idx * kBlockRows;
  const int n_rows = std::min(kRows, w.n_rows() - first_row);
  // The first tiles fetch the next blocks, each its share, so that memory is never idle nor overrun
  // (8 tokens: all in the first of two tiles cost an eighth).
  const int n_tiles = (range.n_tokens + kTileTokens - 1) / kTileTokens;
  const std::size_t next_bytes = kBlocks * w.block_bytes();
  const std::uint8_t* const next = w.block(block_idx) + next_bytes;
  const std::size_t unit_share =
      (next_bytes / 64 + static_cast<std::size_t>(n_units * n_tiles) - 1) /
      static_cast<std::size_t>(n_units * n_tiles);
  FetchPlan fetch = {next, static_cast<int>(unit_share)};
  // A last block of fewer rows must not write beyond them.
  alignas(64) float whole[kTileTokens * kRows];
  const bool is_whole = n_rows == kRows;
  const std::size_t out_stride = is_whole ? operands.y_stride : kRows;
  for (int t = 0; t < range.n_tokens;) {
    const int token = range.first_token + t;
    const int n = std::min(kTileTokens, range.n_tokens - t);
    float* y = operands.y + static_cast<std::size_t>(token) * operands.y_stride + first_row;
    const int n_next = std::min(kTileTokens, range.n_tokens - t - n);
    PrefetchOut(y + static_cast<std::size_t>(n) * operands.y_stride, operands.y_stride, n_next,
                n_rows);
    float* out = is_whole ? y : whole;
    const auto run = [&](auto tile) {
      tile(w.block(block_idx), w.block_bytes(), operands.x.groups(token), token_stride, n_units,
           fetch, out, out_stride);
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
    for (int i = 0; i < n && !is_whole; ++i) {
      std::memcpy(y + static_cast<std::size_t>(i) * operands.y_stride, whole + i * kRows,
                  static_cast<std::size_t>(n_rows) * sizeof(float));
    }
    fetch.from += 64 * fetch.lines_per_unit * n_units;
    if (fetch.from >= next + next_bytes) fetch.lines_per_unit = 0;
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

template <class... Formats>
struct FormatList {};

/// Runs the one of `Formats` that the weights are in.
template <class... Formats>
void DispatchFormat(FormatList<Formats...>, const MatmulOperands& operands,
                    const MatmulRange& range) {
  const PackedFormat& format = operands.weights.format();
  const bool found =
      ((format == Formats::kPacked && (IntegerMatmul<Formats>(operands, range), true)) || ...);
  KVASIR_CHECK(found);
}

/// The same by the best byte dot that the CPU has. `Formats<Dot>` is a FormatList.
template <template <template <int, int> class> class Formats>
void DispatchDot(const MatmulOperands& operands, const MatmulRange& range) {
#if HWY_TARGET == HWY_AVX2
  if (simd::use_avx_vnni()) return DispatchFormat(Formats<sn::VnniDot>(), operands, range);
#endif
  DispatchFormat(Formats<sn::Dot>(), operands, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::model
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
