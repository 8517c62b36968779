// One forward pass: rows of all items side by side through the layers, step by step.
//
// Every step is row-wise or batch-invariant, so a row's bits do not depend on its neighbours, on
// the chunking of its prompt or on the number of threads (docs/numerics.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "model/matmul.h"
#include "model/model.h"
#include "model/weights.h"

namespace kvasir::model {

/// A float matrix that grows to the largest batch and is then kept.
class RowBuffer {
 public:
  static std::size_t bytes_for(int n_rows, int n_cols) {
    return static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(n_cols) * sizeof(float);
  }
  /// Room for `n_rows` rows of `n_cols`; contents are undefined.
  void shape(int n_rows, int n_cols);
  float* row(int row_idx) { return data() + static_cast<std::size_t>(row_idx) * stride(); }
  std::size_t stride() const { return static_cast<std::size_t>(n_cols_); }
  int n_cols() const { return n_cols_; }
  std::size_t bytes() const { return buffer_.size(); }

 private:
  float* data() { return reinterpret_cast<float*>(buffer_.data()); }
  int n_cols_ = 0;
  AlignedBuffer buffer_;
};

/// What a pass keeps between steps and from one pass to the next.
struct Workspace {
  RowBuffer x;                     ///< [rows, n_embd] the residual stream
  RowBuffer h;                     ///< [rows, n_embd] normalized input, then output, of a block
  RowBuffer qkv;                   ///< [rows, (n_heads + 2 n_kv_heads) * head_dim]
  RowBuffer heads;                 ///< [rows, n_heads * head_dim] attention output
  RowBuffer gate_up;               ///< [rows, 2 n_ff]
  RowBuffer cosines[2], sines[2];  ///< [rows, n_rotated / 2] of each rope table
  Activations activations;
  attention::Scratch attention;
  std::vector<attention::QueryRows> queries;

  void shape(const ModelConfig& config, int n_rows);
  std::uint64_t bytes() const;
  /// bytes() after a pass over `items`, which grows what is too small: known before it is done.
  std::uint64_t bytes_after(const ModelConfig& config, ActivationMode mode,
                            std::span<const ForwardItem> items, int n_threads) const;

 private:
  /// Calls `visit(buffer, n_cols)` for every buffer that has a row per token.
  template <class Self, class Visit>
  static void for_row_buffers(Self& self, const ModelConfig& config, Visit visit);
};

/// Lives for one call. Requires: checked items (Model::forward).
class ForwardPass {
 public:
  ForwardPass(const ModelConfig& config, const Weights& weights, ActivationMode mode,
              std::span<const ForwardItem> items, Workspace& workspace, ThreadPool& pool,
              const Observers& observers);

  /// Shapes: logits [sum of n_logits][vocab_size].
  void run(float* logits);
  /// Once it has run: tokens of an item whose K or V in some layer is not finite.
  int n_poisoned(std::size_t item_idx) const;

 private:
  void embed();
  void compute_rope_angles();
  void attention_block(int layer_idx);
  void finish_qkv(int layer_idx, int begin_row, int end_row);
  void write_kv(int layer_idx, int begin_row, int end_row);
  void seal_tiles(int layer_idx);
  void attend(int layer_idx);
  void keep_wanted_rows();
  void feed_forward_block(int layer_idx);
  void project_logits(float* logits);

  /// The rows that a block reads: `h` where the architecture normalizes first, else `x`.
  RowBuffer& block_input();
  /// Makes `n_inputs` columns of `input` the next matmul's activations; whoever computes a row of
  /// them then quantizes it while it is in the cache.
  void expect_inputs(RowBuffer& input, int n_inputs);
  /// output = activations times the projection's weights. Requires: every row is quantized.
  void project(const Projection& projection, RowBuffer& output);
  /// x += post_norm(h + bias); then h = next_norm(x), and the next block's input is quantized.
  /// Empty spans leave their step out.
  void add_residual(std::span<const float> bias, std::span<const float> post_norm,
                    std::span<const float> next_norm);

  /// body(begin, end) over the rows, in chunks of some thousand floats and of whole multiples of
  /// `chunk_rows`, on all threads where that pays.
  template <class Body>
  void for_rows(int floats_per_row, Body&& body, int chunk_rows = 1);

  const ModelConfig& config_;
  const Weights& weights_;
  const ActivationMode mode_;
  const std::span<const ForwardItem> items_;
  Workspace& w_;
  ThreadPool& pool_;
  const Observers& observers_;
  std::vector<int> first_rows_;         ///< [items + 1] of `items_`
  std::vector<std::uint8_t> poisoned_;  ///< by row: see n_poisoned
  int n_rows_ = 0;                      ///< shrinks to the wanted rows in the last layer
};

}  // namespace kvasir::model
