// What every subcommand shares: exit codes, the options of a model, reading arguments.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "console.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "engine/shifted_reuse.h"

namespace kvasir::cli {

/// Exit codes (docs: README, "Exit codes").
enum class Exit : int {
  kOk = 0,
  kError = 1,
  kUsage = 2,
  kInvalidModel = 3,
  kDoesNotFit = 4,
  kCacheIo = 5,
  kThresholdMissed = 6,
  kInterrupted = 130,
};

Exit exit_code(const Error& error);

/// Prints `kvasir: message` to stderr, printable, and gives the exit code that belongs to it.
Exit report(const Error& error);
/// For work whose finished part has been delivered: 130 after Ctrl-C, else 0.
Exit done_or_interrupted();

/// A subcommand registers its flags and leaves a function that runs it.
struct Command {
  CLI::App* app = nullptr;
  std::function<Exit()> run;
};

void add_run(CLI::App& app, std::vector<Command>& commands);
void add_chat(CLI::App& app, std::vector<Command>& commands);
void add_cache(CLI::App& app, std::vector<Command>& commands);
/// `cache` is the subcommand of add_cache.
void add_cache_replay(CLI::App& cache, std::vector<Command>& commands);
void add_inspect(CLI::App& app, std::vector<Command>& commands);
void add_tokenize(CLI::App& app, std::vector<Command>& commands);
void add_doctor(CLI::App& app, std::vector<Command>& commands);
void add_bench(CLI::App& app, std::vector<Command>& commands);
void add_eval(CLI::App& app, std::vector<Command>& commands);
/// `eval` is the subcommand of add_eval.
void add_eval_kld(CLI::App& eval, std::vector<Command>& commands);
void add_eval_drift(CLI::App& eval, std::vector<Command>& commands);
void add_eval_attention(CLI::App& eval, std::vector<Command>& commands);
void add_eval_pareto(CLI::App& eval, std::vector<Command>& commands);
void add_calibrate(CLI::App& app, std::vector<Command>& commands);
void add_trace(CLI::App& app, std::vector<Command>& commands);

/// Where prompts are kept unless --kv-dir says otherwise.
std::string default_kv_directory();

/// Gives every option below `app` the same care: an empty value is an error, and so is a number
/// that is none; the message says what was wanted.
void check_values(CLI::App& app);

/// -m and everything that decides how a model is loaded; `load` turns it into an engine.
class ModelFlags {
 public:
  /// kAnyKvType: kEngine, but the command makes caches of its own, with the types of K and V that
  /// it has flags for. kPrompts: kEngine, and where prompts that were computed are kept.
  enum class Set { kModelOnly, kEngine, kAnyKvType, kPrompts };
  void add(CLI::App& app, Set set);
  /// The model's path: -m, then $KVASIR_MODEL, then the default model in the user's cache
  /// directory. Errors: kInvalidArgument saying how to get one.
  Result<std::string> path() const;
  Result<engine::EngineOptions> engine_options() const;
  /// Our names of K's and V's types.
  std::string kv_type_k() const;
  std::string kv_type_v() const;
  /// What --reuse-shifted asks for; absent: nothing is approximated.
  std::optional<engine::ShiftedReuse> shifted_reuse() const {
    return reuse_shifted_ ? std::optional(engine::ShiftedReuse()) : std::nullopt;
  }
  /// Loads with a progress bar on a terminal, and notes what is unusual.
  Result<std::unique_ptr<engine::Engine>> load() const;
  static Result<std::unique_ptr<engine::Engine>> load(const engine::EngineOptions& options);

 private:
  std::string model_;
  int n_ctx_ = 0, n_threads_ = 0, n_batch_ = 512;
  std::string kv_type_ = "f16", kv_type_k_, kv_type_v_, act_ = "int8", budget_;
  int kv_tail_ = cache::kTileTokens, kv_sinks_ = 1, kv_protect_ = 0;
  std::vector<const CLI::Option*> tile_flags_;  ///< those that concern tiles alone
  std::string page_tokens_ = "auto", head_order_ = "split", pool_layout_ = "unified";
  // Of commands that keep what they computed.
  bool keeps_ = false, no_kv_dir_ = false, reuse_shifted_ = false;
  std::string kv_dir_, kv_disk_ = "8G", kv_load_ = "auto", cache_ram_ = "1G", salt_;
};

/// Sampling and stopping.
class SamplingFlags {
 public:
  void add(CLI::App& app);
  /// Errors: kInvalidArgument naming the flag.
  Result<engine::GenerationParams> params(const engine::Engine& engine) const;

 private:
  engine::SamplingParams sampling_;
  std::int64_t seed_ = -1;
  int n_max_ = -1;
  bool ignore_eog_ = false;
  std::vector<std::string> stops_, logit_bias_;
};

/// JSON as one line; invalid UTF-8 becomes U+FFFD.
std::string dump(const nlohmann::json& json);
/// Strict parse, keys in their order, depth-limited. Errors: kInvalidArgument with the position.
Result<nlohmann::ordered_json> parse_json(std::string_view text, const std::string& where);
nlohmann::json to_json(const cache::MemorySummary& memory);
/// "1,2,3" (brackets around are fine) into numbers of at least `least`. Errors: kInvalidArgument:
/// `flag`, the text, and `want`: "counts such as 0,512".
Result<std::vector<int>> parse_numbers(const char* flag, const std::string& text, int least,
                                       const char* want);
/// The value of --ids. Errors: kInvalidArgument.
Result<std::vector<TokenId>> parse_ids(const std::string& text);

}  // namespace kvasir::cli
