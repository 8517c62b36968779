// Builds rope tables: base frequencies and the ways models stretch them to longer contexts.
#pragma once

#include <vector>

#include "base/result.h"
#include "model/hyperparameters.h"
#include "model/ops.h"

namespace kvasir::model {

enum class RopeScaling : std::uint8_t { kNone, kLinear, kYarn, kLlama3, kLongRope };

/// What a file says about rope, before it becomes a table.
struct RopeParams {
  RopePairing pairing = RopePairing::kNeighbours;
  int n_rotated = 0;
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;              ///< positions are divided by it (linear, the low end of YaRN)
  int n_ctx_original = 0;           ///< context before stretching, tokens
  double attention_factor = 1.0;    ///< multiplies cos and sin
  double yarn_extrapolation = 1.0;  ///< share of YaRN's correction: ggml's ext_factor
  double beta_fast = 32.0, beta_slow = 1.0;          ///< YaRN, rotations over the original context
  double low_frequency = 1.0, high_frequency = 4.0;  ///< Llama 3.1's wavelength bounds
  /// Each frequency is divided by its divisor (rope_freqs, LongRoPE factors); empty: none.
  std::vector<float> divisors;
};

/// Reads "<arch>.rope.*" and the tensors rope_freqs.weight, rope_factors_{long,short}.weight.
/// `n_ctx` (tokens) chooses between LongRoPE's two lists, as llama.cpp does.
/// Errors: kUnsupported naming an unknown scaling type; kInvalidModel.
Result<RopeParams> read_rope_params(const Hyperparameters& hparams, RopePairing pairing,
                                    int head_dim, int n_ctx_train, int n_ctx);

/// Sources: RoPE arXiv:2104.09864; linear arXiv:2306.15595; YaRN arXiv:2309.00071 with ggml's
/// rounding of the ramp's ends; Llama 3.1 model code (rope_scaling "llama3"); LongRoPE
/// arXiv:2402.13753.
RopeTable make_rope_table(const RopeParams& params);

}  // namespace kvasir::model
