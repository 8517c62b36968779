// The weights of a model, checked against its config and packed: what a forward pass reads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "cache/page/byte_budget.h"
#include "gguf/file.h"
#include "model/config.h"
#include "model/matrix.h"

namespace kvasir::model {

/// Matrices that read the same input and write side by side into one row: q, k and v; gate and up.
/// One matrix where the packed formats agree (one pass over the weights), else a few.
struct Projection {
  struct Part {
    Matrix matrix;
    int first_col = 0;  ///< of the output row
  };
  std::vector<Part> parts;
  std::vector<float> bias;  ///< [n_outputs]; empty: none
  int n_inputs = 0, n_outputs = 0;

  /// Multiply-adds for one row.
  double multiply_adds() const { return static_cast<double>(n_inputs) * n_outputs; }
};

/// Norm weights are empty where the architecture has no such norm.
struct Layer {
  std::vector<float> attention_norm, attention_post_norm;  ///< [n_embd]
  std::vector<float> ffn_norm, ffn_post_norm;              ///< [n_embd]
  std::vector<float> q_norm, k_norm;                       ///< [head_dim], or of all heads
  Projection qkv;                                          ///< n_embd -> q heads, k heads, v heads
  Projection attention_out;
  Projection gate_up;  ///< n_embd -> gate [n_ff], up [n_ff]
  Projection ffn_down;
};

struct Weights {
  Matrix token_embd;  ///< [vocab_size, n_embd]; also the output where that is tied
  Projection output;  ///< no parts: tied
  std::vector<float> output_norm;
  std::vector<Layer> layers;

  const Matrix& output_matrix() const {
    return output.parts.empty() ? token_embd : output.parts[0].matrix;
  }
};

/// Bytes reserved for weights, given back when this goes. Move-only.
class WeightReservation {
 public:
  WeightReservation() = default;
  static Result<WeightReservation> reserve(cache::ByteBudget& budget, std::uint64_t bytes);
  WeightReservation(WeightReservation&& other) noexcept { *this = std::move(other); }
  WeightReservation& operator=(WeightReservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~WeightReservation();
  std::uint64_t bytes() const { return bytes_; }

 private:
  cache::ByteBudget* budget_ = nullptr;
  std::uint64_t bytes_ = 0;
};

struct LoadedWeights {
  WeightReservation reservation;
  Weights weights;
};

/// Checks every tensor's presence, shape and type, reserves the packed bytes, then packs. A tensor
/// that this architecture does not know is an error: the model would compute something else.
/// Errors: kInvalidModel, kUnsupported, kExhausted.
Result<LoadedWeights> load_weights(const gguf::File& file, const ModelConfig& config,
                                   cache::ByteBudget& budget, ThreadPool& pool,
                                   const std::function<void(double)>& progress);

}  // namespace kvasir::model
