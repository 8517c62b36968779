// kvasir bench: tokens per second at depth, in llama-bench's columns, and what the KV cache saves.
#include <fmt/core.h>

#include <algorithm>

#include "base/units.h"
#include "command.h"
#include "eval/throughput.h"
#include "simd/cpu.h"

namespace kvasir::cli {
namespace {

constexpr const char* kCounts = "counts such as 0,512";

struct BenchFlags {
  ModelFlags model;
  std::string n_prompt = "512", n_generate = "128", n_depth = "0";
  std::string n_sequences = "1";
  std::string lengths = "128,256,512,1024,2048";
  int n_repetitions = 5;
  bool with_roofline = false;
  bool no_kv_cache = false;
  std::string output = "md";
};

/// What every row says about the machine and the model.
struct Setting {
  std::string file, type, cpu, kv_type_k, kv_type_v, time;
  std::uint64_t size = 0;
  double n_params = 0;
  int n_threads = 0, n_batch = 0, page_tokens = 0;
};

Setting setting_of(const engine::Engine& engine, const ModelFlags& flags) {
  Setting setting;
  const model::ModelConfig& config = engine.model().config();
  setting.file = engine.options().model_path;
  setting.type = config.architecture + (config.name.empty() ? "" : " " + config.name);
  setting.cpu = simd::cpu_report().brand;
  setting.kv_type_k = flags.kv_type_k();
  setting.kv_type_v = flags.kv_type_v();
  setting.size = engine.model().weight_bytes();
  setting.n_params = engine.model().multiply_adds(0);
  setting.n_threads = engine.n_threads();
  setting.n_batch = engine.options().n_batch;
  setting.page_tokens = engine.options().page_tokens;
  setting.time = utc_time();
  return setting;
}

void print_markdown(const Setting& setting, const std::vector<eval::ThroughputRow>& rows) {
  print(fmt::format("{}, {} threads, {} repetitions\n\n", setting.cpu, setting.n_threads,
                    rows.empty() ? 0 : rows.front().seconds.size()));
  print("| model | weights | params | threads | type_k | type_v | test | t/s | median t/s |\n");
  print("| --- | ---: | ---: | ---: | --- | --- | --- | ---: | ---: |\n");
  for (const eval::ThroughputRow& row : rows) {
    print(fmt::format("| {} | {} | {:.1f} M | {} | {} | {} | {} | {:.2f} +- {:.2f} | {:.2f} |\n",
                      setting.type, format_bytes(setting.size), setting.n_params / 1e6,
                      setting.n_threads, setting.kv_type_k, setting.kv_type_v, row.test_name(),
                      row.mean_rate(), row.deviation_rate(), row.median_rate()));
  }
}

void print_rooflines(const std::vector<eval::ThroughputRow>& rows) {
  print(
      "\n| test | median t/s | limit t/s | of limit | barrier | read | byte dots | f32 FMA | bf16 "
      "|\n");
  print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const eval::ThroughputRow& row : rows) {
    const eval::Roofline& roofline = *row.roofline;
    const auto rate = [](double value, double unit, const char* name) {
      return value > 0 ? fmt::format("{:.1f} {}", value / unit, name) : std::string("-");
    };
    print(fmt::format("| {} | {:.1f} | {:.1f} | {:.1f} % | {:.0f} ns | {} | {} | {} | {} |\n",
                      row.test_name(), row.median_rate(), row.n_tokens() / roofline.limit_seconds,
                      100 * row.share_of_limit(), 1e9 * roofline.barrier_seconds,
                      rate(roofline.read_rate, 1e9, "GB/s"),
                      rate(2 * roofline.integer_rate, 1e9, "GOP/s"),
                      rate(2 * roofline.float_rate, 1e9, "GFLOP/s"),
                      rate(2 * roofline.bf16_rate, 1e9, "GFLOP/s")));
  }
}

nlohmann::json roofline_json(const eval::ThroughputRow& row) {
  const eval::Roofline& roofline = *row.roofline;
  return {{"limit_ts", row.n_tokens() / roofline.limit_seconds},
          {"share_of_limit", row.share_of_limit()},
          {"barrier_ns", 1e9 * roofline.barrier_seconds},
          {"read_bytes_per_s", roofline.read_rate},
          {"integer_ops_per_s", 2 * roofline.integer_rate},
          {"float_ops_per_s", 2 * roofline.float_rate},
          {"bf16_ops_per_s", 2 * roofline.bf16_rate}};
}

nlohmann::json row_json(const Setting& setting, const eval::ThroughputRow& row) {
  std::vector<double> rates, nanoseconds;
  double sum = 0;
  for (const double seconds : row.seconds) {
    rates.push_back(row.n_tokens() / seconds);
    nanoseconds.push_back(seconds * 1e9);
    sum += seconds * 1e9;
  }
  return {{"cpu_info", setting.cpu},
          {"model_filename", setting.file},
          {"model_type", setting.type},
          {"model_size", setting.size},
          {"n_batch", setting.n_batch},
          {"n_threads", setting.n_threads},
          {"type_k", setting.kv_type_k},
          {"type_v", setting.kv_type_v},
          {"page_tokens", setting.page_tokens},
          {"n_prompt", row.n_prompt},
          {"n_gen", row.n_generate},
          {"n_depth", row.n_depth},
          {"n_sequences", row.n_sequences},
          {"test", row.test_name()},
          {"test_time", setting.time},
          {"avg_ns", sum / static_cast<double>(row.seconds.size())},
          {"avg_ts", row.mean_rate()},
          {"stddev_ts", row.deviation_rate()},
          {"median_ts", row.median_rate()},
          {"samples_ns", nanoseconds},
          {"samples_ts", rates}};
}

Result<eval::ThroughputOptions> row_options(const BenchFlags& flags) {
  eval::ThroughputOptions options;
  options.n_repetitions = flags.n_repetitions;
  options.with_roofline = flags.with_roofline;
  KVASIR_ASSIGN_OR_RETURN(options.n_prompt,
                          parse_numbers("--n-prompt", flags.n_prompt, 0, kCounts));
  KVASIR_ASSIGN_OR_RETURN(options.n_generate,
                          parse_numbers("--n-gen", flags.n_generate, 0, kCounts));
  KVASIR_ASSIGN_OR_RETURN(options.n_depth, parse_numbers("--n-depth", flags.n_depth, 0, kCounts));
  KVASIR_ASSIGN_OR_RETURN(options.n_sequences, parse_numbers("--batch", flags.n_sequences, 1,
                                                             "counts above 0 such as 1,8"));
  const auto has_work = [](const std::vector<int>& counts) {
    return std::any_of(counts.begin(), counts.end(), [](int count) { return count > 0; });
  };
  if (!has_work(options.n_prompt) && !has_work(options.n_generate)) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("bench: nothing to measure; got --n-prompt {} and --n-gen {}, want one "
                    "above 0",
                    flags.n_prompt, flags.n_generate)};
  }
  const bool is_several =
      *std::max_element(options.n_sequences.begin(), options.n_sequences.end()) > 1;
  if (is_several && !has_work(options.n_generate)) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--batch: sequences generate together; got {} and --n-gen {}, want "
                             "tokens to generate",
                             flags.n_sequences, flags.n_generate)};
  }
  return options;
}

Status bench_rows(const BenchFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const eval::ThroughputOptions options, row_options(flags));
  KVASIR_ASSIGN_OR_RETURN(const auto loaded, flags.model.load());
  engine::Engine& engine = *loaded;
  ProgressBar bar("bench");
  const auto progress = [&](const std::string& note) { bar.update(0, note); };
  KVASIR_ASSIGN_OR_RETURN(const eval::ThroughputReport done,
                          eval::throughput(engine, options, progress, &interrupted()));
  const Setting setting = setting_of(engine, flags.model);
  if (flags.output == "md") {
    print_markdown(setting, done.rows);
    if (flags.with_roofline) print_rooflines(done.rows);
  } else {
    nlohmann::json all = nlohmann::json::array();
    for (const eval::ThroughputRow& row : done.rows) {
      all.push_back(row_json(setting, row));
      if (row.roofline) all.back()["roofline"] = roofline_json(row);
    }
    print(dump(all) + "\n");
  }
  if (done.error) return *done.error;  // after what was done before
  return {};
}

Status bench_saving(const BenchFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(
      const std::vector<int> lengths,
      parse_numbers("--lengths", flags.lengths, 2, "counts of 2 or more, such as 128,1024"));
  KVASIR_ASSIGN_OR_RETURN(const auto loaded, flags.model.load());
  engine::Engine& engine = *loaded;
  ProgressBar bar("bench");
  const auto progress = [&](const std::string& note) { bar.update(0, note); };
  KVASIR_ASSIGN_OR_RETURN(
      const auto savings,
      eval::cache_saving(engine, lengths, flags.n_repetitions, progress, &interrupted()));
  const Setting setting = setting_of(engine, flags.model);
  nlohmann::json all = nlohmann::json::array();
  std::string table = fmt::format(
      "{}, {}, {} threads, median of {}\n\n"
      "| tokens | ms, KV cache | ms, recomputed | ratio | multiply-adds, KV cache | recomputed | "
      "saved |\n"
      "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
      setting.cpu, setting.type, setting.n_threads, flags.n_repetitions);
  for (const eval::CacheSaving& saving : savings) {
    const double saved = 1.0 - saving.cached_multiply_adds / saving.recomputed_multiply_adds;
    table += fmt::format("| {} | {:.2f} | {:.1f} | {:.0f}x | {:.3g} | {:.3g} | {:.2f} % |\n",
                         saving.n_tokens, saving.cached_ms, saving.recomputed_ms,
                         saving.recomputed_ms / saving.cached_ms, saving.cached_multiply_adds,
                         saving.recomputed_multiply_adds, 100 * saved);
    all.push_back({{"n_tokens", saving.n_tokens},
                   {"cached_ms", saving.cached_ms},
                   {"recomputed_ms", saving.recomputed_ms},
                   {"cached_multiply_adds", saving.cached_multiply_adds},
                   {"recomputed_multiply_adds", saving.recomputed_multiply_adds}});
  }
  if (flags.output == "md") {
    print(table);
  } else {
    print(dump({{"cpu_info", setting.cpu},
                {"model_type", setting.type},
                {"n_threads", setting.n_threads},
                {"n_repetitions", flags.n_repetitions},
                {"rows", all}}) +
          "\n");
  }
  return {};
}

std::string check_output(const std::string& name) {
  const bool is_known = name == "md" || name == "json";
  return is_known ? std::string() : fmt::format("got '{}', want md or json", name);
}

Status bench(const BenchFlags& flags) {
  if (flags.n_repetitions < 1 || flags.n_repetitions > 1000) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--repetitions: got {}, want 1 to 1000", flags.n_repetitions)};
  }
  return flags.no_kv_cache ? bench_saving(flags) : bench_rows(flags);
}

}  // namespace

void add_bench(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* sub = app.add_subcommand("bench", "tokens per second at depth; llama-bench's columns");
  flags->model.add(*sub, ModelFlags::Set::kEngine);
  auto* prompt =
      sub->add_option("-p,--n-prompt", flags->n_prompt, "prompt sizes: 512,2048; 0: none");
  auto* generate =
      sub->add_option("-n,--n-gen", flags->n_generate, "tokens to generate: 64,128; 0: none");
  auto* depth = sub->add_option("-d,--n-depth", flags->n_depth, "history sizes: 0,4096");
  auto* sequences = sub->add_option("--batch", flags->n_sequences,
                                    "sequences that generate together, on one shared history: 1,8");
  sub->add_option("-r,--repetitions", flags->n_repetitions, "timed runs of each row");
  auto* roofline = sub->add_flag("--roofline", flags->with_roofline,
                                 "beside each row what this machine allows, probed before and "
                                 "after it");
  auto* no_kv_cache = sub->add_flag("--no-kv-cache", flags->no_kv_cache,
                                    "the price of one more token with the cache and without");
  sub->add_option("--lengths", flags->lengths, "history sizes for --no-kv-cache")
      ->needs(no_kv_cache);
  no_kv_cache->excludes(prompt)->excludes(generate)->excludes(depth)->excludes(sequences)->excludes(
      roofline);
  auto* output = sub->add_option("-o,--output", flags->output, "md or json")->check(check_output);
  sub->add_flag_callback(
         "--json", [flags] { flags->output = "json"; }, "same as -o json")
      ->excludes(output);
  sub->footer(
      "Examples:\n"
      "  kvasir bench -p 512 -n 64 -d 0,4096    tokens per second at depth\n"
      "  kvasir bench -p 0 -n 64 -d 1024 --batch 1,8,32    sequences on a shared prefix\n"
      "  kvasir bench --roofline --json         beside the machine's limit, as JSON\n"
      "  kvasir bench --no-kv-cache             what the cache saves\n"
      "Ctrl-C ends it with the rows that are done, once the pass that runs is through (-b tokens\n"
      "at most); a second one ends it at once.\n");
  commands.push_back({sub, [flags] {
                        const Status status = bench(*flags);
                        return status ? done_or_interrupted() : report(status.error());
                      }});
}

}  // namespace kvasir::cli
