// The seam between matmul's task splitting and its kernels, which are compiled per SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/matmul.h"
#include "model/matrix.h"

namespace kvasir::model {

/// One matmul, seen from a kernel. Small, and a value: each thread has its own.
struct MatmulOperands {
  const Matrix& weights;
  ActivationRows x;
  float* y;
  std::size_t y_stride;  ///< floats
};

/// Row blocks and tokens of one task.
struct MatmulRange {
  int first_block = 0, n_blocks = 0;
  int first_token = 0, n_tokens = 0;
};

/// Tokens a float task may hold: the kernel keeps their sums on its stack.
inline constexpr int kFloatTaskTokens = 192;

/// Integer weights times int8 activations. Requires: x.int8; codes are kW4 (kW8).
void matmul_w4(const MatmulOperands& operands, const MatmulRange& range);
void matmul_w8(const MatmulOperands& operands, const MatmulRange& range);
/// Any weights times float activations. Requires: range.n_tokens <= kFloatTaskTokens.
void matmul_float(const MatmulOperands& operands, const MatmulRange& range);

/// The int8 form of one token. Shapes: x [n_cols], groups [n_cols / 32].
void quantize_activations(const float* x, int n_cols, ActivationGroup* groups);

}  // namespace kvasir::model
