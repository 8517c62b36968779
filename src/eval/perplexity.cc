#include "eval/perplexity.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "eval/chunks.h"

namespace kvasir::eval {
namespace {

/// -log softmax(logits)[target]: float exponents, double sum, as llama.cpp's.
double negative_log_likelihood(std::span<const float> logits, TokenId target) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - maximum));
  return std::log(sum) + static_cast<double>(maximum) -
         static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

}  // namespace

Result<PerplexityReport> perplexity(engine::Engine& engine, std::string_view text,
                                    const PerplexityOptions& options,
                                    const std::function<void(int, int, double)>& progress,
                                    const std::atomic<bool>* stop) {
  KVASIR_RETURN_IF_ERROR(check_chunk_length(engine, options.n_ctx, 4));
  KVASIR_ASSIGN_OR_RETURN(
      const ChunkedText chunks,
      ChunkedText::cut(engine, text, options.n_ctx, options.n_chunks, "perplexity"));
  const int n_chunks = chunks.n_chunks();

  PerplexityReport report;
  report.n_tokens_text = static_cast<int>(chunks.ids().size());
  const SteadyClock clock;
  const double start = clock.now_seconds();
  const auto vocab_size = static_cast<std::size_t>(engine.model().config().vocab_size);
  const int first_scored = options.n_ctx / 2;
  const int n_scored = options.n_ctx - 1 - first_scored;
  double sum = 0.0, sum_of_squares = 0.0;
  std::vector<double> nll(static_cast<std::size_t>(n_scored));
  for (int chunk_idx = 0; chunk_idx < n_chunks; ++chunk_idx) {
    const auto chunk = chunks.chunk(chunk_idx);
    cache::Sequence sequence = engine.cache().open();
    const Status status = run_in_pieces(
        engine, {&sequence, 1}, chunks.input(chunk_idx), first_scored, stop,
        [&](std::size_t, int first, int n_rows, const std::vector<float>& logits) {
          engine.pool().parallel_for(n_rows, 4, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
              const auto pos = static_cast<std::size_t>(first + row);
              const std::span<const float> row_logits(
                  logits.data() + static_cast<std::size_t>(row) * vocab_size, vocab_size);
              nll[pos - static_cast<std::size_t>(first_scored)] =
                  negative_log_likelihood(row_logits, chunk[pos + 1]);
            }
          });
        });
    const bool is_stopped = !status && status.error().code == ErrorCode::kCancelled;
    if (is_stopped && report.n_scored > 0) break;
    if (!status) return status.error();
    double chunk_sum = 0.0;
    for (const double value : nll) {
      chunk_sum += value;
      sum_of_squares += value * value;
    }
    sum += chunk_sum;
    report.chunk_nll.push_back(chunk_sum / n_scored);
    report.n_scored += n_scored;
    if (progress) {
      progress(chunk_idx + 1, n_chunks, std::exp(sum / static_cast<double>(report.n_scored)));
    }
  }
  const auto n = static_cast<double>(report.n_scored);
  report.n_chunks = static_cast<int>(report.chunk_nll.size());
  report.nll_mean = sum / n;
  report.perplexity = std::exp(report.nll_mean);
  const double variance = std::max(0.0, sum_of_squares / n - report.nll_mean * report.nll_mean);
  report.standard_error = n > 1 ? std::sqrt(variance / (n - 1)) * report.perplexity : 0.0;
  report.seconds = clock.now_seconds() - start;
  return report;
}

Result<std::vector<std::vector<float>>> logits_at(engine::Engine& engine,
                                                  std::span<const TokenId> ids,
                                                  std::span<const int> positions,
                                                  const std::atomic<bool>* stop) {
  if (ids.empty()) return Error{ErrorCode::kInvalidArgument, "--ids: got none, want at least 1"};
  for (const int position : positions) {
    if (position < 0 || position >= static_cast<int>(ids.size())) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--positions: got {}, want 0 to {}", position, ids.size() - 1)};
    }
  }
  if (positions.empty()) return std::vector<std::vector<float>>{};
  std::vector<std::vector<float>> wanted(positions.size());
  const auto vocab_size = static_cast<std::size_t>(engine.model().config().vocab_size);
  const int first = *std::min_element(positions.begin(), positions.end());
  cache::Sequence sequence = engine.cache().open();
  KVASIR_RETURN_IF_ERROR(run_in_pieces(
      engine, {&sequence, 1}, ids, first, stop,
      [&](std::size_t, int first_row, int n_rows, const std::vector<float>& logits) {
        for (std::size_t i = 0; i < positions.size(); ++i) {
          const int row = positions[i] - first_row;
          if (row < 0 || row >= n_rows) continue;
          const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(
                                                  static_cast<std::size_t>(row) * vocab_size);
          wanted[i].assign(begin, begin + static_cast<std::ptrdiff_t>(vocab_size));
        }
      }));
  return wanted;
}

}  // namespace kvasir::eval
