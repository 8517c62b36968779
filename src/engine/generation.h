// One answer being generated: sample, decode, watch for stops, compute, token by token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "engine/sampler.h"
#include "engine/session.h"
#include "text/tokenizer.h"

namespace kvasir::engine {

/// Finds stop strings in streamed text, across token borders. Text is held back only while it could
/// still be the beginning of a stop string.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// Text that is safe to show. After a match, the text before it; `matched()` is then set.
  std::string push(std::string_view text);
  /// What was held back, when the text ends without a match.
  std::string finish();
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> matched_;
};

enum class FinishReason : std::uint8_t { kLength, kEndOfGeneration, kStopString, kContextFull };
/// "length", "eog", "stop", "context_full".
std::string_view finish_reason_name(FinishReason reason);

struct GenerationParams {
  SamplingParams sampling;
  int n_max = -1;  ///< tokens; -1: until the model ends or the context is full
  std::vector<std::string> stops;
  bool ignore_eog = false;
};

/// Requires: the session has logits (Session::prompt was called).
class Generation {
 public:
  Generation(Engine& engine, Session& session, const GenerationParams& params);

  struct Event {
    TokenId token = -1;  ///< the token sampled; -1 in the last event
    std::string text;    ///< text it released; may be empty
    std::optional<FinishReason> finished;
  };
  /// One token further. After an event with `finished`, no more calls. A token's K/V is computed
  /// only when the next one is asked for, so the last token of an answer is not in the session's
  /// history. Errors: kExhausted (budget); the session keeps what it has, and a later call tries
  /// again.
  Result<Event> next();

  /// Text that was held back, when the answer is ended from outside or by an error.
  std::string flush();

  const std::vector<TokenId>& tokens() const { return tokens_; }

 private:
  Engine& engine_;
  Session& session_;
  GenerationParams params_;
  Sampler sampler_;
  text::StreamDecoder decoder_;
  StopMatcher stop_matcher_;
  std::vector<TokenId> tokens_;
  std::vector<TokenId> history_;
  std::optional<TokenId> uncomputed_;
};

}  // namespace kvasir::engine
