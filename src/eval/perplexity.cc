#include "eval/perplexity.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"

namespace kvasir::eval {
namespace {

constexpr std::size_t kLogitsBytesMax = std::size_t{64} << 20;

/// Rows of a forward pass whose logits stay under kLogitsBytesMax.
int rows_per_step(const engine::Engine& engine) {
  const auto row_bytes =
      static_cast<std::size_t>(engine.model().config().vocab_size) * sizeof(float);
  const auto n_rows = std::max<std::size_t>(1, kLogitsBytesMax / row_bytes);
  return static_cast<int>(std::min<std::size_t>(n_rows, engine.options().n_batch));
}

/// Runs `ids` from an empty cache and hands over logits rows [n_rows][vocab] of positions from
/// `first_wanted` on, a piece at a time: `take(first position, n_rows, logits)`.
template <class Take>
Status run_sequence(engine::Engine& engine, std::span<const TokenId> ids, int first_wanted,
                    const std::atomic<bool>* stop, Take take) {
  cache::Sequence sequence = engine.cache().open();
  std::vector<float> logits;
  const int n_ids = static_cast<int>(ids.size());
  const int n_rows_max = rows_per_step(engine);
  int pos = 0;
  while (pos < n_ids) {
    if (stop != nullptr && stop->load()) return Error{ErrorCode::kCancelled, "eval: interrupted"};
    const bool wanted = pos >= first_wanted;
    int n = wanted ? std::min(n_rows_max, n_ids - pos)
                   : std::min({engine.options().n_batch, first_wanted - pos, n_ids - pos});
    const engine::Engine::Step step{
        &sequence, ids.subspan(static_cast<std::size_t>(pos), static_cast<std::size_t>(n)),
        wanted ? n : 0};
    KVASIR_RETURN_IF_ERROR(engine.forward({&step, 1}, logits));
    if (wanted) take(pos, n, logits);
    pos += n;
  }
  return {};
}

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
  if (options.n_ctx < 4 || options.n_ctx > engine.n_ctx()) {
    // The engine may have been made just as small: what the model can do is the better answer.
    const int n_ctx_max = std::max(engine.n_ctx(), engine.model().config().n_ctx_train);
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--ctx-size: got {}, want 4 to {}", options.n_ctx, n_ctx_max)};
  }
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const std::vector<TokenId> ids =
      tokenizer.encode(text, text::AddSpecial::kYes, text::ParseSpecial::kNo);
  const int n_whole = static_cast<int>(ids.size()) / options.n_ctx;
  const int n_chunks = options.n_chunks < 0 ? n_whole : std::min(options.n_chunks, n_whole);
  if (n_chunks < 1) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("perplexity: text too short; got {} tokens, want at least {}",
                             ids.size(), options.n_ctx)};
  }

  PerplexityReport report;
  report.n_tokens_text = static_cast<int>(ids.size());
  const SteadyClock clock;
  const double start = clock.now_seconds();
  const auto vocab_size = static_cast<std::size_t>(engine.model().config().vocab_size);
  const int first_scored = options.n_ctx / 2;
  const int n_scored = options.n_ctx - 1 - first_scored;
  double sum = 0.0, sum_of_squares = 0.0;
  std::vector<double> nll(static_cast<std::size_t>(n_scored));
  for (int chunk_idx = 0; chunk_idx < n_chunks; ++chunk_idx) {
    const auto chunk = std::span(ids).subspan(
        static_cast<std::size_t>(chunk_idx) * static_cast<std::size_t>(options.n_ctx),
        static_cast<std::size_t>(options.n_ctx));
    std::vector<TokenId> input(chunk.begin(), chunk.end() - 1);
    if (tokenizer.add_bos() && tokenizer.bos()) input[0] = *tokenizer.bos();
    const Status status = run_sequence(
        engine, input, first_scored, stop,
        [&](int first, int n_rows, const std::vector<float>& logits) {
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
  KVASIR_RETURN_IF_ERROR(run_sequence(
      engine, ids, first, stop, [&](int first_row, int n_rows, const std::vector<float>& logits) {
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
