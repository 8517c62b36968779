// What reuse at other positions costs and saves: next-token distributions and time to the first
// token, against computing everything after the change.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/shifted_reuse.h"

namespace kvasir::eval {

struct ShiftedOptions {
  int n_prompt = 3000;  ///< tokens of the prompt before the change; >= 256
  int n_scored = 128;   ///< tokens behind the prompt that are compared; >= 1
  /// These are the changed place once more, from 16 tokens before the change on, and not how the
  /// text goes on: what a model copies depends on the change itself.
  bool repeats_change = false;
  int n_cases = 9;      ///< prompts, spread over the text; kinds of change take turns
  int n_edit_max = 30;  ///< tokens a change inserts, replaces or deletes: 1 to so many
  std::uint64_t seed = 1;
  std::vector<engine::ShiftedReuse> settings;
};

/// Of one setting, over all cases. KLD in nats, of the exact distribution to the other one.
struct ShiftedFigures {
  double kld_mean = 0, kld_median = 0, kld_99 = 0, kld_max = 0;
  double same_top = 0;       ///< share of the tokens with the same likeliest next one
  double nll_mean = 0;       ///< of the text's own tokens
  double seconds = 0;        ///< to the first token, mean
  double seconds_ratio = 0;  ///< of the exact ones, median of the cases
  double moved = 0;          ///< share of the prompt's tokens that were moved
};

struct ShiftedReport {
  int n_cases = 0, n_scored = 0;
  double exact_seconds = 0, exact_nll = 0;
  /// The prompt as it was before the change: how much the change matters.
  ShiftedFigures unchanged;
  std::vector<ShiftedFigures> settings;  ///< by ShiftedOptions::settings
};

/// Each case: a prompt of the text is in the session's history; its tokens are changed at one place
/// within its first tenth; the changed prompt is computed exactly and by every setting, and the
/// tokens behind it are fed one by one. The engine must keep nothing (prefix_bytes 0).
/// Errors: kInvalidArgument (options, text too short), kCancelled (`stop`), those of the engine.
Result<ShiftedReport> shifted_reuse(engine::Engine& engine, std::string_view text,
                                    const ShiftedOptions& options,
                                    const std::function<void(int, int)>& progress = {},
                                    const std::atomic<bool>* stop = nullptr);

}  // namespace kvasir::eval
