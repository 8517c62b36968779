// Types of cached K and V by all that they are chosen for: bytes, quality and decode speed.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "eval/kld.h"
#include "eval/throughput.h"

namespace kvasir::eval {

/// Tokens per second over the repetitions of a row.
struct RateRange {
  double min = 0, median = 0, max = 0;
};
/// Zeros where nothing was timed.
RateRange rates_of(const ThroughputRow& row);

struct ParetoRow {
  std::string name;
  KldFigures quality;
  double bits = 0;           ///< per value, all-in
  RateRange rates;           ///< zeros: not measured
  bool is_on_front = false;  ///< no other type has less of one of bytes and KLD and no more of both
  std::string resolved{};    ///< KvFormat's

  double percent_of_f16() const { return 100 * bits / 16; }
};

/// By the report's candidates, whose formats are `formats`. `speeds` may be empty; else it is by
/// format.
std::vector<ParetoRow> pareto_rows(const KldReport& report, std::span<const KvFormat> formats,
                                   std::span<const ThroughputRow> speeds);

/// speed_rounds (throughput.h) over a cache of each format. Errors: also those of
/// Engine::make_cache.
Result<std::vector<ThroughputRow>> format_speeds(engine::Engine& engine,
                                                 std::span<const KvFormat> formats,
                                                 const SpeedOptions& options,
                                                 const std::function<void(int, int)>& progress = {},
                                                 const std::atomic<bool>* stop = nullptr);

}  // namespace kvasir::eval
