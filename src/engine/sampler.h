// Chooses the next token from logits.
//
// Order (llama.cpp's names): logit bias, repeat / presence / frequency penalties, top-k, top-p,
// min-p, temperature, draw. Temperature 0 takes the largest logit after bias and penalties.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace kvasir::engine {

struct SamplingParams {
  float temperature = 0.8f;     ///< >= 0; 0: greedy
  int top_k = 40;               ///< 0: off
  float top_p = 0.95f;          ///< (0, 1]; 1: off
  float min_p = 0.05f;          ///< [0, 1]; 0: off
  float repeat_penalty = 1.0f;  ///< > 0; 1: off. Divides positive logits, multiplies negative ones
  float presence_penalty = 0.0f;   ///< -2..2; subtracted once from tokens already present
  float frequency_penalty = 0.0f;  ///< -2..2; subtracted once per occurrence
  int penalty_last_n = 64;         ///< tokens the penalties look back; -1: all
  std::vector<std::pair<TokenId, float>> logit_bias;  ///< added; -infinity forbids
  std::uint64_t seed = 0;

  /// Errors: kInvalidArgument naming the parameter, what it is and what it may be.
  Status validate(int vocab_size) const;
};

/// Same seed, logits and history: same token, on any machine.
class Sampler {
 public:
  /// Requires: params.validate() holds.
  explicit Sampler(SamplingParams params);
  /// `history` is the whole sequence so far. None: every token is ruled out (biased to -inf, NaN).
  /// Requires: logits not empty.
  std::optional<TokenId> sample(std::span<const float> logits, std::span<const TokenId> history);

 private:
  struct Candidate {
    TokenId token;
    float logit;
  };
  void apply_bias_and_penalties(std::span<const TokenId> history);
  TokenId draw();

  SamplingParams params_;
  std::mt19937_64 random_;
  std::vector<float> logits_;  // working copy, reused
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace kvasir::engine
