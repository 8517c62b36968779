#include "eval/throughput.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/clock.h"
#include "eval/roofline.h"

namespace kvasir::eval {
namespace {

std::vector<TokenId> random_tokens(const engine::Engine& engine, int n) {
  std::mt19937 random(42);
  const auto vocab_size = static_cast<std::uint32_t>(engine.model().config().vocab_size);
  std::vector<TokenId> tokens(static_cast<std::size_t>(n));
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocab_size);
  return tokens;
}

/// Computes `tokens` in batches; logits of the last one only.
Status advance(engine::Engine& engine, cache::Sequence& sequence, std::span<const TokenId> tokens,
               std::vector<float>& logits) {
  while (!tokens.empty()) {
    const auto n = std::min(tokens.size(), static_cast<std::size_t>(engine.options().n_batch));
    const engine::Engine::Step step{&sequence, tokens.first(n), n == tokens.size() ? 1 : 0};
    KVASIR_RETURN_IF_ERROR(engine.forward({&step, 1}, logits));
    tokens = tokens.subspan(n);
  }
  return {};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

/// A history of `n_depth` tokens that each repetition forks from.
class Depth {
 public:
  Depth(engine::Engine& engine, int n_depth)
      : engine_(engine), tokens_(random_tokens(engine, n_depth)), base_(engine.cache().open()) {}
  Status compute(std::vector<float>& logits) { return advance(engine_, base_, tokens_, logits); }
  Result<cache::Sequence> fork() const { return base_.fork(); }

 private:
  engine::Engine& engine_;
  std::vector<TokenId> tokens_;
  cache::Sequence base_;
};

Status time_row(engine::Engine& engine, const Depth& depth, int n_repetitions, ThroughputRow& row) {
  const SteadyClock clock;
  const std::vector<TokenId> tokens = random_tokens(engine, row.n_tokens());
  std::vector<float> logits;
  for (int repetition = -1; repetition < n_repetitions; ++repetition) {
    KVASIR_ASSIGN_OR_RETURN(cache::Sequence sequence, depth.fork());
    const double start = clock.now_seconds();
    if (row.n_prompt > 0) {
      KVASIR_RETURN_IF_ERROR(advance(engine, sequence, tokens, logits));
    } else {
      for (const TokenId& token : tokens) {
        KVASIR_RETURN_IF_ERROR(advance(engine, sequence, {&token, 1}, logits));
      }
    }
    if (repetition >= 0) row.seconds.push_back(clock.now_seconds() - start);
  }
  return {};
}

}  // namespace

std::string ThroughputRow::test_name() const {
  std::string name = n_prompt > 0 ? fmt::format("pp{}", n_prompt) : fmt::format("tg{}", n_generate);
  if (n_depth > 0) name += fmt::format(" @ d{}", n_depth);
  return name;
}

double ThroughputRow::mean_rate() const {
  double sum = 0.0;
  for (const double value : seconds) sum += n_tokens() / value;
  return seconds.empty() ? 0.0 : sum / static_cast<double>(seconds.size());
}

double ThroughputRow::deviation_rate() const {
  if (seconds.size() < 2) return 0.0;
  const double mean = mean_rate();
  double sum = 0.0;
  for (const double value : seconds) {
    const double difference = n_tokens() / value - mean;
    sum += difference * difference;
  }
  return std::sqrt(sum / static_cast<double>(seconds.size() - 1));
}

double ThroughputRow::median_rate() const {
  const double middle = median(seconds);
  return middle > 0 ? n_tokens() / middle : 0.0;
}

double ThroughputRow::share_of_limit() const { return roofline->limit_seconds / median(seconds); }

Result<std::vector<ThroughputRow>> throughput(
    engine::Engine& engine, const ThroughputOptions& options,
    const std::function<void(const std::string&)>& progress) {
  std::vector<ThroughputRow> rows;
  for (const int n_depth : options.n_depth) {
    for (const int n_prompt : options.n_prompt) {
      if (n_prompt > 0) rows.push_back({n_prompt, 0, n_depth, {}, {}});
    }
    for (const int n_generate : options.n_generate) {
      if (n_generate > 0) rows.push_back({0, n_generate, n_depth, {}, {}});
    }
  }
  for (const ThroughputRow& row : rows) {
    if (row.n_depth < 0 || row.n_depth + row.n_tokens() > engine.n_ctx()) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("bench: {} does not fit the context; got {} tokens, want at most {}",
                               row.test_name(), row.n_depth + row.n_tokens(), engine.n_ctx())};
    }
  }
  std::vector<float> logits;
  std::size_t row_idx = 0;
  for (const int n_depth : options.n_depth) {
    Depth depth(engine, n_depth);
    if (progress && n_depth > 0) progress(fmt::format("computing depth {}", n_depth));
    KVASIR_RETURN_IF_ERROR(depth.compute(logits));
    for (; row_idx < rows.size() && rows[row_idx].n_depth == n_depth; ++row_idx) {
      if (progress) progress(rows[row_idx].test_name());
      ThroughputRow& row = rows[row_idx];
      std::optional<RooflineProbe> probe;
      if (options.with_roofline) probe.emplace(engine, row);
      KVASIR_RETURN_IF_ERROR(time_row(engine, depth, options.n_repetitions, row));
      if (probe) row.roofline = probe->finish();
    }
  }
  return rows;
}

Result<std::vector<CacheSaving>> cache_saving(
    engine::Engine& engine, const std::vector<int>& lengths, int n_repetitions,
    const std::function<void(const std::string&)>& progress) {
  std::vector<CacheSaving> savings;
  for (const int n_tokens : lengths) {
    if (n_tokens < 2 || n_tokens > engine.n_ctx()) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--lengths: got {}, want 2 to {}", n_tokens, engine.n_ctx())};
    }
    if (progress) progress(fmt::format("{} tokens", n_tokens));
    Depth cached(engine, n_tokens - 1);
    std::vector<float> logits;
    KVASIR_RETURN_IF_ERROR(cached.compute(logits));
    ThroughputRow one{0, 1, n_tokens - 1, {}, {}};
    KVASIR_RETURN_IF_ERROR(time_row(engine, cached, n_repetitions, one));
    ThroughputRow all{n_tokens, 0, 0, {}, {}};
    KVASIR_RETURN_IF_ERROR(time_row(engine, Depth(engine, 0), n_repetitions, all));
    CacheSaving saving;
    saving.n_tokens = n_tokens;
    saving.cached_ms = 1e3 * median(one.seconds);
    saving.recomputed_ms = 1e3 * median(all.seconds);
    saving.cached_multiply_adds = engine.model().multiply_adds(n_tokens);
    for (int n = 1; n <= n_tokens; ++n) {
      saving.recomputed_multiply_adds += engine.model().multiply_adds(n);
    }
    savings.push_back(saving);
  }
  return savings;
}

}  // namespace kvasir::eval
