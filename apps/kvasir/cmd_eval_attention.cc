// kvasir eval attention: how far attention's output over other types of K and V is off, by head.
#include <fmt/core.h>

#include "command.h"
#include "eval/attention_error.h"
#include "kv_formats.h"

namespace kvasir::cli {
namespace {

constexpr int kChunkTokens = 2048;

struct AttentionFlags {
  ModelFlags model;
  std::string file, base = "f32", candidates;
  eval::AttentionErrorOptions options;
  bool json = false;
};

nlohmann::json to_json(const eval::AttentionErrors& errors, int n_layers,
                       const eval::KvFormat& format) {
  nlohmann::json layers = nlohmann::json::array();
  for (int layer = 0; layer < n_layers; ++layer) {
    const eval::RelativeError& whole = errors.layers[static_cast<std::size_t>(layer)];
    std::vector<double> rms, mean;
    for (int head = 0; head < errors.n_heads; ++head) {
      rms.push_back(errors.head(layer, head).rms);
      mean.push_back(errors.head(layer, head).mean);
    }
    layers.push_back({{"error", whole.rms},
                      {"token_mean", whole.mean},
                      {"worst_head", errors.worst_head(layer)},
                      {"head_error", rms},
                      {"head_token_mean", mean}});
  }
  nlohmann::json json = {{"layers", layers}};
  add_name(json, format);
  return json;
}

nlohmann::json to_json(const eval::AttentionErrorReport& report,
                       const eval::AttentionErrorOptions& options,
                       const engine::EngineOptions& engine) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < report.candidates.size(); ++i) {
    rows.push_back(to_json(report.candidates[i], report.n_layers, options.candidates[i]));
  }
  nlohmann::json json = comparison_json(engine, options.base);
  json.update({{"n_ctx", options.n_ctx},
               {"first_scored", report.first_scored},
               {"n_chunks", report.n_chunks},
               {"n_scored", report.n_scored},
               {"n_layers", report.n_layers},
               {"n_heads", report.n_heads},
               {"seconds", report.seconds},
               {"rows", rows}});
  return json;
}

/// A table for each type, a line for each layer.
std::string table_of(const eval::AttentionErrorReport& report,
                     const eval::AttentionErrorOptions& options,
                     const engine::EngineOptions& engine) {
  std::string table = fmt::format(
      "attention output against {}: ||difference|| / ||base||; {} chunk{} of {} tokens, {} scored "
      "(positions {} to {}), act {}\n",
      shown_name(options.base), report.n_chunks, report.n_chunks == 1 ? "" : "s", options.n_ctx,
      report.n_scored, report.first_scored, options.n_ctx - 2, activation_name(engine));
  for (std::size_t i = 0; i < report.candidates.size(); ++i) {
    const eval::AttentionErrors& errors = report.candidates[i];
    table += fmt::format("\n{}\n{:>5}{:>11}{:>12}{:>12}{:>13}\n", shown_name(options.candidates[i]),
                         "layer", "error", "token mean", "worst head", "its error");
    for (int layer = 0; layer < report.n_layers; ++layer) {
      const eval::RelativeError& whole = errors.layers[static_cast<std::size_t>(layer)];
      const int worst = errors.worst_head(layer);
      table += fmt::format("{:>5}{:>11.3g}{:>12.3g}{:>12}{:>13.3g}\n", layer, whole.rms, whole.mean,
                           worst, errors.head(layer, worst).rms);
    }
  }
  return table;
}

Status run_attention(AttentionFlags& flags) {
  eval::AttentionErrorOptions& wanted = flags.options;
  if (wanted.n_chunks == 0 || wanted.n_chunks < -1) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--chunks: got {}, want 1 or more, or -1 for all", wanted.n_chunks)};
  }
  KVASIR_ASSIGN_OR_RETURN(wanted.base, parse_kv_format("--base-kv", flags.base));
  KVASIR_ASSIGN_OR_RETURN(wanted.candidates, parse_kv_formats("--kv-type", flags.candidates));
  KVASIR_ASSIGN_OR_RETURN(engine::EngineOptions options, flags.model.engine_options());
  if (options.n_ctx == 0) options.n_ctx = kChunkTokens;
  wanted.n_ctx = options.n_ctx;
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_input(flags.file));
  KVASIR_ASSIGN_OR_RETURN(const auto engine, ModelFlags::load(options));
  note_formats(*engine, wanted.base, wanted.candidates, "chunks", options.n_ctx);
  ProgressBar bar("attention");
  const auto progress = [&](int done, int total) {
    bar.update(static_cast<double>(done) / total, fmt::format("{}/{} chunks", done, total));
  };
  KVASIR_ASSIGN_OR_RETURN(const eval::AttentionErrorReport report,
                          eval::attention_error(*engine, text, wanted, progress, &interrupted()));
  print(flags.json ? dump(to_json(report, wanted, options)) + "\n"
                   : table_of(report, wanted, options));
  return {};
}

}  // namespace

void add_eval_attention(CLI::App& eval, std::vector<Command>& commands) {
  auto flags = std::make_shared<AttentionFlags>();
  CLI::App* sub = eval.add_subcommand(
      "attention", "how far attention's output is off over types of cached K and V, by head");
  flags->model.add(*sub, ModelFlags::Set::kAnyKvType);
  sub->get_option("--ctx-size")->description(fmt::format("tokens of a chunk; 0: {}", kChunkTokens));
  sub->add_option("-f,--file", flags->file, "the text; - : standard input")->required();
  add_kv_comparison(*sub, flags->base, flags->candidates);
  sub->add_option("--chunks", flags->options.n_chunks, "whole chunks at most; -1: all");
  sub->add_flag("--json", flags->json, "one JSON object, with every head");
  sub->footer(
      "Examples:\n"
      "  kvasir eval attention -f text.txt --kv-type f16,int8 --act f32\n"
      "  kvasir eval attention -f text.txt --kv-type int4 --chunks 2 --json\n"
      "The second half of each chunk is scored. Every type runs the whole model, so a layer's\n"
      "error holds what the layers below it have passed on. Ctrl-C ends it with the chunks that "
      "are done.\n");
  commands.push_back({sub, [flags] {
                        const Status status = run_attention(*flags);
                        return status ? done_or_interrupted() : report(status.error());
                      }});
}

}  // namespace kvasir::cli
