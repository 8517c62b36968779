// kvasir eval drift: how soon free-running answers over other types of K and V differ.
#include <fmt/core.h>

#include "command.h"
#include "eval/drift.h"
#include "kv_formats.h"

namespace kvasir::cli {
namespace {

struct DriftFlags {
  ModelFlags model;
  std::string file = "-", base = "f32", candidates;
  eval::DriftOptions options;
  bool json = false;
};

Status check_at_least_one(const char* flag, int value) {
  if (value > 0) return {};
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}: got {}, want 1 or more", flag, value)};
}

nlohmann::json to_json(const eval::DriftReport& report, const eval::DriftOptions& options,
                       const engine::EngineOptions& engine) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < report.figures.size(); ++i) {
    const eval::DriftFigures& figures = report.figures[i];
    rows.push_back({{"equal_tokens_mean", figures.equal_mean},
                    {"equal_tokens_median", figures.equal_median},
                    {"matching", figures.matching},
                    {"never_differs", figures.never_differs},
                    {"repetition", figures.repetition}});
    add_name(rows.back(), options.candidates[i]);
  }
  nlohmann::json json = comparison_json(engine, options.base);
  json.update({{"n_prompts", report.n_prompts},
               {"n_prompt_tokens", options.n_prompt_tokens},
               {"n_generate", options.n_generate},
               {"base_tokens_mean", report.base_tokens_mean},
               {"base_repetition", report.base_repetition},
               {"seconds", report.seconds},
               {"rows", rows}});
  return json;
}

std::string table_of(const eval::DriftReport& report, const eval::DriftOptions& options,
                     const engine::EngineOptions& engine) {
  std::string table = fmt::format(
      "base {}: {} greedy answers of {:.1f} tokens (at most {}) to prompts of {}, act {}; repeated "
      "4-grams {:.1f} %\n\n{}{:>12}{:>10}{:>10}{:>15}{:>11}\n",
      shown_name(options.base), report.n_prompts, report.base_tokens_mean, options.n_generate,
      options.n_prompt_tokens, activation_name(engine), 100 * report.base_repetition,
      name_cells(options.candidates), "equal: mean", "median", "matching", "never differs",
      "repeated");
  for (std::size_t i = 0; i < report.figures.size(); ++i) {
    const eval::DriftFigures& figures = report.figures[i];
    table += fmt::format("{}{:>12.1f}{:>10.1f}{:>8.1f} %{:>13.1f} %{:>9.1f} %\n",
                         name_cells(options.candidates, &options.candidates[i]), figures.equal_mean,
                         figures.equal_median, 100 * figures.matching, 100 * figures.never_differs,
                         100 * figures.repetition);
  }
  return table;
}

Status run_drift(DriftFlags& flags) {
  eval::DriftOptions& wanted = flags.options;
  KVASIR_RETURN_IF_ERROR(check_at_least_one("--prompts", wanted.n_prompts));
  KVASIR_RETURN_IF_ERROR(check_at_least_one("--prompt-tokens", wanted.n_prompt_tokens));
  KVASIR_RETURN_IF_ERROR(check_at_least_one("--n-predict", wanted.n_generate));
  KVASIR_ASSIGN_OR_RETURN(wanted.base, parse_kv_format("--base-kv", flags.base));
  KVASIR_ASSIGN_OR_RETURN(wanted.candidates, parse_kv_formats("--kv-type", flags.candidates));
  KVASIR_ASSIGN_OR_RETURN(const engine::EngineOptions options, flags.model.engine_options());
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_input(flags.file));
  KVASIR_ASSIGN_OR_RETURN(const auto engine, ModelFlags::load(options));
  note_formats(*engine, wanted.base, wanted.candidates, "prompts and answers",
               wanted.n_prompt_tokens + wanted.n_generate);
  ProgressBar bar("drift");
  const auto progress = [&](std::int64_t done, std::int64_t most) {
    bar.update(static_cast<double>(done) / static_cast<double>(most),
               fmt::format("{}/{} tokens", done, most));
  };
  KVASIR_ASSIGN_OR_RETURN(const eval::DriftReport report,
                          eval::drift(*engine, text, wanted, progress, &interrupted()));
  print(flags.json ? dump(to_json(report, wanted, options)) + "\n"
                   : table_of(report, wanted, options));
  return {};
}

}  // namespace

void add_eval_drift(CLI::App& eval, std::vector<Command>& commands) {
  auto flags = std::make_shared<DriftFlags>();
  eval::DriftOptions& options = flags->options;
  CLI::App* sub = eval.add_subcommand(
      "drift", "how soon greedy answers differ from those over a base type of K and V");
  flags->model.add(*sub, ModelFlags::Set::kAnyKvType);
  sub->add_option("-f,--file", flags->file, "the text that prompts are cut from; - : stdin");
  add_kv_comparison(*sub, flags->base, flags->candidates);
  sub->add_option("--prompts", options.n_prompts, "prompts, spread over the text");
  sub->add_option("--prompt-tokens", options.n_prompt_tokens, "tokens of a prompt");
  sub->add_option("-n,--n-predict", options.n_generate, "tokens of an answer at most");
  sub->add_flag("--json", flags->json, "one JSON object");
  sub->footer(
      "Examples:\n"
      "  kvasir eval drift -f text.txt --kv-type f16,bf16\n"
      "  kvasir eval drift -f text.txt --kv-type bf16 --prompts 16 -n 64 --json\n"
      "Tokens are equal up to the first difference; an answer that never differs counts in full.\n"
      "Ctrl-C ends it with the types that are done.\n");
  commands.push_back({sub, [flags] {
                        const Status status = run_drift(*flags);
                        return status ? done_or_interrupted() : report(status.error());
                      }});
}

}  // namespace kvasir::cli
