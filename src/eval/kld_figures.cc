#include "eval/kld_figures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kvasir::eval {

namespace {

constexpr double kNormal95 = 1.959964;

/// Mean and standard errors of values that come chunk by chunk.
struct PairedMean {
  double mean = 0, token_error = 0, block_error = 0;
  std::int64_t n_blocks = 0;
};

double square(double x) { return x * x; }

/// `values(chunk)` are a chunk's, in the order of its tokens.
template <class Values>
PairedMean paired_mean(std::span<const KldChunk* const> chunks, Values values) {
  PairedMean out;
  double n = 0, sum = 0;
  for (const KldChunk* chunk : chunks) {
    for (const float value : values(*chunk)) sum += static_cast<double>(value);
    n += static_cast<double>(chunk->n_scored);
  }
  out.mean = sum / n;
  double tokens = 0, blocks = 0;
  for (const KldChunk* chunk : chunks) {
    std::span<const float> rest(values(*chunk));
    while (!rest.empty()) {
      const auto block = rest.first(std::min<std::size_t>(kBlockTokens, rest.size()));
      double deviation = 0;
      for (const float value : block) {
        const double one = static_cast<double>(value) - out.mean;
        deviation += one;
        tokens += square(one);
      }
      blocks += square(deviation);
      ++out.n_blocks;
      rest = rest.subspan(block.size());
    }
  }
  const auto n_blocks = static_cast<double>(out.n_blocks);
  out.token_error = n > 1 ? std::sqrt(tokens / (n - 1) / n) : 0;
  out.block_error = n_blocks > 1 ? std::sqrt(blocks * n_blocks / (n_blocks - 1)) / n
                                 : std::numeric_limits<double>::quiet_NaN();
  return out;
}

void add_quantiles(std::vector<float> kld, KldFigures& out) {
  std::sort(kld.begin(), kld.end());
  const auto at = [&](double share) {
    const auto last = static_cast<double>(kld.size() - 1);
    return static_cast<double>(kld[static_cast<std::size_t>(std::lround(share * last))]);
  };
  out.kld_median = at(0.5);
  out.kld_99 = at(0.99);
  out.kld_999 = at(0.999);
  out.kld_max = at(1);
}

}  // namespace

KldFigures figures_of(std::span<const KldChunk* const> chunks, std::size_t candidate_idx) {
  KVASIR_CHECK(!chunks.empty());
  KldFigures out;
  double base_nll = 0, squared_delta_p = 0;
  std::int64_t n_same_top = 0;
  std::vector<float> kld;
  for (const KldChunk* chunk : chunks) {
    const CandidateChunk& candidate = chunk->candidates[candidate_idx];
    out.n_scored += chunk->n_scored;
    base_nll += chunk->base_nll;
    squared_delta_p += candidate.squared_delta_p;
    n_same_top += candidate.n_same_top;
    kld.insert(kld.end(), candidate.kld.begin(), candidate.kld.end());
    out.bytes = candidate.bytes;  // chunks are of one length
  }
  KVASIR_CHECK(out.n_scored > 0);
  const auto n = static_cast<double>(out.n_scored);
  const auto part = [&](auto member) {
    return paired_mean(chunks, [=](const KldChunk& chunk) -> const std::vector<float>& {
      return chunk.candidates[candidate_idx].*member;
    });
  };
  const PairedMean ratio = part(&CandidateChunk::log_ratio);
  out.base_perplexity = std::exp(base_nll / n);
  out.excess = std::expm1(ratio.mean);
  out.token_error = std::exp(ratio.mean) * ratio.token_error;
  out.block_error = std::exp(ratio.mean) * ratio.block_error;
  out.n_blocks = ratio.n_blocks;
  const double error = std::fmax(ratio.token_error, ratio.block_error);  // NaN is passed over
  out.excess_low = std::expm1(ratio.mean - kNormal95 * error);
  out.excess_high = std::expm1(ratio.mean + kNormal95 * error);
  const PairedMean divergence = part(&CandidateChunk::kld);
  out.kld_mean = divergence.mean;
  out.kld_error = divergence.token_error;
  add_quantiles(std::move(kld), out);
  out.same_top = static_cast<double>(n_same_top) / n;
  out.delta_p_rms = std::sqrt(squared_delta_p / n);
  return out;
}

}  // namespace kvasir::eval
