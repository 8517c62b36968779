#include "eval/throughput.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

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

/// An engine, and what stops its work.
struct Runner {
  engine::Engine& engine;
  const std::atomic<bool>* stop;

  /// Errors: kCancelled.
  Status check_stop() const {
    if (stop == nullptr || !stop->load()) return {};
    return Error{ErrorCode::kCancelled, "bench: interrupted"};
  }

  /// Computes `tokens` in batches; logits of the last one only. Errors: kCancelled.
  Status advance(cache::Sequence& sequence, std::span<const TokenId> tokens,
                 std::vector<float>& logits) const {
    while (!tokens.empty()) {
      KVASIR_RETURN_IF_ERROR(check_stop());
      const auto n = std::min(tokens.size(), static_cast<std::size_t>(engine.options().n_batch));
      const engine::Engine::Step step{&sequence, tokens.first(n), n == tokens.size() ? 1 : 0};
      KVASIR_RETURN_IF_ERROR(engine.forward({&step, 1}, logits));
      tokens = tokens.subspan(n);
    }
    return {};
  }

  /// Step by step the next token of every sequence; logits of all. Errors: kCancelled.
  Status generate(std::vector<cache::Sequence>& sequences, std::span<const TokenId> tokens,
                  std::vector<float>& logits) const {
    std::vector<engine::Engine::Step> steps(sequences.size());
    for (; !tokens.empty(); tokens = tokens.subspan(sequences.size())) {
      KVASIR_RETURN_IF_ERROR(check_stop());
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        steps[i] = {&sequences[i], tokens.subspan(i, 1), 1};
      }
      KVASIR_RETURN_IF_ERROR(engine.forward(steps, logits));
    }
    return {};
  }
};

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

/// A history of `n_depth` tokens that each repetition forks from.
class Depth {
 public:
  Depth(const Runner& runner, cache::KvCache& cache, int n_depth)
      : runner_(runner), tokens_(random_tokens(runner.engine, n_depth)), base_(cache.open()) {}
  Depth(const Runner& runner, int n_depth) : Depth(runner, runner.engine.cache(), n_depth) {}
  Status compute(std::vector<float>& logits) { return runner_.advance(base_, tokens_, logits); }
  Result<cache::Sequence> fork() const { return base_.fork(); }

 private:
  const Runner& runner_;
  std::vector<TokenId> tokens_;
  cache::Sequence base_;
};

/// Seconds of one repetition.
Result<double> time_once(const Runner& runner, const Depth& depth, const ThroughputRow& row,
                         std::span<const TokenId> tokens, std::vector<float>& logits) {
  const SteadyClock clock;
  std::vector<cache::Sequence> sequences;
  for (int i = 0; i < row.n_sequences; ++i) {
    KVASIR_ASSIGN_OR_RETURN(cache::Sequence sequence, depth.fork());
    sequences.push_back(std::move(sequence));
  }
  const double start = clock.now_seconds();
  if (row.n_prompt > 0) {
    KVASIR_RETURN_IF_ERROR(runner.advance(sequences[0], tokens, logits));
  } else {
    KVASIR_RETURN_IF_ERROR(runner.generate(sequences, tokens, logits));
  }
  return clock.now_seconds() - start;
}

Status time_row(const Runner& runner, const Depth& depth, int n_repetitions, ThroughputRow& row) {
  const std::vector<TokenId> tokens = random_tokens(runner.engine, row.n_tokens());
  std::vector<float> logits;
  for (int repetition = -1; repetition < n_repetitions; ++repetition) {
    KVASIR_ASSIGN_OR_RETURN(const double seconds, time_once(runner, depth, row, tokens, logits));
    if (repetition >= 0) row.seconds.push_back(seconds);
  }
  return {};
}

/// Rounds over all depths; `rows` get the seconds of whole rounds. Errors: kCancelled.
Status time_rounds(const Runner& runner, const std::vector<Depth>& depths, int n_rounds,
                   const std::function<void()>& step, std::vector<ThroughputRow>& rows) {
  const std::vector<TokenId> tokens = random_tokens(runner.engine, rows.front().n_tokens());
  std::vector<float> logits;
  for (int round = -1; round < n_rounds; ++round) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i < depths.size(); ++i) {
      KVASIR_ASSIGN_OR_RETURN(const double one,
                              time_once(runner, depths[i], rows[i], tokens, logits));
      seconds.push_back(one);
      step();
    }
    if (round < 0) continue;
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].seconds.push_back(seconds[i]);
  }
  return {};
}

}  // namespace

std::string ThroughputRow::test_name() const {
  std::string name = n_prompt > 0 ? fmt::format("pp{}", n_prompt) : fmt::format("tg{}", n_generate);
  if (n_sequences > 1) name += fmt::format(" x {}", n_sequences);
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

namespace {

/// Errors: kInvalidArgument, too many sequences; kExhausted, a row that does not fit the context.
Result<std::vector<ThroughputRow>> plan_rows(const ThroughputOptions& options, int n_ctx) {
  for (const int n : options.n_sequences) {
    if (n >= 1 && n <= kMaxBenchSequences) continue;
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("bench: a batch of sequences; got {}, want 1 to {}", n, kMaxBenchSequences)};
  }
  std::vector<ThroughputRow> rows;
  for (const int n_depth : options.n_depth) {
    for (const int n_prompt : options.n_prompt) {
      if (n_prompt > 0) rows.push_back({n_prompt, 0, n_depth, 1, {}, {}});
    }
    for (const int n_generate : options.n_generate) {
      if (n_generate == 0) continue;
      for (const int n : options.n_sequences) rows.push_back({0, n_generate, n_depth, n, {}, {}});
    }
  }
  for (const ThroughputRow& row : rows) {
    const std::int64_t n_tokens = std::int64_t{row.n_depth} + row.n_prompt + row.n_generate;
    if (n_tokens > n_ctx) {
      return Error{ErrorCode::kExhausted,
                   fmt::format("bench: {} does not fit the context; got {} tokens, want at most {}",
                               row.test_name(), n_tokens, n_ctx)};
    }
  }
  return rows;
}

/// Times the rows in their order; `n_done` counts those that are whole.
Status time_rows(const Runner& runner, const ThroughputOptions& options,
                 const std::function<void(const std::string&)>& progress,
                 std::vector<ThroughputRow>& rows, std::size_t& n_done) {
  std::vector<float> logits;
  for (const int n_depth : options.n_depth) {
    Depth depth(runner, n_depth);
    if (progress && n_depth > 0) progress(fmt::format("computing depth {}", n_depth));
    KVASIR_RETURN_IF_ERROR(depth.compute(logits));
    for (; n_done < rows.size() && rows[n_done].n_depth == n_depth; ++n_done) {
      ThroughputRow& row = rows[n_done];
      if (progress) progress(row.test_name());
      std::optional<RooflineProbe> probe;
      if (options.with_roofline) probe.emplace(runner.engine, row);
      KVASIR_RETURN_IF_ERROR(time_row(runner, depth, options.n_repetitions, row));
      if (probe) row.roofline = probe->finish();
    }
  }
  return {};
}

Result<CacheSaving> time_saving(const Runner& runner, int n_tokens, int n_repetitions) {
  Depth cached(runner, n_tokens - 1);
  std::vector<float> logits;
  KVASIR_RETURN_IF_ERROR(cached.compute(logits));
  ThroughputRow one{0, 1, n_tokens - 1, 1, {}, {}};
  KVASIR_RETURN_IF_ERROR(time_row(runner, cached, n_repetitions, one));
  ThroughputRow all{n_tokens, 0, 0, 1, {}, {}};
  KVASIR_RETURN_IF_ERROR(time_row(runner, Depth(runner, 0), n_repetitions, all));
  const model::Model& model = runner.engine.model();
  CacheSaving saving;
  saving.n_tokens = n_tokens;
  saving.cached_ms = 1e3 * median(one.seconds);
  saving.recomputed_ms = 1e3 * median(all.seconds);
  saving.cached_multiply_adds = model.multiply_adds(n_tokens);
  for (int n = 1; n <= n_tokens; ++n) saving.recomputed_multiply_adds += model.multiply_adds(n);
  return saving;
}

}  // namespace

Result<ThroughputReport> throughput(engine::Engine& engine, const ThroughputOptions& options,
                                    const std::function<void(const std::string&)>& progress,
                                    const std::atomic<bool>* stop) {
  ThroughputReport report;
  KVASIR_ASSIGN_OR_RETURN(report.rows, plan_rows(options, engine.n_ctx()));
  std::size_t n_done = 0;
  const Status status = time_rows({engine, stop}, options, progress, report.rows, n_done);
  if (!status && status.error().code != ErrorCode::kCancelled) {
    const std::string row = report.rows[n_done].test_name();
    report.error = Error{status.error().code, row + ": " + status.error().message};
  }
  report.rows.resize(n_done);
  if (!status && n_done == 0) return report.error ? *report.error : status.error();
  return report;
}

Result<std::vector<ThroughputRow>> speed_rounds(engine::Engine& engine,
                                                std::span<cache::KvCache* const> caches,
                                                const SpeedOptions& options,
                                                const std::function<void(int, int)>& progress,
                                                const std::atomic<bool>* stop) {
  if (caches.empty() || options.n_depth < 0 || options.n_timed() < 1 || options.n_rounds < 1) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("bench: got {} caches, {} rounds of {} tokens at depth {}, want 1 or "
                             "more, and a depth of 0 or more",
                             caches.size(), options.n_rounds, options.n_timed(), options.n_depth)};
  }
  ThroughputOptions plan;
  plan.n_prompt = {options.n_prompt};
  plan.n_generate = {options.n_prompt > 0 ? 0 : options.n_generate};
  plan.n_depth = {options.n_depth};
  KVASIR_ASSIGN_OR_RETURN(std::vector<ThroughputRow> rows, plan_rows(plan, engine.n_ctx()));
  rows.resize(caches.size(), rows.front());

  const Runner runner{engine, stop};
  const int n_steps = static_cast<int>(caches.size()) * (options.n_rounds + 2);
  int n_done = 0;
  const auto step = [&] {
    if (progress) progress(++n_done, n_steps);
  };
  std::vector<float> logits;
  std::vector<Depth> depths;
  for (cache::KvCache* const cache : caches) {
    depths.emplace_back(runner, *cache, options.n_depth);
    KVASIR_RETURN_IF_ERROR(depths.back().compute(logits));
    step();
  }
  const Status status = time_rounds(runner, depths, options.n_rounds, step, rows);
  const bool is_stopped = !status && status.error().code == ErrorCode::kCancelled;
  if (!status && !(is_stopped && !rows.front().seconds.empty())) return status.error();
  return rows;
}

Result<std::vector<CacheSaving>> cache_saving(
    engine::Engine& engine, const std::vector<int>& lengths, int n_repetitions,
    const std::function<void(const std::string&)>& progress, const std::atomic<bool>* stop) {
  for (const int n_tokens : lengths) {
    if (n_tokens >= 2 && n_tokens <= engine.n_ctx()) continue;
    return Error{n_tokens < 2 ? ErrorCode::kInvalidArgument : ErrorCode::kExhausted,
                 fmt::format("--lengths: got {}, want 2 to {}", n_tokens, engine.n_ctx())};
  }
  std::vector<CacheSaving> savings;
  for (const int n_tokens : lengths) {
    if (progress) progress(fmt::format("{} tokens", n_tokens));
    const auto saving = time_saving({engine, stop}, n_tokens, n_repetitions);
    const bool is_stopped = !saving && saving.error().code == ErrorCode::kCancelled;
    if (is_stopped && !savings.empty()) break;
    if (!saving) return saving.error();
    savings.push_back(*saving);
  }
  return savings;
}

}  // namespace kvasir::eval
