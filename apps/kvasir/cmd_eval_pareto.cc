// kvasir eval pareto: types of K and V by bytes, quality and decode speed: a table, a plot, a page.
#include <fmt/core.h>

#include <numeric>

#include "base/units.h"
#include "command.h"
#include "eval/pareto.h"
#include "eval/pareto_report.h"
#include "kv_formats.h"
#include "simd/cpu.h"

namespace kvasir::cli {
namespace {

constexpr int kChunkTokens = 2048;
constexpr int kMostRounds = 1000;

struct ParetoFlags {
  ModelFlags model;
  std::vector<std::string> files;
  std::string types = "f16,bf16,int8,int8-g64,int4,int4:tail=0,int4-3,int4-3:tail=0,int3";
  eval::KldOptions quality;
  eval::SpeedOptions speed{7600, 64, 3};
  std::string page, svg;
};

Error bad_value(const char* flag, int got, const std::string& want) {
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}: got {}, want {}", flag, got, want)};
}

/// What the flags ask for; the chunk's length is left to the engine's options.
Status read_flags(ParetoFlags& flags) {
  const int n_chunks = flags.quality.n_chunks;
  if (n_chunks == 0 || n_chunks < -1) {
    return bad_value("--chunks", n_chunks, "1 or more, or -1 for all");
  }
  const eval::SpeedOptions& speed = flags.speed;
  if (speed.n_depth < 0) return bad_value("--n-depth", speed.n_depth, "0 or more");
  if (speed.n_generate < 1) return bad_value("--n-gen", speed.n_generate, "1 or more");
  if (speed.n_prompt < 0) return bad_value("--n-prompt", speed.n_prompt, "0 or more");
  if (speed.n_rounds < 1 || speed.n_rounds > kMostRounds) {
    return bad_value("--repetitions", speed.n_rounds, fmt::format("1 to {}", kMostRounds));
  }
  KVASIR_ASSIGN_OR_RETURN(flags.quality.candidates, parse_kv_formats("--kv-types", flags.types));
  KVASIR_RETURN_IF_ERROR(check_output_file("--output", flags.page));
  if (flags.svg == flags.page) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--svg: got {}, want another file than --output", flags.svg)};
  }
  return flags.svg.empty() ? Status() : check_output_file("--svg", flags.svg);
}

/// Before minutes are spent on the other half. Errors: kExhausted.
Status check_depth(const engine::Engine& engine, const eval::SpeedOptions& speed) {
  const auto n = std::int64_t{speed.n_depth} + speed.n_timed();
  const int n_max = engine.model().config().n_ctx_train;
  if (n <= n_max) return {};
  return Error{ErrorCode::kExhausted,
               fmt::format("--n-depth, {}: got {} tokens, want at most the model's {}",
                           speed.n_prompt > 0 ? "--n-prompt" : "--n-gen", n, n_max)};
}

std::string name_of(const model::ModelConfig& config) {
  return config.architecture + (config.name.empty() ? "" : " " + config.name);
}

/// What a report says of the model and the machine; run_quality and run_speed add the rest.
eval::ReportSettings settings_of(const engine::Engine& engine) {
  const simd::CpuReport cpu = simd::cpu_report();
  const std::string caches = std::accumulate(
      cpu.caches.begin(), cpu.caches.end(), std::string(),
      [](const std::string& all, const std::string& one) { return all + ", " + one; });
  return {{"model", name_of(engine.model().config())},
          {"file", engine.options().model_path},
          {"weights in memory", format_bytes(engine.model().weight_bytes())},
          {"machine", cpu.brand + caches},
          {"SIMD", cpu.active_target},
          {"threads", std::to_string(engine.n_threads())},
          {"date", utc_time()},
          {"program", "kvasir " KVASIR_VERSION}};
}

std::string quality_text(const eval::KldReport& report, const ParetoFlags& flags,
                         const engine::EngineOptions& options) {
  std::string text = fmt::format(
      "base {}, act {}; {} chunk{} of {} tokens, {} scored (positions {} to {}); base perplexity "
      "{:.4f}; ",
      flags.quality.base.name, activation_name(options), report.n_chunks,
      report.n_chunks == 1 ? "" : "s", options.n_ctx, report.n_scored, report.first_scored,
      options.n_ctx - 2, report.all.front().base_perplexity);
  for (const eval::KldTextReport& one : report.texts) {
    text +=
        fmt::format("{}{} ({})", &one == report.texts.data() ? "" : ", ", one.name, one.n_chunks);
  }
  return text;
}

/// The engine it loads is gone at the end: the other half needs another one.
Result<eval::KldReport> run_quality(const ParetoFlags& flags, const engine::EngineOptions& options,
                                    eval::ReportSettings& settings, std::string& title) {
  std::vector<eval::KldText> texts;
  for (const std::string& file : flags.files) {
    KVASIR_ASSIGN_OR_RETURN(std::string text, read_input(file));
    texts.push_back({file == "-" ? "standard input" : file, std::move(text)});
  }
  KVASIR_ASSIGN_OR_RETURN(const auto engine, ModelFlags::load(options));
  KVASIR_RETURN_IF_ERROR(check_depth(*engine, flags.speed));
  note_formats(*engine, flags.quality.base, flags.quality.candidates, "chunks", options.n_ctx);
  ProgressBar bar("quality");
  const auto progress = [&](int done, int total, double perplexity) {
    bar.update(static_cast<double>(done) / total,
               fmt::format("{}/{} chunks, {:.4f}", done, total, perplexity));
  };
  KVASIR_ASSIGN_OR_RETURN(
      eval::KldReport report,
      eval::kld(*engine, Env::posix(), texts, flags.quality, progress, &interrupted()));
  title = "Types of cached K and V, " + name_of(engine->model().config());
  settings = settings_of(*engine);
  settings.emplace_back("quality", quality_text(report, flags, options));
  return report;
}

/// Empty after Ctrl-C.
Result<std::vector<eval::ThroughputRow>> run_speed(const ParetoFlags& flags,
                                                   engine::EngineOptions options,
                                                   eval::ReportSettings& settings) {
  if (interrupted()) return std::vector<eval::ThroughputRow>();
  options.activations = model::ActivationMode::kInt8;
  options.n_ctx = flags.speed.n_depth + flags.speed.n_timed();
  KVASIR_ASSIGN_OR_RETURN(const auto engine, ModelFlags::load(options));
  ProgressBar bar("speed");
  const auto progress = [&](int done, int total) {
    bar.update(static_cast<double>(done) / total, fmt::format("{}/{} runs", done, total));
  };
  auto rows =
      eval::format_speeds(*engine, flags.quality.candidates, flags.speed, progress, &interrupted());
  const bool is_stopped = !rows && rows.error().code == ErrorCode::kCancelled;
  if (is_stopped) return std::vector<eval::ThroughputRow>();
  if (!rows) return rows.error();
  settings.emplace_back(
      "speed",
      fmt::format("{} tokens {} after {}, act int8, {} interleaved round{}: "
                  "median, least and most of them",
                  flags.speed.n_timed(), flags.speed.n_prompt > 0 ? "of a prompt" : "one by one",
                  flags.speed.n_depth, rows->front().seconds.size(),
                  rows->front().seconds.size() == 1 ? "" : "s"));
  return rows;
}

Status write_file(const std::string& path, const std::string& text) {
  return Env::posix().write_file_atomic(
      path, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

Status run_pareto(ParetoFlags& flags) {
  KVASIR_RETURN_IF_ERROR(read_flags(flags));
  KVASIR_ASSIGN_OR_RETURN(engine::EngineOptions options, flags.model.engine_options());
  if (options.n_ctx == 0) options.n_ctx = kChunkTokens;
  flags.quality.n_ctx = options.n_ctx;
  eval::ReportSettings settings;
  std::string title;
  KVASIR_ASSIGN_OR_RETURN(const eval::KldReport quality,
                          run_quality(flags, options, settings, title));
  KVASIR_ASSIGN_OR_RETURN(const auto speeds, run_speed(flags, options, settings));
  const auto rows = eval::pareto_rows(quality, flags.quality.candidates, speeds);
  std::string text;
  for (const auto& [name, value] : settings) {
    text += fmt::format("{:<18}{}\n", name, printable(value));
  }
  print(text + "\n" + eval::pareto_table(rows));
  KVASIR_RETURN_IF_ERROR(write_file(flags.page, eval::pareto_page(rows, settings, title)));
  return flags.svg.empty() ? Status() : write_file(flags.svg, eval::pareto_plot(rows, title));
}

}  // namespace

void add_eval_pareto(CLI::App& eval, std::vector<Command>& commands) {
  auto flags = std::make_shared<ParetoFlags>();
  CLI::App* sub = eval.add_subcommand(
      "pareto", "bytes, quality and decode speed of types of K and V: table, plot, page");
  flags->model.add(*sub, ModelFlags::Set::kAnyKvType);
  sub->get_option("--ctx-size")->description(fmt::format("tokens of a chunk; 0: {}", kChunkTokens));
  sub->get_option("--act")
      ->description("activations where quality is measured: f32 or int8; speed has int8")
      ->run_callback_for_default()
      ->default_val("f32");
  sub->add_option("-f,--file", flags->files, "a text; may be given several times; - : stdin")
      ->allow_extra_args(false)
      ->required();
  sub->add_option("--kv-types", flags->types, "types to compare, as of `eval kld`");
  sub->add_option("--chunks", flags->quality.n_chunks,
                  "whole chunks of each text at most; -1: all");
  sub->add_option("-d,--n-depth", flags->speed.n_depth, "history that speed is measured after");
  auto* generate = sub->add_option("-n,--n-gen", flags->speed.n_generate, "tokens that are timed");
  sub->add_option("-p,--n-prompt", flags->speed.n_prompt,
                  "time a prompt of so many tokens instead; 0: none")
      ->excludes(generate);
  sub->add_option("-r,--repetitions", flags->speed.n_rounds, "timed rounds over all types");
  sub->add_option("-o,--output", flags->page, "the page: HTML, with the plot in it")->required();
  sub->add_option("--svg", flags->svg, "the plot alone");
  sub->add_option("--resume", flags->quality.checkpoint,
                  "keep finished chunks in this file, and do not compute those it has");
  sub->footer(
      "Examples:\n"
      "  kvasir eval pareto -f text.txt -o kv.html --svg kv.svg\n"
      "  kvasir eval pareto -f a.txt -f b.txt --kv-types f16,int8,int4 -d 2000 -o kv.html\n"
      "  kvasir eval pareto -f text.txt --chunks 1 -d 0 -p 512 -r 100 -o prefill.html\n"
      "Quality is that of `eval kld` against f32, speed that of `bench`. Ctrl-C ends it with what\n"
      "is done; --resume goes on with the quality.\n");
  commands.push_back({sub, [flags] {
                        const Status status = run_pareto(*flags);
                        return status ? done_or_interrupted() : report(status.error());
                      }});
}

}  // namespace kvasir::cli
