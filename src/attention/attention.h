// Attention over a paged, encoded history.
//
// Every query row is computed by the same arithmetic in the same order wherever it stands: alone or
// in a batch, in a chunk of any size, on any number of threads, over any page size or head order.
// The order is fixed by token positions: scores of 16 tokens (a strip) in 16 lanes, accumulated
// over head_dim in order with FMA; a segment of 512 positions is reduced on its own (maximum,
// exponents, sum in 16 lanes, V rows in token order); segments are merged in ascending order. Lanes
// never mix but for one fixed tree, so SIMD targets with FMA agree bit for bit as well
// (docs/numerics.md). K and V in bf16 are summed in pairs, the odd term first (ADR 9).
#pragma once

#include <cstddef>
#include <span>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "base/types.h"
#include "cache/page/paged_kv_view.h"

namespace kvasir::attention {

inline constexpr int kSegmentTokens = 512;
inline constexpr int kMaxHeadDim = 512;

/// Rows of one sequence in a batch. Row i stands at position first_pos + i and sees positions
/// (pos - window, pos], or [0, pos] without a window.
struct QueryRows {
  cache::PagedKvView kv;  ///< one layer; holds at least first_pos + n_rows tokens
  Position first_pos = 0;
  int first_row = 0;  ///< of q and out
  int n_rows = 0;
};

struct AttentionParams {
  int n_heads = 0;  ///< query heads; a multiple of kv heads; head h reads kv head h / (H/G)
  int head_dim = 0;
  float scale = 1.0f;              ///< applied to q . k
  float softcap = 0.0f;            ///< 0: none; else score = softcap * tanh(score / softcap)
  int window = 0;                  ///< 0: none
  std::size_t q_row_stride = 0;    ///< floats between rows of q
  std::size_t out_row_stride = 0;  ///< floats between rows of out
};

/// Buffers for the kernels' partial results; grows when a call needs more and is then kept.
class Scratch {
 public:
  /// At least `bytes`, 64-byte aligned; contents are undefined.
  std::uint8_t* ensure(std::size_t bytes);
  std::size_t size() const { return buffer_.size(); }

 private:
  AlignedBuffer buffer_;
};

/// out = softmax(scale * q K^T) V for every row and head.
///
/// Shapes    q, out: row r at `r * row_stride`, [n_heads][head_dim] f32
/// Requires  8 <= head_dim <= kMaxHeadDim, a multiple of 8; out does not alias q
/// Threads   called by the engine thread; forks over `pool`
/// Source    online softmax: Milakov & Gimelshein 2018, arXiv:1805.02867
void attend(ThreadPool& pool, const AttentionParams& params, std::span<const QueryRows> rows,
            const float* q, float* out, Scratch& scratch);

/// Bytes that such a call asks of its scratch: reserved before they are used.
std::size_t scratch_bytes(const AttentionParams& params, std::span<const QueryRows> rows,
                          int n_threads);

/// The scalar double-precision oracle of `attend`, single-threaded. It rounds q as `attend` does,
/// to bf16 for K in bf16 and to 8 bits a row for K in codes, which is part of what that computes;
/// the probabilities it never rounds.
void attend_reference(const AttentionParams& params, std::span<const QueryRows> rows,
                      const float* q, float* out);

}  // namespace kvasir::attention
