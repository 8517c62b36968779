// Tokens per second at depth (llama-bench's rows), and what the KV cache saves.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace kvasir::eval {

/// What the machine allows a row, probed in this process before and after it (the better counts).
struct Roofline {
  double barrier_seconds = 0;
  double read_rate = 0;      ///< bytes per second, of a buffer of the row's footprint
  double integer_rate = 0;   ///< multiply-adds per second: byte dots
  double float_rate = 0;     ///< the same: f32 FMA
  double bf16_rate = 0;      ///< the same: bf16 pairs
  double limit_seconds = 0;  ///< of the row at these rates
};

/// One row: `n_prompt` tokens in one go, or `n_generate` one by one, after `n_depth` tokens.
/// Generation may be that of several sequences side by side; they share the history.
struct ThroughputRow {
  int n_prompt = 0, n_generate = 0, n_depth = 0;
  int n_sequences = 1;
  std::vector<double> seconds;  ///< of each repetition
  std::optional<Roofline> roofline;
  std::string test_name() const;  ///< "pp512", "tg64 @ d4096", "tg64 x 8 @ d1024"
  /// Of all sequences together.
  int n_tokens() const { return n_prompt > 0 ? n_prompt : n_generate * n_sequences; }
  double mean_rate() const;       ///< tokens per second
  double deviation_rate() const;  ///< standard deviation over repetitions
  double median_rate() const;
  /// Median time at the limit over median time measured, 0..1. Requires: a roofline.
  double share_of_limit() const;
};

/// Sequences of one row at most.
inline constexpr int kMaxBenchSequences = 1024;

struct ThroughputOptions {
  std::vector<int> n_prompt{512}, n_generate{128}, n_depth{0};  ///< zeros are left out
  std::vector<int> n_sequences{1};  ///< of generation rows; 1..kMaxBenchSequences
  int n_repetitions = 5;
  bool with_roofline = false;
};

struct ThroughputReport {
  std::vector<ThroughputRow> rows;  ///< those that are done
  std::optional<Error> error;       ///< what ended it before the last row, by the row's name
};

/// Every (prompt, or generation x sequences) x depth. One untimed warm-up each; the history at
/// depth is computed once and truncated back to between repetitions. When `stop` becomes true the
/// work ends after the running forward pass: the rows that are done are given, or kCancelled when
/// none is. Errors, when no row is done: kExhausted (a row does not fit the context), those of
/// forward.
Result<ThroughputReport> throughput(engine::Engine& engine, const ThroughputOptions& options,
                                    const std::function<void(const std::string&)>& progress = {},
                                    const std::atomic<bool>* stop = nullptr);

struct SpeedOptions {
  int n_depth = 0;  ///< tokens before those that are timed
  int n_generate = 64;
  int n_rounds = 3;
  int n_prompt = 0;  ///< above 0: the tokens of a prompt are timed, none are generated
  int n_timed() const { return n_prompt > 0 ? n_prompt : n_generate; }
};

/// Decoding, or a prompt, over several caches of the engine (Engine::make_cache), compared: every
/// round times each of them once, so that what the machine does meanwhile meets all; one round
/// before does not count. A row for each cache, with the seconds of the rounds that are done.
/// Memory: every cache holds its history at the same time. `progress(steps done, steps)` may be
/// empty. Errors: kInvalidArgument (an option), kExhausted (the context), kCancelled (`stop`, and
/// no round is done), those of forward.
Result<std::vector<ThroughputRow>> speed_rounds(engine::Engine& engine,
                                                std::span<cache::KvCache* const> caches,
                                                const SpeedOptions& options,
                                                const std::function<void(int, int)>& progress = {},
                                                const std::atomic<bool>* stop = nullptr);

/// The price of one more token with and without a KV cache.
struct CacheSaving {
  int n_tokens = 0;          ///< history, the new token included
  double cached_ms = 0;      ///< median: compute the new token over the cached history
  double recomputed_ms = 0;  ///< median: compute all n_tokens again
  double cached_multiply_adds = 0, recomputed_multiply_adds = 0;
};

/// Source: mission M1. Errors and `stop`: as above; kInvalidArgument (a length below 2).
Result<std::vector<CacheSaving>> cache_saving(
    engine::Engine& engine, const std::vector<int>& lengths, int n_repetitions,
    const std::function<void(const std::string&)>& progress = {},
    const std::atomic<bool>* stop = nullptr);

}  // namespace kvasir::eval
