// Activations times weights: y[t][r] = sum_c x[t][c] * w[r][c].
//
// Batch-invariant: one row of y is accumulated in the same order alone (GEMV) or in a batch (GEMM),
// whatever the thread count, so results are bit-identical. Integer formats in integer dots with
// activations quantized to int8 per 32 columns; float formats and ActivationMode::kFloat32 in FMA.
// Per lane (weight row) and column group g, in order:
//   acc = fma(minimum[g], sa[g], acc);  acc = fma(float(dot[g]) * da[g], scale[g], acc)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "model/matrix.h"

namespace kvasir::model {

/// kFloat32 is the reference mode of every evaluation (`--act f32`).
enum class ActivationMode : std::uint8_t { kInt8, kFloat32 };

/// 32 columns of one token in int8: one cache line, all that an integer dot needs to know of them.
struct alignas(64) ActivationGroup {
  std::int8_t codes[32];        ///< q = round(x / scale), -127..127
  float scale;                  ///< da = max|x| / 127
  float sum;                    ///< da * sum(q)
  float half_sums[2];           ///< the same of each 16 columns
  std::int32_t minus_code_sum;  ///< -sum(q)
  std::int32_t minus_half_code_sums[2];
  std::int32_t unused;
};
static_assert(sizeof(ActivationGroup) == 64);

/// What kernels read of activations.
struct ActivationRows {
  const float* x = nullptr;
  std::size_t row_stride = 0;       ///< floats
  ActivationGroup* int8 = nullptr;  ///< [n_tokens][n_cols / 32]; null: none
  int n_tokens = 0, n_cols = 0;

  const float* row(int token) const { return x + static_cast<std::size_t>(token) * row_stride; }
  /// The int8 form. Shape: [n_cols / 32]. Requires: it is there.
  const ActivationGroup* groups(int token) const { return int8 + group_idx(token); }
  std::size_t group_idx(int token) const {
    return static_cast<std::size_t>(token) * static_cast<std::size_t>(n_cols / 32);
  }
};

/// Rows of activations with room for their int8 form; reused from step to step, grows when needed.
class Activations {
 public:
  /// Takes `n_tokens` rows of `n_cols` floats (row t at `x + t * row_stride`), and room for their
  /// int8 form in kInt8. `x` must stay valid until the matmuls over it are done. Where n_cols is
  /// not a multiple of 32, only matrices of float formats can be multiplied.
  void assign(ActivationMode mode, const float* x, int n_tokens, int n_cols,
              std::size_t row_stride);
  /// Fills in the int8 form of one row, by whoever has just computed it: q = round(x / da),
  /// da = max|x| / 127 per 32 columns. Every row's turn must come before a matmul.
  void quantize(int token);
  /// `assign`, then `quantize` for every row; forks over `pool` when it pays.
  void prepare(ThreadPool& pool, ActivationMode mode, const float* x, int n_tokens, int n_cols,
               std::size_t row_stride);

  ActivationMode mode() const { return mode_; }
  const ActivationRows& rows() const { return rows_; }
  int n_tokens() const { return rows_.n_tokens; }
  int n_cols() const { return rows_.n_cols; }
  bool has_groups() const { return rows_.int8 != nullptr; }
  std::size_t scratch_bytes() const { return buffer_.size(); }
  /// Of the int8 form that `prepare` will keep.
  static std::size_t bytes_for(ActivationMode mode, int n_tokens, int n_cols);

 private:
  ActivationMode mode_ = ActivationMode::kFloat32;
  ActivationRows rows_;
  AlignedBuffer buffer_;
};

/// y[t][r] for all rows of `w`. Shapes: y row t at `y + t * y_stride` floats, [w.n_rows()].
/// Requires: x.n_cols() == w.n_cols(). Forks over `pool`.
void matmul(ThreadPool& pool, const Matrix& w, const Activations& x, float* y,
            std::size_t y_stride);

/// The double-precision oracle over dequantized weights and the activations the mode would use.
void matmul_reference(const Matrix& w, const Activations& x, float* y, std::size_t y_stride);

}  // namespace kvasir::model
