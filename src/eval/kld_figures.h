// What a comparison of KV types has measured, token by token, and the figures made of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/kv_plan.h"

namespace kvasir::eval {

/// What K and V are stored as, by the name that a report shows.
struct KvFormat {
  std::string name;
  engine::KvChoice choice;
  std::string resolved{};  ///< our name of it, where `name` has llama.cpp's; else empty
};

/// One candidate in one chunk; arrays are by scored token.
struct CandidateChunk {
  std::vector<float> log_ratio;  ///< nats: ln of the true token's probability, base - candidate
  std::vector<float> kld;        ///< nats, base -> candidate
  double squared_delta_p = 0;    ///< sum over tokens, of the true token's probability
  std::int64_t n_same_top = 0;   ///< tokens with the same likeliest next one
  std::uint64_t bytes = 0;       ///< of the chunk's K and V: frames and page tables
};

struct KldChunk {
  int text_idx = 0, chunk_idx = 0;
  std::int64_t n_scored = 0;
  double base_nll = 0;  ///< nats, sum
  std::vector<CandidateChunk> candidates;
};

/// Of one candidate over some chunks. "Excess" is its perplexity over the base's, minus 1.
struct KldFigures {
  std::int64_t n_scored = 0;
  double base_perplexity = 0;
  double excess = 0;
  double token_error = 0;  ///< standard error of `excess`, tokens taken as independent
  /// The same with blocks of 512 neighbouring tokens as independent; NaN where there is one only.
  double block_error = 0;
  std::int64_t n_blocks = 0;
  double excess_low = 0, excess_high = 0;  ///< 95 %, by the larger one of the two errors
  double kld_mean = 0, kld_median = 0, kld_99 = 0, kld_999 = 0, kld_max = 0;
  double kld_error = 0;    ///< standard error of kld_mean, tokens taken as independent
  double same_top = 0;     ///< share of tokens, 0..1
  double delta_p_rms = 0;  ///< of the true token's probability, 0..1
  std::uint64_t bytes = 0;
};

/// Scored tokens of a block; a chunk's last block may be shorter.
inline constexpr int kBlockTokens = 512;

/// Requires: at least one chunk, each with a scored token and that candidate.
///
/// The log of the perplexities' ratio is the mean of `log_ratio`; both errors are those of that
/// mean, times the ratio. That of blocks is the ratio estimator's over clusters of unequal size.
KldFigures figures_of(std::span<const KldChunk* const> chunks, std::size_t candidate_idx);

}  // namespace kvasir::eval
