#include "generate.h"

#include <fmt/core.h>

#include "base/clock.h"
#include "base/units.h"

namespace kvasir::cli {
namespace {

double rate(int n_tokens, double seconds) { return seconds > 0 ? n_tokens / seconds : 0.0; }

}  // namespace

Result<Answer> answer(engine::Engine& engine, engine::Session& session,
                      std::span<const TokenId> prompt, const engine::GenerationParams& params,
                      const std::function<void(std::string_view)>& on_text) {
  Answer result;
  const engine::FaultCounters before = engine.faults();
  result.seed = params.sampling.seed;
  const auto deliver = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    on_text(text);
  };
  {
    ProgressBar bar("prompt");
    const auto progress = [&](int done, int total) {
      bar.update(static_cast<double>(done) / total, fmt::format("{}/{} tokens", done, total));
    };
    KVASIR_ASSIGN_OR_RETURN(result.prompt, session.prompt(prompt, progress, &interrupted()));
  }
  const SteadyClock clock;
  engine::Generation generation(engine, session, params);
  const int n_before = session.n_tokens();
  const double start = clock.now_seconds();
  while (true) {
    if (interrupted().load()) {
      result.finish_reason = "interrupted";
      deliver(generation.flush());
      break;
    }
    const auto event = generation.next();
    if (!event) {
      result.error = event.error();
      const bool is_full = event.error().code == ErrorCode::kExhausted;
      result.finish_reason = is_full ? "out_of_budget" : "error";
      deliver(generation.flush());
      break;
    }
    deliver(event->text);
    if (event->finished) {
      result.finish_reason = engine::finish_reason_name(*event->finished);
      break;
    }
  }
  result.generate_seconds = clock.now_seconds() - start;
  result.n_timed = session.n_tokens() - n_before;
  result.ids = generation.tokens();
  result.faults = {engine.faults().n_poisoned_tokens - before.n_poisoned_tokens,
                   engine.faults().n_refused_steps - before.n_refused_steps};
  return result;
}

std::string figures(const Answer& answer, const cache::MemorySummary& memory) {
  const int n_cached = answer.prompt.n_reused + answer.prompt.n_behind;
  std::string reused = n_cached > 0 ? fmt::format(", {} from cache", n_cached) : "";
  if (answer.prompt.n_shifted > 0) {
    reused += fmt::format(", {} moved: approximate", answer.prompt.n_shifted);
  }
  const std::string poisoned =
      answer.faults.n_poisoned_tokens > 0
          ? fmt::format(", K or V of {} tokens not finite", answer.faults.n_poisoned_tokens)
          : "";
  return fmt::format(
      "prompt {} tokens ({:.1f} tokens/s{}), answer {} tokens ({:.1f} tokens/s), KV {} allocated, "
      "{} used, seed {}{}",
      answer.prompt.n_prompt, rate(answer.prompt.n_computed, answer.prompt.seconds), reused,
      answer.ids.size(), rate(answer.n_timed, answer.generate_seconds),
      format_bytes(memory.allocated), format_bytes(memory.used), answer.seed, poisoned);
}

std::string explain(const engine::PromptReport& report, const text::Tokenizer& tokenizer) {
  std::string text = fmt::format(
      "reused {} of {} prompt tokens, {} of them from the disk; {} at token {}", report.n_reused,
      report.n_prompt, report.n_loaded, cache::match_end_name(report.end), report.n_reused);
  if (report.n_behind > 0) {
    text += fmt::format("; {} more came from the disk while those before them were computed",
                        report.n_behind);
  }
  const std::string approximate =
      report.first_approximate < 0
          ? ""
          : fmt::format("; approximate from token {} on: {} tokens were moved from other positions",
                        report.first_approximate, report.n_shifted);
  if (!report.scope_difference.empty()) {
    text += fmt::format(": what is there has another {}", report.scope_difference);
  }
  if (report.end != cache::MatchEnd::kFirstDifference) return text + approximate;
  const auto quoted = [&](TokenId token) {
    return dump(nlohmann::json(tokenizer.piece(token, text::ParseSpecial::kYes)));
  };
  return text +
         fmt::format(": cached {}, wanted {}", quoted(report.cached), quoted(report.wanted)) +
         approximate;
}

void note_full_context(const Answer& answer, int n_ctx, const char* advice) {
  if (answer.finish_reason != "context_full") return;
  say("kvasir: note: the context of {} tokens is full{}\n", n_ctx, advice);
}

nlohmann::json usage_json(const Answer& answer) {
  const auto n_answer = static_cast<int>(answer.ids.size());
  return {{"prompt_tokens", answer.prompt.n_prompt},
          {"completion_tokens", n_answer},
          {"total_tokens", answer.prompt.n_prompt + n_answer},
          {"prompt_tokens_details",
           {{"cached_tokens", answer.prompt.n_reused + answer.prompt.n_behind},
            {"disk_tokens", answer.prompt.n_loaded + answer.prompt.n_behind},
            {"shifted_tokens", answer.prompt.n_shifted},
            {"approximate", answer.prompt.first_approximate >= 0},
            {"match_end", cache::match_end_name(answer.prompt.end)}}}};
}

nlohmann::json faults_json(const Answer& answer) {
  return {{"poisoned_tokens", answer.faults.n_poisoned_tokens},
          {"refused_steps", answer.faults.n_refused_steps}};
}

nlohmann::json timings_json(const Answer& answer, double load_seconds) {
  return {{"load_ms", 1e3 * load_seconds},
          {"cache_n", answer.prompt.n_reused + answer.prompt.n_behind},
          {"prompt_n", answer.prompt.n_computed},
          {"prompt_ms", 1e3 * answer.prompt.seconds},
          {"prompt_per_second", rate(answer.prompt.n_computed, answer.prompt.seconds)},
          {"predicted_n", answer.n_timed},
          {"predicted_ms", 1e3 * answer.generate_seconds},
          {"predicted_per_second", rate(answer.n_timed, answer.generate_seconds)}};
}

}  // namespace kvasir::cli
