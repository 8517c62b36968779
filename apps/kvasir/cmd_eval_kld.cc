// kvasir eval kld: what types of cached K and V cost, against a base.
#include <fmt/core.h>

#include <cmath>

#include "command.h"
#include "eval/kld.h"
#include "kv_formats.h"

namespace kvasir::cli {
namespace {

constexpr int kChunkTokens = 2048;

struct KldFlags {
  ModelFlags model;
  std::vector<std::string> files;
  std::string base = "f32", candidates, score = "half";
  eval::KldOptions options;
  bool json = false;
};

nlohmann::json to_json(const eval::KldReport& report, const eval::KvFormat& format,
                       const eval::KldFigures& figures) {
  const double bits = report.bits_per_value(figures);
  nlohmann::json row = {{"n_scored", figures.n_scored},
                        {"base_perplexity", figures.base_perplexity},
                        {"perplexity_excess", figures.excess},
                        {"perplexity_excess_error_tokens", figures.token_error},
                        {"perplexity_excess_error_blocks", nullptr},
                        {"n_blocks", figures.n_blocks},
                        {"block_tokens", eval::kBlockTokens},
                        {"perplexity_excess_95", {figures.excess_low, figures.excess_high}},
                        {"kld_mean", figures.kld_mean},
                        {"kld_mean_error", figures.kld_error},
                        {"kld_median", figures.kld_median},
                        {"kld_99", figures.kld_99},
                        {"kld_999", figures.kld_999},
                        {"kld_max", figures.kld_max},
                        {"same_top", figures.same_top},
                        {"delta_p_rms", figures.delta_p_rms},
                        {"kv_bytes", figures.bytes},
                        {"bits_per_value", bits},
                        {"share_of_f16", bits / 16}};
  add_name(row, format);
  if (!std::isnan(figures.block_error)) {
    row["perplexity_excess_error_blocks"] = figures.block_error;
  }
  return row;
}

nlohmann::json rows_json(const eval::KldReport& report, const eval::KldOptions& options,
                         const std::vector<eval::KldFigures>& figures) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < figures.size(); ++i) {
    rows.push_back(to_json(report, options.candidates[i], figures[i]));
  }
  return rows;
}

nlohmann::json to_json(const eval::KldReport& report, const eval::KldOptions& options,
                       const engine::EngineOptions& engine) {
  nlohmann::json texts = nlohmann::json::array();
  for (const eval::KldTextReport& text : report.texts) {
    texts.push_back({{"file", text.name},
                     {"n_tokens_text", text.n_tokens},
                     {"n_chunks", text.n_chunks},
                     {"rows", rows_json(report, options, text.figures)}});
  }
  nlohmann::json json = comparison_json(engine, options.base);
  json.update({{"n_ctx", options.n_ctx},
               {"first_scored", report.first_scored},
               {"n_chunks", report.n_chunks},
               {"n_chunks_resumed", report.n_chunks_resumed},
               {"n_scored", report.n_scored},
               {"page_tokens", engine.page_tokens},
               {"n_values", report.n_values},
               {"seconds", report.seconds},
               {"rows", rows_json(report, options, report.all)},
               {"files", texts}});
  return json;
}

/// Fixed digits, but "0" for an exact zero, which no rounding can then be taken for.
std::string divergence_text(double value) {
  return value == 0 ? "0" : fmt::format("{:.3g}", value);
}

/// `name`: the first cells.
std::string line_of(const eval::KldReport& report, const std::string& name,
                    const eval::KldFigures& figures) {
  const double bits = report.bits_per_value(figures);
  const std::string interval =
      fmt::format("{:+.3f} to {:+.3f}", 100 * figures.excess_low, 100 * figures.excess_high);
  const std::string blocks =
      std::isnan(figures.block_error) ? "-" : fmt::format("{:.3f}", 100 * figures.block_error);
  return fmt::format(
      "{}{:>7.3f}{:>7.2f}{:>9.3f}{:>7.3f}{:>7}{:>18}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8.2f}"
      "{:>8.3f}\n",
      name, bits, 100 * bits / 16, 100 * figures.excess, 100 * figures.token_error, blocks,
      interval, divergence_text(figures.kld_mean), divergence_text(figures.kld_median),
      divergence_text(figures.kld_99), divergence_text(figures.kld_999),
      divergence_text(figures.kld_max), 100 * figures.same_top, 100 * figures.delta_p_rms);
}

std::string table_of(const eval::KldReport& report, const eval::KldOptions& options,
                     const engine::EngineOptions& engine) {
  const eval::KldFigures& first = report.all.front();
  std::string table = fmt::format(
      "base {}: perplexity {:.4f}; {} chunk{} of {} tokens, {} scored (positions {} to {}), act "
      "{}\n"
      "errors: tokens paired; blocks of {} tokens ({}); 95 % by the larger one; KLD in nats\n\n"
      "{}{:>7}{:>7}{:>9}{:>7}{:>7}{:>18}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}{:>8}\n",
      shown_name(options.base), first.base_perplexity, report.n_chunks,
      report.n_chunks == 1 ? "" : "s", options.n_ctx, report.n_scored, report.first_scored,
      options.n_ctx - 2, activation_name(engine), eval::kBlockTokens, first.n_blocks,
      name_cells(options.candidates), "bits", "% f16", "dPPL %", "token", "block", "95 %",
      "KLD mean", "median", "99 %", "99.9 %", "max", "top %", "dp %");
  const auto add_rows = [&](const std::vector<eval::KldFigures>& figures) {
    for (std::size_t i = 0; i < figures.size(); ++i) {
      const std::string name = name_cells(options.candidates, &options.candidates[i]);
      table += line_of(report, name, figures[i]);
    }
  };
  add_rows(report.all);
  if (report.texts.size() < 2) return table;
  for (const eval::KldTextReport& text : report.texts) {
    table += fmt::format("\n{}: perplexity {:.4f}; {} chunk{}, {} scored\n", printable(text.name),
                         text.figures.front().base_perplexity, text.n_chunks,
                         text.n_chunks == 1 ? "" : "s", text.figures.front().n_scored);
    add_rows(text.figures);
  }
  return table;
}

/// What the flags ask for; the chunk's length is left to the engine's options.
Status read_flags(KldFlags& flags) {
  if (flags.options.n_chunks == 0 || flags.options.n_chunks < -1) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("--chunks: got {}, want 1 or more, or -1 for all", flags.options.n_chunks)};
  }
  if (flags.score != "half" && flags.score != "all") {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--score: got '{}', want half or all", flags.score)};
  }
  flags.options.scores_all = flags.score == "all";
  KVASIR_ASSIGN_OR_RETURN(flags.options.base, parse_kv_format("--base-kv", flags.base));
  KVASIR_ASSIGN_OR_RETURN(flags.options.candidates,
                          parse_kv_formats("--kv-type", flags.candidates));
  return {};
}

Status run_kld(KldFlags& flags) {
  KVASIR_RETURN_IF_ERROR(read_flags(flags));
  KVASIR_ASSIGN_OR_RETURN(engine::EngineOptions options, flags.model.engine_options());
  if (options.n_ctx == 0) options.n_ctx = kChunkTokens;
  flags.options.n_ctx = options.n_ctx;
  std::vector<eval::KldText> texts;
  for (const std::string& file : flags.files) {
    KVASIR_ASSIGN_OR_RETURN(std::string text, read_input(file));
    texts.push_back({file == "-" ? "standard input" : file, std::move(text)});
  }
  KVASIR_ASSIGN_OR_RETURN(const auto engine, ModelFlags::load(options));
  note_formats(*engine, flags.options.base, flags.options.candidates, "chunks", options.n_ctx);
  ProgressBar bar("kld");
  const auto progress = [&](int done, int total, double perplexity) {
    bar.update(static_cast<double>(done) / total,
               fmt::format("{}/{} chunks, {:.4f}", done, total, perplexity));
  };
  KVASIR_ASSIGN_OR_RETURN(
      const eval::KldReport report,
      eval::kld(*engine, Env::posix(), texts, flags.options, progress, &interrupted()));
  print(flags.json ? dump(to_json(report, flags.options, options)) + "\n"
                   : table_of(report, flags.options, options));
  return {};
}

}  // namespace

void add_eval_kld(CLI::App& eval, std::vector<Command>& commands) {
  auto flags = std::make_shared<KldFlags>();
  CLI::App* sub = eval.add_subcommand(
      "kld", "what types of cached K and V cost: KLD, perplexity, bytes against a base");
  flags->model.add(*sub, ModelFlags::Set::kAnyKvType);
  sub->get_option("--ctx-size")->description(fmt::format("tokens of a chunk; 0: {}", kChunkTokens));
  sub->add_option("-f,--file", flags->files, "a text; may be given several times; - : stdin")
      ->allow_extra_args(false)
      ->required();
  add_kv_comparison(*sub, flags->base, flags->candidates);
  sub->add_option("--chunks", flags->options.n_chunks,
                  "whole chunks of each text at most; -1: all");
  sub->add_option(
      "--score", flags->score,
      fmt::format("half: each chunk's second half; all: from position {} on", eval::kFirstOfAll));
  sub->add_option("--resume", flags->options.checkpoint,
                  "keep finished chunks in this file, and do not compute those it has");
  sub->add_flag("--json", flags->json, "one JSON object");
  sub->footer(
      "Examples:\n"
      "  kvasir eval kld -f text.txt --kv-type f16,bf16\n"
      "  kvasir eval kld -f a.txt -f b.txt --kv-type bf16 -c 8192 --score all --resume run.jsonl\n"
      "Bits per value are all-in: pages in use at a chunk's end with metadata and padding, and "
      "their\n"
      "tables. Ctrl-C ends it with the figures of the chunks that are done.\n");
  commands.push_back({sub, [flags] {
                        const Status status = run_kld(*flags);
                        return status ? done_or_interrupted() : report(status.error());
                      }});
}

}  // namespace kvasir::cli
