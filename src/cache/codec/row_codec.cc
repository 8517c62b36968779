// K and V rows into tiles. A K tile has 16 tokens side by side, so its rows are transposed on the
// way: 8 tokens x 8 dims at a time in registers where 8 neighbouring tokens are written at once
// (prefill), value by value elsewhere (decode, ragged ends).
#include "cache/codec/row_codec.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

#include "cache/codec/coded_rows.h"
#include "simd/half.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cache/codec/row_codec.cc"
#include "hwy/foreach_target.h"
// clang-format off: highway.h must come after foreach_target.h
#include "hwy/highway.h"
// clang-format on

// Highway 1.0.3 converts to f16 by truncation below AVX2 (no F16C), so those targets take the
// scalar path, whose bytes are the definition.
#undef KVASIR_VECTOR_ENCODE
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_NEON)
#define KVASIR_VECTOR_ENCODE 1
#else
#define KVASIR_VECTOR_ENCODE 0
#endif

HWY_BEFORE_NAMESPACE();
namespace kvasir::cache {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kBlock = 8;  // tokens and dims of a register transpose

struct F32Codec {
  using Value = float;
  static Value encode(float value) { return value; }
};

#if KVASIR_VECTOR_ENCODE
using Floats = hn::FixedTag<float, 4>;
using Codes = hn::FixedTag<std::uint16_t, 8>;
using CodesV = hn::Vec<Codes>;
using HalfCodes = hn::Half<Codes>;
#endif

struct F16Codec {
  using Value = std::uint16_t;
  static Value encode(float value) { return simd::f32_to_f16(value); }
#if KVASIR_VECTOR_ENCODE
  static HWY_INLINE hn::Vec<HalfCodes> encode4(const float* from) {
    const hn::FixedTag<hwy::float16_t, 4> d16;
    return hn::BitCast(HalfCodes(), hn::DemoteTo(d16, hn::LoadU(Floats(), from)));
  }
#endif
};

struct BF16Codec {
  using Value = std::uint16_t;
  static Value encode(float value) { return simd::f32_to_bf16(value); }
#if KVASIR_VECTOR_ENCODE
  // In integers: Highway 1.0.3 truncates, and AVX512_BF16 flushes subnormals.
  static HWY_INLINE hn::Vec<HalfCodes> encode4(const float* from) {
    const hn::FixedTag<std::uint32_t, 4> du;
    const auto bits = hn::BitCast(du, hn::LoadU(Floats(), from));
    const auto last_kept = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(last_kept, hn::Set(du, 0x7FFF)));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto is_nan = hn::Gt(hn::And(bits, hn::Set(du, 0x7FFFFFFF)), hn::Set(du, 0x7F800000));
    const auto codes = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
    return hn::TruncateTo(HalfCodes(), codes);
  }
#endif
};

#if KVASIR_VECTOR_ENCODE
template <class Codec>
HWY_INLINE CodesV encode8(const float* from) {
  return hn::Combine(Codes(), Codec::encode4(from + 4), Codec::encode4(from));
}

/// One round of the perfect shuffle: rotates the 6 bits of an element's (row, column) by one.
HWY_INLINE void shuffle(const CodesV (&from)[kBlock], CodesV (&to)[kBlock]) {
  for (int i = 0; i < kBlock / 2; ++i) {
    to[2 * i] = hn::InterleaveLower(Codes(), from[i], from[i + kBlock / 2]);
    to[2 * i + 1] = hn::InterleaveUpper(Codes(), from[i], from[i + kBlock / 2]);
  }
}

/// Dims [0, 8) of 8 tokens: row d of the result holds dim d of all tokens. After three rounds row
/// and column have changed places.
template <class Codec>
HWY_INLINE void transpose_block(const float* rows, std::size_t row_stride, std::uint16_t* tile) {
  CodesV a[kBlock], b[kBlock];
  for (std::size_t t = 0; t < kBlock; ++t) a[t] = encode8<Codec>(rows + t * row_stride);
  shuffle(a, b);
  shuffle(b, a);
  shuffle(a, b);
  for (std::size_t d = 0; d < kBlock; ++d) hn::StoreU(b[d], Codes(), tile + d * kStripTokens);
}
#endif

/// Dims [first_dim, head_dim) of `n_tokens` neighbouring tokens; `tile` points at the first one's
/// lane.
template <class Codec>
void scatter_k(const float* rows, std::size_t row_stride, int n_tokens, int first_dim, int head_dim,
               typename Codec::Value* tile) {
  for (int d = first_dim; d < head_dim; ++d) {
    for (int t = 0; t < n_tokens; ++t) {
      tile[d * kStripTokens + t] = Codec::encode(
          rows[static_cast<std::size_t>(t) * row_stride + static_cast<std::size_t>(d)]);
    }
  }
}

/// `n_tokens` tokens of one strip and one head. No lane but theirs is touched.
template <class Codec>
void write_k_strip(const float* rows, std::size_t row_stride, int lane, int n_tokens, int head_dim,
                   typename Codec::Value* tile) {
  while (n_tokens > 0) {
    const bool whole_block = lane % kBlock == 0 && n_tokens >= kBlock;
    const int n = whole_block ? kBlock : std::min(n_tokens, kBlock - lane % kBlock);
    int n_dims_done = 0;
#if KVASIR_VECTOR_ENCODE
    if constexpr (sizeof(typename Codec::Value) == 2) {
      for (; whole_block && n_dims_done + kBlock <= head_dim; n_dims_done += kBlock) {
        transpose_block<Codec>(rows + n_dims_done, row_stride,
                               tile + n_dims_done * kStripTokens + lane);
      }
    }
#endif
    scatter_k<Codec>(rows, row_stride, n, n_dims_done, head_dim, tile + lane);
    rows += static_cast<std::size_t>(n) * row_stride;
    lane += n;
    n_tokens -= n;
  }
}

template <class Codec>
void write_v_row(const float* from, int head_dim, typename Codec::Value* row) {
  int d = 0;
#if KVASIR_VECTOR_ENCODE
  if constexpr (sizeof(typename Codec::Value) == 2) {
    for (; d + kBlock <= head_dim; d += kBlock) {
      hn::StoreU(encode8<Codec>(from + d), Codes(), row + d);
    }
  }
#endif
  for (; d < head_dim; ++d) row[d] = Codec::encode(from[d]);
}

/// K and V of the tokens [pos, pos + n_tokens), which lie in one strip.
template <class CodecK>
void write_k(const PagedKvView& kv, Position pos, int n_tokens, const float* k,
             std::size_t row_stride) {
  for (int head = 0; head < kv.n_kv_heads; ++head) {
    auto* tile =
        reinterpret_cast<typename CodecK::Value*>(kv.k_strip(kv.rows, pos / kStripTokens, head));
    write_k_strip<CodecK>(
        k + static_cast<std::size_t>(head) * static_cast<std::size_t>(kv.head_dim), row_stride,
        pos % kStripTokens, n_tokens, kv.head_dim, tile);
  }
}

template <class CodecV>
void write_v(const PagedKvView& kv, Position pos, int n_tokens, const float* v,
             std::size_t row_stride) {
  for (int head = 0; head < kv.n_kv_heads; ++head) {
    const std::size_t stride = kv.rows.v.row_stride();
    std::uint8_t* row = kv.v_strip(kv.rows, pos / kStripTokens, head) +
                        static_cast<std::size_t>(pos % kStripTokens) * stride;
    const float* from = v + static_cast<std::size_t>(head) * static_cast<std::size_t>(kv.head_dim);
    for (int t = 0; t < n_tokens; ++t, row += stride, from += row_stride) {
      write_v_row<CodecV>(from, kv.head_dim, reinterpret_cast<typename CodecV::Value*>(row));
    }
  }
}

/// The same for codes, which other code writes.
void write_codes(const PagedKvView& kv, bool is_v, Position pos, int n_tokens, const float* rows,
                 std::size_t row_stride) {
  const int strip = pos / kStripTokens;
  for (int head = 0; head < kv.n_kv_heads; ++head) {
    const auto offset = static_cast<std::size_t>(head) * static_cast<std::size_t>(kv.head_dim);
    write_coded_strip(is_v ? kv.rows.v.codec : kv.rows.k.codec, is_v, kv.head_dim, rows + offset,
                      row_stride, pos % kStripTokens, n_tokens,
                      is_v ? kv.v_strip(kv.rows, strip, head) : kv.k_strip(kv.rows, strip, head),
                      is_v ? kv.v_meta(kv.rows, strip, head) : kv.k_meta(kv.rows, strip, head),
                      is_v ? nullptr : kv.key_basis(head));
  }
}

void write_strip(const PagedKvView& kv, Position pos, int n_tokens, const float* k, const float* v,
                 std::size_t row_stride) {
  switch (kv.rows.k.codec) {
    case CodecId::kF32:
      write_k<F32Codec>(kv, pos, n_tokens, k, row_stride);
      break;
    case CodecId::kF16:
      write_k<F16Codec>(kv, pos, n_tokens, k, row_stride);
      break;
    case CodecId::kBF16:
      write_k<BF16Codec>(kv, pos, n_tokens, k, row_stride);
      break;
    default:
      write_codes(kv, false, pos, n_tokens, k, row_stride);
  }
  if (v == nullptr) return;  // K alone
  switch (kv.rows.v.codec) {
    case CodecId::kF32:
      write_v<F32Codec>(kv, pos, n_tokens, v, row_stride);
      break;
    case CodecId::kF16:
      write_v<F16Codec>(kv, pos, n_tokens, v, row_stride);
      break;
    case CodecId::kBF16:
      write_v<BF16Codec>(kv, pos, n_tokens, v, row_stride);
      break;
    default:
      write_codes(kv, true, pos, n_tokens, v, row_stride);
  }
}

/// Strip by strip, so that the 16 source rows stay in the L1 cache for all heads.
void write_rows(const PagedKvView& kv, Position first_pos, int n_tokens, const float* k,
                const float* v, std::size_t row_stride) {
  for (int done = 0; done < n_tokens;) {
    const Position pos = first_pos + done;
    const int n = std::min(n_tokens - done, kStripTokens - pos % kStripTokens);
    const std::size_t offset = static_cast<std::size_t>(done) * row_stride;
    write_strip(kv, pos, n, k + offset, v == nullptr ? v : v + offset, row_stride);
    done += n;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::cache
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::cache {

namespace {

HWY_EXPORT(write_rows);

/// Value `value_idx` at `values`.
float decode(CodecId codec, const std::uint8_t* values, std::size_t value_idx) {
  if (codec == CodecId::kF32) {
    float value = 0;
    std::memcpy(&value, values + value_idx * sizeof(value), sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, values + value_idx * sizeof(bits), sizeof(bits));
  return codec == CodecId::kF16 ? simd::f16_to_f32(bits) : simd::bf16_to_f32(bits);
}

/// From the calibrated basis of K to the one that the model computes in: the matrix of q is the
/// inverse, transposed.
void leave_basis(const float* queries, int head_dim, float* row) {
  if (queries == nullptr) return;
  const std::vector<float> stored(row, row + head_dim);
  for (int i = 0; i < head_dim; ++i, queries += head_dim) {
    row[i] = std::inner_product(stored.begin(), stored.end(), queries, 0.0f);
  }
}

}  // namespace

void write_kv(const PagedKvView& kv, Position first_pos, int n_tokens, const float* k,
              const float* v, std::size_t row_stride) {
  KVASIR_DCHECK(0 <= first_pos && 0 <= n_tokens && n_tokens <= kv.n_tokens - first_pos);
  HWY_DYNAMIC_DISPATCH(write_rows)(kv, first_pos, n_tokens, k, v, row_stride);
}

void write_k(const PagedKvView& kv, Position first_pos, int n_tokens, const float* k,
             std::size_t row_stride) {
  write_kv(kv, first_pos, n_tokens, k, nullptr, row_stride);
}

void read_k(const PagedKvView& kv, Position pos, int head, float* row) {
  KVASIR_DCHECK(0 <= pos && pos < kv.n_tokens && 0 <= head && head < kv.n_kv_heads);
  const std::uint8_t* tile = kv.k_strip(kv.rows, pos / kStripTokens, head);
  const auto lane = static_cast<std::size_t>(pos % kStripTokens);
  if (is_coded(kv.rows.k.codec)) {
    read_coded_row(kv.rows.k.codec, false, kv.head_dim, tile,
                   kv.k_meta(kv.rows, pos / kStripTokens, head), static_cast<int>(lane), row);
    leave_basis(kv.query_basis(head), kv.head_dim, row);
    return;
  }
  for (std::size_t d = 0; d < static_cast<std::size_t>(kv.head_dim); ++d) {
    row[d] = decode(kv.rows.k.codec, tile, d * kStripTokens + lane);
  }
}

void read_v(const PagedKvView& kv, Position pos, int head, float* row) {
  KVASIR_DCHECK(0 <= pos && pos < kv.n_tokens && 0 <= head && head < kv.n_kv_heads);
  const std::uint8_t* strip = kv.v_strip(kv.rows, pos / kStripTokens, head);
  const int lane = pos % kStripTokens;
  if (is_coded(kv.rows.v.codec)) {
    read_coded_row(kv.rows.v.codec, true, kv.head_dim, strip,
                   kv.v_meta(kv.rows, pos / kStripTokens, head), lane, row);
    return;
  }
  const std::uint8_t* from = strip + static_cast<std::size_t>(lane) * kv.rows.v.row_stride();
  for (std::size_t d = 0; d < static_cast<std::size_t>(kv.head_dim); ++d) {
    row[d] = decode(kv.rows.v.codec, from, d);
  }
}

}  // namespace kvasir::cache
#endif  // HWY_ONCE
