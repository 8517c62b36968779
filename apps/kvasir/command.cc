#include "command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <cstdlib>
#include <optional>
#include <random>

#include "base/units.h"
#include "kv_formats.h"

namespace kvasir::cli {
namespace {

std::optional<std::int64_t> parse_whole(std::string_view text, std::int64_t least,
                                        std::int64_t most) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const bool is_whole = error == std::errc() && rest == end;
  return is_whole && value >= least && value <= most ? std::optional(value) : std::nullopt;
}

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// Rewrites the number plainly: CLI11 would read 010 as octal.
CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  const auto check = [=](std::string& text) {
    const auto value = parse_whole(text, least, most);
    if (value) text = std::to_string(*value);
    if (value) return std::string();
    return fmt::format("got '{}', want a whole number {} {}", text,
                       least > INT_MIN ? fmt::format("of {} to", least) : "up to", most);
  };
  return CLI::Validator(check, "");
}

std::string check_real(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const bool is_number = error == std::errc() && rest == end;
  return is_number ? std::string() : fmt::format("got '{}', want a number", text);
}

std::string check_not_empty(const std::string& text) {
  return text.empty() ? "got '', want a value" : std::string();
}

template <class Enum>
Result<Enum> choose(const char* flag, const std::string& got,
                    std::initializer_list<std::pair<const char*, Enum>> choices) {
  std::string want;
  for (const auto& [name, value] : choices) {
    if (got == name) return value;
    want += want.empty() ? name : std::string(", ") + name;
  }
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}: got '{}', want {}", flag, got, want)};
}

/// The user's cache directory for this program.
std::string user_cache_directory() {
  const char* cache_home = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string base;
  if (cache_home != nullptr && *cache_home != '\0') {
    base = cache_home;
  } else if (home != nullptr) {
    base = std::string(home) + "/.cache";
  }
  return base + "/kvasir";
}

std::string default_model_path() {
  return user_cache_directory() + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

Result<std::uint64_t> bytes_of(const char* flag, const std::string& text) {
  const auto bytes = parse_bytes(text);
  if (bytes) return *bytes;
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}: {}", flag, bytes.error().message)};
}

}  // namespace

std::string default_kv_directory() { return user_cache_directory() + "/kv"; }

Exit exit_code(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidModel:
    case ErrorCode::kUnsupported:
      return Exit::kInvalidModel;
    case ErrorCode::kExhausted:
      return Exit::kDoesNotFit;
    case ErrorCode::kCorruption:
      return Exit::kCacheIo;
    case ErrorCode::kCancelled:
      return Exit::kInterrupted;
    case ErrorCode::kInvalidArgument:
      return Exit::kUsage;
    case ErrorCode::kNotFound:
    case ErrorCode::kIo:
      return Exit::kError;
  }
  return Exit::kError;
}

Exit report(const Error& error) {
  say("kvasir: {}\n", printable(error.message));
  return exit_code(error);
}

Exit done_or_interrupted() { return interrupted().load() ? Exit::kInterrupted : Exit::kOk; }

void check_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.empty()) continue;  // a flag: no value
    if (type == "INT") {
      option->transform(whole_number(INT_MIN, INT_MAX));
    } else if (type == "FLOAT") {
      option->check(check_real);
    } else {
      option->check(check_not_empty);
    }
  }
  for (CLI::App* sub : app.get_subcommands({})) check_values(*sub);
}

void ModelFlags::add(CLI::App& app, Set set) {
  app.add_option("-m,--model", model_,
                 "GGUF file (default: $KVASIR_MODEL, else what `make run` got)");
  if (set == Set::kModelOnly) return;
  app.add_option("-c,--ctx-size", n_ctx_, "tokens a sequence may hold; 0: the model's own");
  app.add_option("-t,--threads", n_threads_, "threads; 0: every usable CPU");
  app.add_option("-b,--batch-size", n_batch_, "prompt tokens per forward pass");
  if (set != Set::kAnyKvType) {
    app.add_option("--kv-type", kv_type_,
                   "type of cached K and V: f32, f16, bf16, int8, int8-g64, int4, int4-3, int3");
    app.add_option("-k,--kv-type-k,--cache-type-k", kv_type_k_, "type of K alone");
    app.add_option("-v,--kv-type-v,--cache-type-v", kv_type_v_, "type of V alone");
    tile_flags_ = {
        app.add_option("--kv-tail", kv_tail_, "int4 and below: last tokens kept in 8 bits (64s)"),
        app.add_option("--kv-sinks", kv_sinks_, "first tokens kept in 8 bits, in whole 64s"),
        app.add_option("--kv-protect", kv_protect_,
                       "layers whose K is kept in 8 bits, the worst first")};
  }
  app.add_option("--act", act_, "activations in matmuls: int8, or f32 as the reference");
  app.add_option("--kv-budget", budget_,
                 "hard limit for weights, KV and scratch, e.g. 512M; 0: none. The program\n"
                 "itself (tokenizer tables, code) takes some 20 to 40 MiB beside it");
  app.add_option("--page-tokens", page_tokens_,
                 "auto (32; 64 with int4 and below), 16..512 (a power\n"
                 "of two; with int4 and below 64 and more), or contiguous");
  app.add_option("--kv-heads", head_order_, "split or interleaved");
  app.add_option("--kv-pool", pool_layout_, "unified or per-layer");
  keeps_ = set == Set::kPrompts;
  if (!keeps_) return;
  app.add_option(
      "--cache-ram", cache_ram_,
      "the most that K and V of earlier prompts may take in memory; 0: keep none, on the "
      "disk neither");
  auto* directory = app.add_option("--kv-dir", kv_dir_,
                                   "where they outlive the process (default: kv in the user's\n"
                                   "cache directory)");
  app.add_option("--kv-disk", kv_disk_, "the most that they may take there");
  app.add_option("--kv-load", kv_load_,
                 "auto: from the disk while that is faster than computing; always");
  app.add_flag("--no-kv-dir", no_kv_dir_, "leave nothing on the disk")->excludes(directory);
  app.add_flag("--reuse-shifted", reuse_shifted_,
               "approximate: what follows a change early in the prompt is not computed again but\n"
               "moved to its new place (docs/kv-reuse-shifted.md)");
  app.add_option("--cache-salt", salt_, "share nothing with prompts of another salt");
}

Result<std::string> ModelFlags::path() const {
  if (!model_.empty()) return model_;
  if (const char* path = std::getenv("KVASIR_MODEL"); path != nullptr && *path != '\0') {
    return std::string(path);
  }
  std::string path = default_model_path();
  if (::access(path.c_str(), R_OK) == 0) return path;
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("model: none given; want -m FILE or $KVASIR_MODEL (`make run` fetches a "
                           "default one to {})",
                           path)};
}

std::string ModelFlags::kv_type_k() const {
  return our_kv_type(kv_type_k_.empty() ? kv_type_ : kv_type_k_);
}

std::string ModelFlags::kv_type_v() const {
  return our_kv_type(kv_type_v_.empty() ? kv_type_ : kv_type_v_);
}

Result<engine::EngineOptions> ModelFlags::engine_options() const {
  engine::EngineOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.model_path, path());
  options.n_ctx = n_ctx_;
  options.n_threads = n_threads_;
  options.n_batch = n_batch_;
  KVASIR_ASSIGN_OR_RETURN(options.kv, choose_kv_types(kv_type_, kv_type_k_, kv_type_v_));
  KVASIR_RETURN_IF_ERROR(set_kv_tail("--kv-tail", kv_tail_, options.kv));
  KVASIR_RETURN_IF_ERROR(set_kv_sinks("--kv-sinks", kv_sinks_, options.kv));
  options.kv.n_protected = kv_protect_;
  const std::string k = kv_type_k(), v = kv_type_v();
  for (const CLI::Option* flag : tile_flags_) {
    if (flag->count() == 0) continue;
    KVASIR_RETURN_IF_ERROR(check_has_tiles(flag->get_name(), k == v ? k : k + "/" + v, options.kv));
  }
  KVASIR_ASSIGN_OR_RETURN(options.activations, choose<model::ActivationMode>(
                                                   "--act", act_,
                                                   {{"int8", model::ActivationMode::kInt8},
                                                    {"f32", model::ActivationMode::kFloat32}}));
  if (!budget_.empty()) {
    KVASIR_ASSIGN_OR_RETURN(options.budget_bytes, bytes_of("--kv-budget", budget_));
  }
  if (keeps_) {
    KVASIR_ASSIGN_OR_RETURN(options.prefix_bytes, bytes_of("--cache-ram", cache_ram_));
    KVASIR_ASSIGN_OR_RETURN(options.kv_disk_bytes, bytes_of("--kv-disk", kv_disk_));
    KVASIR_ASSIGN_OR_RETURN(options.always_load, choose<bool>("--kv-load", kv_load_,
                                                              {{"auto", false}, {"always", true}}));
    options.salt = salt_;
    const bool uses_disk = !no_kv_dir_ && options.prefix_bytes > 0 && options.kv_disk_bytes > 0;
    if (uses_disk) options.kv_dir = kv_dir_.empty() ? default_kv_directory() : kv_dir_;
  }
  if (page_tokens_ == "contiguous") {
    options.page_tokens = 0;
  } else {
    KVASIR_ASSIGN_OR_RETURN(options.page_tokens,
                            choose<int>("--page-tokens", page_tokens_,
                                        {{"auto", engine::EngineOptions::kAutoPage},
                                         {"16", 16},
                                         {"32", 32},
                                         {"64", 64},
                                         {"128", 128},
                                         {"256", 256},
                                         {"512", 512},
                                         {"contiguous", 0}}));
  }
  KVASIR_ASSIGN_OR_RETURN(
      options.head_order,
      choose<cache::HeadOrder>(
          "--kv-heads", head_order_,
          {{"split", cache::HeadOrder::kSplit}, {"interleaved", cache::HeadOrder::kInterleaved}}));
  KVASIR_ASSIGN_OR_RETURN(options.pool_layout, choose<engine::PoolLayout>(
                                                   "--kv-pool", pool_layout_,
                                                   {{"unified", engine::PoolLayout::kUnified},
                                                    {"per-layer", engine::PoolLayout::kPerLayer}}));
  return options;
}

Result<std::unique_ptr<engine::Engine>> ModelFlags::load() const {
  KVASIR_ASSIGN_OR_RETURN(const engine::EngineOptions options, engine_options());
  KVASIR_ASSIGN_OR_RETURN(auto engine, load(options));
  if (reuse_shifted_ && engine->kv_format().has_tiles(engine->model().config().n_layers)) {
    return Error{ErrorCode::kInvalidArgument,
                 "--reuse-shifted: moves rows of K and V, and int4 and below keep few; want "
                 "--kv-type int8 or more"};
  }
  if (const auto& error = engine->kv_dir_error(); error) {
    if (!kv_dir_.empty()) {  // asked for by name
      return Error{ErrorCode::kCorruption, "--kv-dir: " + error->message};
    }
    say("kvasir: note: prompts are not kept on the disk: {}\n", error->message);
  }
  return engine;
}

Result<std::unique_ptr<engine::Engine>> ModelFlags::load(const engine::EngineOptions& options) {
  std::unique_ptr<engine::Engine> engine;
  {
    ProgressBar bar("loading");
    KVASIR_ASSIGN_OR_RETURN(engine, engine::Engine::load(Env::posix(), options,
                                                         [&](double share) { bar.update(share); }));
  }
  note_missing_plan(*engine, options.kv);
  const int n_ctx_train = engine->model().config().n_ctx_train;
  if (engine->n_ctx() > n_ctx_train) {
    say("kvasir: note: a context of {} tokens; the model was trained for {}\n", engine->n_ctx(),
        n_ctx_train);
  }
  return engine;
}

void SamplingFlags::add(CLI::App& app) {
  app.add_option("-n,--n-predict", n_max_, "tokens to generate at most; -1: until the model ends");
  app.add_option("--temp,--temperature", sampling_.temperature, "0: always the likeliest token");
  app.add_option("--top-k", sampling_.top_k, "keep the k likeliest; 0: off");
  app.add_option("--top-p", sampling_.top_p, "keep the head that holds p of the probability");
  app.add_option("--min-p", sampling_.min_p, "drop what is less likely than p times the best");
  app.add_option("--repeat-penalty", sampling_.repeat_penalty, "1: off");
  app.add_option("--repeat-last-n", sampling_.penalty_last_n,
                 "tokens penalties look back; -1: all");
  app.add_option("--presence-penalty", sampling_.presence_penalty, "-2 to 2");
  app.add_option("--frequency-penalty", sampling_.frequency_penalty, "-2 to 2");
  app.add_option("-l,--logit-bias", logit_bias_, "TOKEN_ID(+|-|=)BIAS, e.g. 15043+1 or 15043-inf")
      ->allow_extra_args(false);  // one value a flag: the next word is the prompt
  app.add_option("-s,--seed", seed_, "-1: a random one, which is reported")
      ->transform(whole_number(-1, INT64_MAX))
      ->type_name("SEED");  // wider than INT
  app.add_option("--stop", stops_, "end the answer before this text; may be given 16 times")
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", ignore_eog_, "go on past the model's end-of-generation token");
}

Result<engine::GenerationParams> SamplingFlags::params(const engine::Engine& engine) const {
  engine::GenerationParams params;
  params.sampling = sampling_;
  params.n_max = n_max_;
  params.stops = stops_;
  params.ignore_eog = ignore_eog_;
  if (n_max_ < -1) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--n-predict: got {}, want -1 or more", n_max_)};
  }
  if (stops_.size() > 16) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--stop: got {}, want at most 16", stops_.size())};
  }
  params.sampling.seed =
      seed_ >= 0 ? static_cast<std::uint64_t>(seed_) : std::uint64_t{std::random_device{}()};
  for (const std::string& entry : logit_bias_) {
    TokenId token = 0;
    const char* const end = entry.data() + entry.size();
    const auto [rest, error] = std::from_chars(entry.data(), end, token);
    char* bias_end = nullptr;
    std::string bias_text(rest, end);
    if (!bias_text.empty() && bias_text[0] == '=') bias_text.erase(0, 1);
    const float bias = std::strtof(bias_text.c_str(), &bias_end);
    if (error != std::errc{} || bias_text.empty() || *bias_end != '\0') {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--logit-bias: got '{}', want TOKEN_ID+BIAS", entry)};
    }
    params.sampling.logit_bias.emplace_back(token, bias);
  }
  KVASIR_RETURN_IF_ERROR(params.sampling.validate(engine.model().config().vocab_size));
  return params;
}

std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<nlohmann::ordered_json> parse_json(std::string_view text, const std::string& where) {
  constexpr int kDepthMax = 64;
  bool too_deep = false;
  const auto limit_depth = [&](int depth, nlohmann::ordered_json::parse_event_t,
                               nlohmann::ordered_json&) {
    if (depth > kDepthMax) too_deep = true;
    return !too_deep;
  };
  try {
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(text, limit_depth);
    if (too_deep) {
      return Error{
          ErrorCode::kInvalidArgument,
          fmt::format("{}: JSON nested too deep; want at most {} levels", where, kDepthMax)};
    }
    return json;
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at ...": from the second bracket on.
    const std::string_view what = error.what();
    const std::size_t end = what.find("] ");
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: not JSON; {}", where,
                             end == std::string_view::npos ? what : what.substr(end + 2))};
  }
}

nlohmann::json to_json(const cache::MemorySummary& memory) {
  nlohmann::json groups = nlohmann::json::array();
  for (const auto& group : memory.groups) {
    groups.push_back({{"page_tokens", group.page_tokens},
                      {"frame_bytes", group.frame_bytes},
                      {"pages_used", group.n_pages_used},
                      {"pages_free", group.n_pages_free},
                      {"allocated", group.allocated},
                      {"used", group.used},
                      {"filled", group.filled},
                      {"shared", group.shared},
                      {"wasted", group.wasted}});
  }
  return {{"kv_allocated", memory.allocated},
          {"kv_used", memory.used},
          {"kv_filled", memory.filled},
          {"kv_shared", memory.shared},
          {"kv_wasted", memory.wasted},
          {"kv_reserved", memory.reserved_kv},
          {"weights", memory.reserved_weights},
          {"scratch", memory.reserved_scratch},
          {"budget", memory.budget},
          {"groups", groups}};
}

Result<std::vector<int>> parse_numbers(const char* flag, const std::string& text, int least,
                                       const char* want) {
  std::string_view rest = text;
  if (rest.size() >= 2 && rest.front() == '[' && rest.back() == ']') {
    rest = rest.substr(1, rest.size() - 2);
  }
  std::vector<int> numbers;
  while (true) {
    const std::string_view item = without_spaces(rest.substr(0, rest.find(',')));
    const auto number = parse_whole(item, least, INT_MAX);
    if (!number) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{}: got '{}', want {}", flag, text, want)};
    }
    numbers.push_back(static_cast<int>(*number));
    if (rest.find(',') == std::string_view::npos) return numbers;
    rest.remove_prefix(rest.find(',') + 1);
  }
}

Result<std::vector<TokenId>> parse_ids(const std::string& text) {
  return parse_numbers("--ids", text, 0, "token ids such as 1,2,3");
}

}  // namespace kvasir::cli
