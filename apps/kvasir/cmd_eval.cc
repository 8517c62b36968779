// kvasir eval: perplexity and logits, the reference figures of everything else.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "command.h"
#include "eval/perplexity.h"
#include "eval/shifted.h"

namespace kvasir::cli {
namespace {

constexpr int kChunkTokens = 512;  // llama.cpp's

struct PplFlags {
  ModelFlags model;
  std::string file;
  int n_chunks = -1;
  bool json = false;
};

Status perplexity(const PplFlags& flags) {
  if (flags.n_chunks == 0 || flags.n_chunks < -1) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--chunks: got {}, want 1 or more, or -1 for all", flags.n_chunks)};
  }
  KVASIR_ASSIGN_OR_RETURN(engine::EngineOptions options, flags.model.engine_options());
  if (options.n_ctx == 0) options.n_ctx = kChunkTokens;
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_input(flags.file));
  KVASIR_ASSIGN_OR_RETURN(const auto engine, ModelFlags::load(options));
  ProgressBar bar("perplexity");
  const auto progress = [&](int done, int total, double so_far) {
    bar.update(static_cast<double>(done) / total,
               fmt::format("{}/{} chunks, {:.4f}", done, total, so_far));
  };
  KVASIR_ASSIGN_OR_RETURN(
      const eval::PerplexityReport report,
      eval::perplexity(*engine, text, {options.n_ctx, flags.n_chunks}, progress, &interrupted()));
  if (flags.json) {
    print(dump({{"schema_version", 1},
                {"perplexity", report.perplexity},
                {"standard_error", report.standard_error},
                {"nll_mean", report.nll_mean},
                {"n_ctx", options.n_ctx},
                {"n_chunks", report.n_chunks},
                {"n_scored", report.n_scored},
                {"n_tokens_text", report.n_tokens_text},
                {"chunk_nll", report.chunk_nll},
                {"seconds", report.seconds}}) +
          "\n");
  } else {
    print(fmt::format("perplexity {:.4f} +- {:.4f} ({} chunks of {} tokens, {} scored)\n",
                      report.perplexity, report.standard_error, report.n_chunks, options.n_ctx,
                      report.n_scored));
  }
  return {};
}

struct LogitsFlags {
  ModelFlags model;
  std::string ids, positions;
  bool json = false;
};

Status logits(const LogitsFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, parse_ids(flags.ids));
  KVASIR_ASSIGN_OR_RETURN(const auto engine, flags.model.load());
  std::vector<int> positions(ids.size());
  if (!flags.positions.empty()) {
    KVASIR_ASSIGN_OR_RETURN(
        positions, parse_numbers("--positions", flags.positions, 0, "positions such as 0,17"));
  } else {
    std::iota(positions.begin(), positions.end(), 0);
  }
  KVASIR_ASSIGN_OR_RETURN(const auto rows,
                          eval::logits_at(*engine, ids, positions, &interrupted()));
  std::vector<TokenId> argmax;
  for (const auto& row : rows) {
    argmax.push_back(static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  if (flags.json) {
    print(dump({{"positions", positions}, {"logits", rows}, {"argmax", argmax}}) + "\n");
    return {};
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    print(fmt::format("position {}: argmax {} (logit {:.6g})\n", positions[i], argmax[i],
                      rows[i][static_cast<std::size_t>(argmax[i])]));
  }
  return {};
}

struct ShiftedFlags {
  ModelFlags model;
  std::string file, shares = "0,5,15,30", rules = "first";
  eval::ShiftedOptions options;
  int first_tokens = engine::ShiftedReuse().first_tokens;
  bool json = false;
};

constexpr std::pair<const char*, engine::RecomputeRule> kRules[] = {
    {"first", engine::RecomputeRule::kFirst},
    {"last", engine::RecomputeRule::kLast},
    {"spread", engine::RecomputeRule::kSpread}};

/// Every rule with every share. Errors: kInvalidArgument.
Result<std::vector<engine::ShiftedReuse>> shifted_settings(const ShiftedFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(
      const std::vector<int> shares,
      parse_numbers("--shares", flags.shares, 0, "percents 0 to 100 such as 0,15,30"));
  std::vector<engine::ShiftedReuse> settings;
  std::string rest = flags.rules + ",";
  for (; !rest.empty(); rest.erase(0, rest.find(',') + 1)) {
    const std::string name = rest.substr(0, rest.find(','));
    const auto rule = std::find_if(std::begin(kRules), std::end(kRules),
                                   [&](const auto& entry) { return name == entry.first; });
    if (rule == std::end(kRules) || *std::max_element(shares.begin(), shares.end()) > 100) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--rules, --shares: got '{}' and {}, want first, last, spread and "
                               "percents up to 100",
                               name, flags.shares)};
    }
    for (const int share : shares) {
      engine::ShiftedReuse setting;
      setting.rule = rule->second;
      setting.share = share / 100.0;
      setting.first_tokens = flags.first_tokens;
      settings.push_back(setting);
    }
  }
  return settings;
}

const char* rule_name(engine::RecomputeRule rule) {
  return std::find_if(std::begin(kRules), std::end(kRules),
                      [&](const auto& entry) { return rule == entry.second; })
      ->first;
}

nlohmann::json to_json(const eval::ShiftedFigures& figures) {
  return {{"kld_mean", figures.kld_mean}, {"kld_median", figures.kld_median},
          {"kld_99", figures.kld_99},     {"kld_max", figures.kld_max},
          {"same_top", figures.same_top}, {"nll_mean", figures.nll_mean},
          {"seconds", figures.seconds},   {"seconds_ratio", figures.seconds_ratio},
          {"moved", figures.moved}};
}

std::string shifted_line(const std::string& name, const eval::ShiftedFigures& figures) {
  return fmt::format("{:<16} {:9.5f} {:9.5f} {:9.4f} {:8.2f}% {:8.4f} {:8.3f} {:6.2f} {:6.1f}%\n",
                     name, figures.kld_mean, figures.kld_median, figures.kld_99,
                     100 * figures.same_top, figures.nll_mean, figures.seconds,
                     figures.seconds_ratio, 100 * figures.moved);
}

Status shifted(ShiftedFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(flags.options.settings, shifted_settings(flags));
  KVASIR_ASSIGN_OR_RETURN(const engine::EngineOptions options, flags.model.engine_options());
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_input(flags.file));
  KVASIR_ASSIGN_OR_RETURN(const auto engine, ModelFlags::load(options));
  ProgressBar bar("shifted");
  const auto progress = [&](int done, int total) {
    bar.update(static_cast<double>(done) / total, fmt::format("{}/{} cases", done, total));
  };
  KVASIR_ASSIGN_OR_RETURN(
      const eval::ShiftedReport report,
      eval::shifted_reuse(*engine, text, flags.options, progress, &interrupted()));
  nlohmann::json rows = nlohmann::json::array();
  std::string table =
      fmt::format("{:<16} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>6} {:>7}\n", "computed anew",
                  "KLD mean", "median", "99 %", "same top", "NLL", "seconds", "ratio", "moved");
  for (std::size_t i = 0; i < report.settings.size(); ++i) {
    const engine::ShiftedReuse& setting = flags.options.settings[i];
    const char* rule = rule_name(setting.rule);
    table +=
        shifted_line(fmt::format("{} {:.0f} %", rule, 100 * setting.share), report.settings[i]);
    nlohmann::json row = to_json(report.settings[i]);
    row["rule"] = rule;
    row["share"] = setting.share;
    rows.push_back(std::move(row));
  }
  table += shifted_line("nothing changed", report.unchanged);
  table += fmt::format("exact: NLL {:.4f}, {:.3f} s to the first token; {} cases, {} tokens\n",
                       report.exact_nll, report.exact_seconds, report.n_cases, report.n_scored);
  const nlohmann::json json = {{"schema_version", 1},
                               {"n_cases", report.n_cases},
                               {"n_scored", report.n_scored},
                               {"exact_seconds", report.exact_seconds},
                               {"exact_nll", report.exact_nll},
                               {"unchanged", to_json(report.unchanged)},
                               {"settings", rows}};
  print(flags.json ? dump(json) + "\n" : table);
  return {};
}

}  // namespace

void add_eval(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* sub = app.add_subcommand("eval", "perplexity, logits, and what approximations cost");
  sub->require_subcommand(1);

  auto ppl_flags = std::make_shared<PplFlags>();
  CLI::App* ppl = sub->add_subcommand("ppl", "perplexity of a text, by llama.cpp's convention");
  ppl_flags->model.add(*ppl, ModelFlags::Set::kEngine);
  ppl->get_option("--ctx-size")->description(fmt::format("tokens of a chunk; 0: {}", kChunkTokens));
  ppl->add_option("-f,--file", ppl_flags->file, "the text; - : standard input")->required();
  ppl->add_option("--chunks", ppl_flags->n_chunks, "whole chunks at most; -1: all");
  ppl->add_flag("--json", ppl_flags->json, "one JSON object");
  ppl->footer(
      "Examples:\n"
      "  kvasir eval ppl -f text.txt                       chunks of 512 tokens\n"
      "  kvasir eval ppl -f text.txt -c 1024 --chunks 20\n"
      "  kvasir eval ppl -f text.txt --kv-type bf16        what a KV type costs\n"
      "Ctrl-C ends it with the figures of the chunks that are done; a second one ends it at "
      "once.\n");

  auto logits_flags = std::make_shared<LogitsFlags>();
  CLI::App* logits_app = sub->add_subcommand("logits", "logits after given token ids");
  logits_flags->model.add(*logits_app, ModelFlags::Set::kEngine);
  logits_app->add_option("--ids", logits_flags->ids, "token ids: 1,2,3")->required();
  logits_app->add_option("--positions", logits_flags->positions, "rows wanted: 0,17; default: all");
  logits_app->add_flag("--json", logits_flags->json, "one JSON object");
  logits_app->footer(
      "Examples:\n"
      "  kvasir eval logits --ids 1,2,3                    the likeliest after each\n"
      "  kvasir eval logits --ids 1,2,3 --positions 2 --json\n");
  auto shifted_flags = std::make_shared<ShiftedFlags>();
  eval::ShiftedOptions& options = shifted_flags->options;
  CLI::App* shifted_app = sub->add_subcommand(
      "shifted", "what --reuse-shifted costs and saves after a change early in a prompt");
  shifted_flags->model.add(*shifted_app, ModelFlags::Set::kEngine);
  shifted_app->add_option("-f,--file", shifted_flags->file, "the text; - : standard input")
      ->required();
  shifted_app->add_option("--shares", shifted_flags->shares,
                          "percents of what moves that are computed anew");
  shifted_app->add_option("--rules", shifted_flags->rules,
                          "which of it: first, last, spread, or several");
  shifted_app->add_option("--first-tokens", shifted_flags->first_tokens,
                          "computed anew at least, behind the change");
  shifted_app->add_option("--prompt-tokens", options.n_prompt, "tokens of a prompt");
  shifted_app->add_option("--scored", options.n_scored, "tokens behind it that are compared");
  shifted_app->add_option("--cases", options.n_cases, "prompts, spread over the text");
  shifted_app->add_option("--edit-tokens", options.n_edit_max,
                          "most tokens that a change inserts, replaces or deletes");
  shifted_app->add_flag("--repeat-change", options.repeats_change,
                        "compare where the changed place is repeated, not how the text goes on");
  shifted_app->add_flag("--json", shifted_flags->json, "one JSON object");
  shifted_app->footer(
      "Examples:\n"
      "  kvasir eval shifted -f text.txt\n"
      "  kvasir eval shifted -f text.txt --rules first,spread --shares 0,15,30\n");
  add_eval_kld(*sub, commands);
  add_eval_drift(*sub, commands);
  add_eval_attention(*sub, commands);
  add_eval_pareto(*sub, commands);
  sub->footer(
      "Examples:\n"
      "  kvasir eval ppl -f text.txt\n"
      "  kvasir eval kld -f text.txt --kv-type f16,bf16\n"
      "  kvasir eval logits --ids 1,2,3\n");

  commands.push_back({sub, [=] {
                        const Status status = ppl->parsed()          ? perplexity(*ppl_flags)
                                              : logits_app->parsed() ? logits(*logits_flags)
                                                                     : shifted(*shifted_flags);
                        return status ? done_or_interrupted() : report(status.error());
                      }});
}

}  // namespace kvasir::cli
