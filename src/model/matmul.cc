#include "model/matmul.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "model/matmul_kernels.h"
#include "model/packed_layout.h"

namespace kvasir::model {
namespace {

// Activations of a task's tokens stay close while row blocks pass by. Measured at 576 columns on
// Zen 3: 32 to 64 KiB beat 96 to 256 by 1.1x; weights, read again for every task, do not show even
// so.
constexpr std::size_t kTaskActivationBytes = 48 * 1024;
// Below this many weight bytes times tokens a fork costs more than it saves.
constexpr std::size_t kSerialBytes = 16 * 1024;
// Floats that a task quantizes; fewer are faster alone.
constexpr int kPrepareFloats = 2048;
// Up to this many tokens the weights' stream decides: each thread has one stretch of it, in some
// pieces, so that others can help a thread that is held up.
constexpr int kStreamTokens = 2;
constexpr int kStreamPieces = 12;
// With more tokens, tasks per thread wanted (measured: 8 leave 8 % of a prefill's time to waits).
constexpr int kTasksPerThread = 24;

enum class Kernel { kW4, kW8, kFloat };

Kernel kernel_for(const Matrix& w, const Activations& x) {
  if (!is_integer(w.format()) || x.mode() == ActivationMode::kFloat32) return Kernel::kFloat;
  return w.format().codes == PackedCodes::kW4 ? Kernel::kW4 : Kernel::kW8;
}

void run_kernel(Kernel kernel, const MatmulOperands& operands, const MatmulRange& range) {
  switch (kernel) {
    case Kernel::kW4:
      return matmul_w4(operands, range);
    case Kernel::kW8:
      return matmul_w8(operands, range);
    case Kernel::kFloat:
      return matmul_float(operands, range);
  }
}

// Tokens of one task; a multiple of every kernel's tile (4, 6, 8), so that tiles are full.
int tokens_per_task(Kernel kernel, int n_cols) {
  if (kernel == Kernel::kFloat) return kFloatTaskTokens;
  const std::size_t token_bytes =
      static_cast<std::size_t>(n_cols / kUnitCols) * sizeof(ActivationGroup);
  const int tokens = static_cast<int>(kTaskActivationBytes / std::max<std::size_t>(token_bytes, 1));
  return std::clamp(tokens / 24 * 24, 24, 480);
}

void matmul_stream(ThreadPool& pool, Kernel kernel, const MatmulOperands& operands) {
  const std::int64_t n_blocks = operands.weights.n_blocks();
  const std::int64_t n_tasks = std::min<std::int64_t>(n_blocks, kStreamPieces * pool.n_threads());
  pool.for_tasks(static_cast<int>(n_tasks), [=](int task_idx, int) {
    const std::int64_t begin = n_blocks * task_idx / n_tasks;
    const std::int64_t end = n_blocks * (task_idx + 1) / n_tasks;
    run_kernel(kernel, operands,
               {static_cast<int>(begin), static_cast<int>(end - begin), 0, operands.x.n_tokens});
  });
}

// Tasks of a few row blocks times some tokens, taken in turn; tokens outermost, so that the
// activations in a thread's L2 serve many tasks.
void matmul_tasks(ThreadPool& pool, Kernel kernel, const MatmulOperands& operands) {
  const int n_tokens = operands.x.n_tokens;
  const int n_blocks = operands.weights.n_blocks();
  const int task_tokens = tokens_per_task(kernel, operands.weights.n_cols());
  const int n_token_tasks = (n_tokens + task_tokens - 1) / task_tokens;
  // Of equal size, and so many that the last ones leave no thread waiting for long.
  const int most_blocks =
      std::clamp(n_blocks * n_token_tasks / (kTasksPerThread * pool.n_threads()), 2, 32);
  const int n_block_tasks = (n_blocks + most_blocks - 1) / most_blocks;
  const int task_blocks = (n_blocks + n_block_tasks - 1) / n_block_tasks;
  pool.parallel_for(std::int64_t{n_token_tasks} * n_block_tasks, 1,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t i = begin; i < end; ++i) {
                        const int token = static_cast<int>(i / n_block_tasks) * task_tokens;
                        const int block = static_cast<int>(i % n_block_tasks) * task_blocks;
                        run_kernel(kernel, operands,
                                   {block, std::min(task_blocks, n_blocks - block), token,
                                    std::min(task_tokens, n_tokens - token)});
                      }
                    });
}

}  // namespace

void Activations::assign(ActivationMode mode, const float* x, int n_tokens, int n_cols,
                         std::size_t row_stride) {
  mode_ = mode;
  rows_ = {.x = x, .row_stride = row_stride, .n_tokens = n_tokens, .n_cols = n_cols};
  const std::size_t bytes = bytes_for(mode, n_tokens, n_cols);
  if (bytes > buffer_.size()) {
    buffer_ = AlignedBuffer();  // give the old one back before asking for more
    buffer_ = AlignedBuffer(bytes);
  }
  if (mode == ActivationMode::kInt8 && n_cols % kUnitCols == 0) {
    rows_.int8 = reinterpret_cast<ActivationGroup*>(buffer_.data());
  }
}

void Activations::quantize(int token) {
  if (!has_groups()) return;
  quantize_activations(rows_.row(token), n_cols(), rows_.int8 + rows_.group_idx(token));
}

void Activations::prepare(ThreadPool& pool, ActivationMode mode, const float* x, int n_tokens,
                          int n_cols, std::size_t row_stride) {
  assign(mode, x, n_tokens, n_cols, row_stride);
  if (!has_groups()) return;
  const int chunk = std::max(1, kPrepareFloats / std::max(1, n_cols));
  pool.parallel_for(n_tokens, chunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) quantize(static_cast<int>(t));
  });
}

std::size_t Activations::bytes_for(ActivationMode mode, int n_tokens, int n_cols) {
  if (mode != ActivationMode::kInt8 || n_cols % kUnitCols != 0) return 0;
  return static_cast<std::size_t>(n_tokens) * static_cast<std::size_t>(n_cols / kUnitCols) *
         sizeof(ActivationGroup);
}

void matmul(ThreadPool& pool, const Matrix& w, const Activations& x, float* y,
            std::size_t y_stride) {
  KVASIR_CHECK(x.n_cols() == w.n_cols());
  if (x.n_tokens() == 0 || w.n_rows() == 0) return;
  const Kernel kernel = kernel_for(w, x);
  KVASIR_CHECK(kernel == Kernel::kFloat || x.has_groups());
  const MatmulOperands operands{w, x.rows(), y, y_stride};
  const std::size_t work = w.packed_bytes() * static_cast<std::size_t>(x.n_tokens());
  const bool serial = pool.n_threads() == 1 || work < kSerialBytes;
  if (x.n_tokens() <= kStreamTokens) {
    if (serial) return run_kernel(kernel, operands, {0, w.n_blocks(), 0, x.n_tokens()});
    return matmul_stream(pool, kernel, operands);
  }
  matmul_tasks(pool, kernel, operands);
}

void matmul_reference(const Matrix& w, const Activations& x, float* y, std::size_t y_stride) {
  KVASIR_CHECK(x.n_cols() == w.n_cols());
  const bool quantized = kernel_for(w, x) != Kernel::kFloat;
  std::vector<float> weights(static_cast<std::size_t>(w.n_cols()));
  for (int row = 0; row < w.n_rows(); ++row) {
    w.dequantize_row(row, weights.data());
    for (int token = 0; token < x.n_tokens(); ++token) {
      double sum = 0;
      for (int col = 0; col < w.n_cols(); ++col) {
        double value = x.rows().row(token)[col];
        if (quantized) {
          const ActivationGroup& group = x.rows().groups(token)[col / kUnitCols];
          value = static_cast<double>(group.scale) * group.codes[col % kUnitCols];
        }
        sum += value * static_cast<double>(weights[static_cast<std::size_t>(col)]);
      }
      y[static_cast<std::size_t>(token) * y_stride + static_cast<std::size_t>(row)] =
          static_cast<float>(sum);
    }
  }
}

}  // namespace kvasir::model
