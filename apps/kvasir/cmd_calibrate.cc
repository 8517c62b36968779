// kvasir calibrate: what is measured of a model once and kept beside it.
#include <fmt/core.h>

#include <algorithm>

#include "command.h"
#include "eval/calibrate.h"

namespace kvasir::cli {
namespace {

constexpr int kChunkTokens = 2048;

struct CalibrateFlags {
  ModelFlags model;
  std::vector<std::string> files;
  std::string output;
  eval::CalibrateOptions options;
  bool json = false;
};

std::vector<int> bits_of(const std::vector<cache::LayerCodecs>& plan, bool is_v) {
  std::vector<int> bits;
  for (const cache::LayerCodecs& codecs : plan) {
    bits.push_back(cache::codec_bits(is_v ? codecs.v : codecs.k));
  }
  return bits;
}

double mean_bits(const std::vector<cache::LayerCodecs>& plan) {
  double sum = 0;
  for (const cache::LayerCodecs& codecs : plan) {
    sum += cache::codec_bits(codecs.k) + cache::codec_bits(codecs.v);
  }
  return sum / static_cast<double>(2 * plan.size());
}

nlohmann::json to_json(const engine::DamageByBits& damages) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [bits, by_layer] : damages) json[std::to_string(bits)] = by_layer;
  return json;
}

nlohmann::json to_json(const eval::CalibrateReport& report, const CalibrateFlags& flags,
                       const engine::EngineOptions& engine) {
  nlohmann::json plans = nlohmann::json::object();
  for (const auto& [name, plan] : report.calibration.plans) {
    plans[name] = {{"k", bits_of(plan, false)},
                   {"v", bits_of(plan, true)},
                   {"mean_bits", mean_bits(plan)},
                   {"share_of_f16", report.shares.at(name)}};
  }
  return {{"schema_version", 1},
          {"model", engine.model_path},
          {"file", flags.output},
          {"act", "f32"},
          {"n_ctx", flags.options.n_ctx},
          {"n_chunks", report.n_chunks},
          {"first_scored", report.first_scored},
          {"n_scored", report.n_scored},
          {"measured", {{"k", {3, 4}}, {"v", {3}}}},
          {"damage_k", to_json(report.calibration.damage_k)},
          {"damage_v", to_json(report.calibration.damage_v)},
          {"plans", plans},
          {"seconds", report.seconds}};
}

std::string table_of(const eval::CalibrateReport& report, const CalibrateFlags& flags) {
  const engine::KvCalibration& made = report.calibration;
  std::string table = fmt::format(
      "KLD in nats when one side of one layer alone has 3 or 4 bits, all else being f32;\n"
      "{} chunk{} of {} tokens, {} scored, act f32, {:.0f} s\n\n{:>5}{:>11}{:>11}{:>11}",
      report.n_chunks, report.n_chunks == 1 ? "" : "s", flags.options.n_ctx, report.n_scored,
      report.seconds, "layer", "K 3 bits", "K 4 bits", "V 3 bits");
  for (const auto& [name, plan] : made.plans) table += fmt::format("{:>9}", name);
  table += "\n";
  const auto& k3 = made.damage_k.at(3);
  for (std::size_t layer = 0; layer < k3.size(); ++layer) {
    table += fmt::format("{:>5}{:>11.2e}{:>11.2e}{:>11.2e}", layer, k3[layer],
                         made.damage_k.at(4)[layer], made.damage_v.at(3)[layer]);
    for (const auto& [name, plan] : made.plans) {
      table += fmt::format("{:>9}", fmt::format("K{} V{}", cache::codec_bits(plan[layer].k),
                                                cache::codec_bits(plan[layer].v)));
    }
    table += "\n";
  }
  table += "\n";
  for (const auto& [name, plan] : made.plans) {
    table += fmt::format("{:<7} mean {:.2f} bits, {:.1f} % of f16 at {} tokens\n", name,
                         mean_bits(plan), 100 * report.shares.at(name), engine::kShareTokens);
  }
  return table + fmt::format("\nin {}\n", printable(flags.output));
}

Status calibrate_kv(CalibrateFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(engine::EngineOptions options, flags.model.engine_options());
  options.activations = model::ActivationMode::kFloat32;
  if (options.n_ctx == 0) options.n_ctx = kChunkTokens;
  flags.options.n_ctx = options.n_ctx;
  const std::string beside = engine::calibration_path(options.model_path);
  if (flags.output.empty()) flags.output = beside;
  KVASIR_RETURN_IF_ERROR(check_output_file("--output", flags.output));
  std::vector<eval::KldText> texts;
  for (const std::string& file : flags.files) {
    KVASIR_ASSIGN_OR_RETURN(std::string text, read_input(file));
    texts.push_back({file == "-" ? "standard input" : file, std::move(text)});
  }
  KVASIR_ASSIGN_OR_RETURN(const auto engine, ModelFlags::load(options));
  ProgressBar bar("calibrating");
  KVASIR_ASSIGN_OR_RETURN(
      const eval::CalibrateReport report,
      eval::calibrate_kv(
          *engine, texts, flags.options, [&](double share) { bar.update(share); }, &interrupted()));
  const std::string text = engine::text_of(report.calibration);
  KVASIR_RETURN_IF_ERROR(Env::posix().write_file_atomic(
      flags.output, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
  print(flags.json ? dump(to_json(report, flags, options)) + "\n" : table_of(report, flags));
  if (flags.output != beside) {
    say("kvasir: note: it serves this model once it is at {}\n", printable(beside));
  }
  return {};
}

}  // namespace

void add_calibrate(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "measures a model once, for better use of few bits");
  calibrate->require_subcommand(1);
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* sub = calibrate->add_subcommand(
      "kv", "which layers' K and V suffer from few bits: makes MODEL.kv, for int4, int4-3, int3");
  flags->model.add(*sub, ModelFlags::Set::kAnyKvType);
  // What is measured does not depend on them, or they are what it needs.
  for (const char* const name : {"--act", "--page-tokens", "--kv-heads", "--kv-pool"}) {
    sub->remove_option(sub->get_option(name));
  }
  sub->get_option("--ctx-size")
      ->description(fmt::format("tokens of a chunk, {} or more; 0: {}",
                                eval::kLeastCalibrationTokens, kChunkTokens));
  sub->add_option("-f,--file", flags->files, "a text; may be given several times; - : stdin")
      ->allow_extra_args(false)
      ->required();
  sub->add_option("--chunks", flags->options.n_chunks,
                  "chunks of all texts together, spread over them; at least one of each");
  sub->add_option("-o,--output", flags->output, "where to (default: the model's path and .kv)");
  sub->add_flag("--json", flags->json, "one JSON object");
  const char* const examples =
      "Examples:\n"
      "  kvasir calibrate kv -f a.txt -f b.txt\n"
      "  kvasir run --kv-type int4-3 \"Why is the sky blue?\"     uses it\n";
  calibrate->footer(examples);
  sub->footer(
      std::string(examples) +
      "K is measured with 3 and 4 bits, V with 3; of a bit more a quarter of the damage is\n"
      "assumed. Give texts like those that the model will read. After Ctrl-C nothing is "
      "written.\n");
  commands.push_back({sub, [flags] {
                        const Status status = calibrate_kv(*flags);
                        return status ? Exit::kOk : report(status.error());
                      }});
}

}  // namespace kvasir::cli
