#include "engine/shifted_reuse.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cache/codec/move_rows.h"
#include "engine/known_histories.h"
#include "model/key_shift.h"

namespace kvasir::engine {
namespace {

/// What is kept of the first `n` tokens of `history`, or of fewer.
cache::Sequence open_history(Engine& engine, std::span<const TokenId> history, int n) {
  std::vector<TokenId> tokens(history.begin(), history.begin() + n);
  tokens.push_back(0);  // of what it is asked for, the cache leaves one to compute
  cache::Match match;
  return engine.cache().open(engine.root_key(), tokens, match,
                             engine.options().always_load ? 0 : engine.seconds_per_token());
}

/// A sequence that ends where the run does in its history, or earlier. With windows that is of
/// weight: only its last tokens have all their K and V.
cache::Sequence open_source(Engine& engine, const TokenRun& run, std::span<const TokenId> history,
                            const cache::Sequence& own) {
  const int end = run.history_begin + run.n_tokens();
  if (run.history_idx == 0 && own.is_open()) {
    Result<cache::Sequence> fork = own.fork();
    if (fork && fork->truncate(end)) return std::move(*fork);
  }
  return open_history(engine, history, end);
}

/// Takes what is computed anew from the run's ends or marks it inside.
void spare(const ShiftedReuse& options, bool has_windows, ShiftedRows& rows) {
  const int n = rows.end - rows.begin;
  const int n_share = static_cast<int>(std::lround(options.share * n));
  const int n_first = std::min(n, options.first_tokens);
  const int n_more = std::clamp(n_share - n_first, 0, n - n_first);
  // Of a source with windows only the end has all K and V: it must stay, and nothing inside can be
  // computed.
  const RecomputeRule rule = has_windows ? RecomputeRule::kFirst : options.rule;
  const int n_skipped = rule == RecomputeRule::kFirst ? n_first + n_more : n_first;
  rows.begin += n_skipped;
  rows.source_begin += n_skipped;
  if (rule == RecomputeRule::kLast) rows.end -= n_more;
  if (rule != RecomputeRule::kSpread) return;
  const int n_blocks = n_more / kShiftedBlockTokens;
  for (int i = 0; i < n_blocks; ++i) {
    const double at = (i + 0.5) * (n - n_first) / n_blocks - 0.5 * kShiftedBlockTokens;
    rows.computed_blocks.push_back(rows.begin + static_cast<int>(at));
  }
}

}  // namespace

std::vector<ShiftedRows> plan_shifted(Engine& engine, const ShiftedReuse& options,
                                      std::span<const TokenId> prompt, int first,
                                      const cache::Sequence& own,
                                      std::span<const TokenId> own_tokens) {
  std::vector<ShiftedRows> plan;
  if (static_cast<int>(prompt.size()) - 1 - first < options.min_run_tokens) return plan;
  std::vector<std::span<const TokenId>> histories = {own_tokens};
  for (const auto& history : engine.known_histories().all()) histories.emplace_back(history);
  const auto candidates = prompt.first(prompt.size() - 1);  // the last one gives the logits
  std::vector<TokenRun> runs =
      find_token_runs(candidates, first, histories, options.min_run_tokens);
  for (std::size_t i = 0; i < runs.size();) {
    const TokenRun& run = runs[i];
    ShiftedRows rows;
    rows.begin = run.begin;
    rows.source_begin = run.history_begin;
    rows.source = open_source(engine, run, histories[run.history_idx], own);
    const int n_kept = rows.source.n_tokens() - run.history_begin;
    if (n_kept < options.min_run_tokens) {  // another history may have it
      histories[run.history_idx] = {};
      const int from = i == 0 ? first : runs[i - 1].end;
      runs.resize(i);
      const auto others = find_token_runs(candidates, from, histories, options.min_run_tokens);
      runs.insert(runs.end(), others.begin(), others.end());
      continue;
    }
    rows.end = run.begin + n_kept;
    spare(options, engine.model().config().window > 0, rows);
    if (rows.begin < rows.end) plan.push_back(std::move(rows));
    ++i;
  }
  return plan;
}

Status move_shifted(Engine& engine, const ShiftedRows& rows, std::span<const TokenId> tokens,
                    cache::Sequence& target) {
  const int n = rows.end - rows.begin;
  KVASIR_CHECK(target.n_tokens() == rows.begin);
  KVASIR_RETURN_IF_ERROR(target.append(n));
  const std::vector<cache::PagedKvView> from = rows.source.views(), to = target.views();
  const model::ModelConfig& config = engine.model().config();
  const model::KeyShift shift(config, rows.begin - rows.source_begin);
  const auto scratch_floats = static_cast<std::size_t>(cache::kStripTokens) *
                              static_cast<std::size_t>(config.n_kv_heads * config.head_dim);
  std::vector<float> scratch(scratch_floats * static_cast<std::size_t>(engine.n_threads()));
  engine.pool().for_tasks(config.n_layers, [&](int layer, int thread_idx) {
    const auto layer_idx = static_cast<std::size_t>(layer);
    cache::move_rows(
        from[layer_idx], rows.source_begin, to[layer_idx], rows.begin, n,
        [&](int n_rows, float* keys) { shift.apply(layer, n_rows, keys); },
        std::span(scratch).subspan(scratch_floats * static_cast<std::size_t>(thread_idx),
                                   scratch_floats));
  });
  if (!rows.computed_blocks.empty()) {
    const Status status =
        engine.recompute(target, tokens, rows.computed_blocks, kShiftedBlockTokens);
    if (!status) {
      KVASIR_CHECK(target.truncate(rows.begin).has_value());  // there are no windows: see spare
      return status;
    }
  }
  target.free_below_windows();
  return {};
}

}  // namespace kvasir::engine
