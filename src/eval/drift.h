// How far greedy answers over other types of cached K and V go the way of those over a base.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "eval/kld_figures.h"

namespace kvasir::eval {

struct DriftOptions {
  int n_prompts = 64;         ///< cut evenly out of the text; 1..kMaxDriftPrompts
  int n_prompt_tokens = 128;  ///< >= 1; the first one is BOS where the model adds one
  int n_generate = 256;       ///< tokens of an answer at most; >= 1
  KvFormat base{"f32", {cache::CodecId::kF32, cache::CodecId::kF32}};
  std::vector<KvFormat> candidates;
};

inline constexpr int kMaxDriftPrompts = 4096;

/// Of one candidate against the base, over all prompts.
struct DriftFigures {
  /// Tokens before the first difference; of an answer that never differs, its length.
  double equal_mean = 0, equal_median = 0;
  double matching = 0;       ///< share of positions of the longer answer with the same token, 0..1
  double never_differs = 0;  ///< share of prompts, 0..1
  double repetition = 0;     ///< share of 4-grams that the same answer has had before, 0..1
};

struct DriftReport {
  int n_prompts = 0;
  double base_repetition = 0;
  double base_tokens_mean = 0;        ///< of an answer, which ends with the model's end of text
  std::vector<DriftFigures> figures;  ///< of the first candidates, those that are done
  double seconds = 0;
};

using Answers = std::vector<std::vector<TokenId>>;

/// Share of 4-grams that came before in the same answer, over all 4-grams.
double repetition_rate(const Answers& answers);
/// Requires: as many answers of both, at least one.
DriftFigures compare_answers(const Answers& base, const Answers& answers);

/// The likeliest token each time, fed back until the model ends the text or the answer is full. All
/// prompts of a type run side by side; their bits do not depend on that. Types run one after the
/// other, each in a cache of its own.
///
/// `progress(tokens done, tokens at most)` may be empty. When `stop` becomes true the work ends
/// after the running forward pass: the report is about the candidates that are done, or kCancelled
/// when none is. Errors: kInvalidArgument (options, text too short), those of Engine::make_cache
/// and Engine::forward.
Result<DriftReport> drift(engine::Engine& engine, std::string_view text,
                          const DriftOptions& options,
                          const std::function<void(std::int64_t, std::int64_t)>& progress = {},
                          const std::atomic<bool>* stop = nullptr);

}  // namespace kvasir::eval
