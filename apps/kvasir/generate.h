// Runs one generation to its end for `run` and `chat`: streams, measures, reports.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "command.h"
#include "engine/generation.h"
#include "engine/session.h"

namespace kvasir::cli {

struct Answer {
  std::string text;
  std::vector<TokenId> ids;
  std::string finish_reason;   ///< "interrupted" after Ctrl-C, "out_of_budget" with an error
  std::optional<Error> error;  ///< what ended the answer midway; the rest holds what there is
  std::uint64_t seed = 0;
  engine::PromptReport prompt;
  double generate_seconds = 0;
  int n_timed = 0;               ///< tokens computed within generate_seconds
  engine::FaultCounters faults;  ///< of this prompt and answer
};

/// Computes the prompt (with a progress bar), then generates; `on_text` gets each piece at once.
/// Ctrl-C or a full budget ends the answer early and keeps what is computed in the session. Errors:
/// those of the prompt.
Result<Answer> answer(engine::Engine& engine, engine::Session& session,
                      std::span<const TokenId> prompt, const engine::GenerationParams& params,
                      const std::function<void(std::string_view)>& on_text);

/// Says on stderr that the context is full, if that ended the answer. `advice` may be empty.
void note_full_context(const Answer& answer, int n_ctx, const char* advice);

/// "prompt 31 tokens (512 tokens/s), answer 84 tokens (98 tokens/s), KV 2.8 MiB allocated, ..."
std::string figures(const Answer& answer, const cache::MemorySummary& memory);

/// "reused 4032 of 4100 prompt tokens, 4032 of them from the disk; first_difference at token 4032:
/// cached ' sat', wanted ' ran'"
std::string explain(const engine::PromptReport& report, const text::Tokenizer& tokenizer);

nlohmann::json usage_json(const Answer& answer);
/// "poisoned_tokens", "refused_steps": engine::FaultCounters.
nlohmann::json faults_json(const Answer& answer);
nlohmann::json timings_json(const Answer& answer, double load_seconds);

}  // namespace kvasir::cli
