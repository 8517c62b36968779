#include "command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/clock.h"
#include "base/units.h"
#include "cache/codec/row_codec.h"

namespace kvasir::cli {
namespace {

constexpr std::uint64_t kInputBytesMax = std::uint64_t{1} << 30;

std::atomic<bool> g_interrupted{false};  // the one thing a signal handler may touch

void on_interrupt(int) {
  if (g_interrupted.exchange(true)) std::_Exit(static_cast<int>(Exit::kInterrupted));
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

Result<cache::CodecId> parse_kv_type(const char* flag, const std::string& name) {
  if (const auto codec = cache::parse_codec(name)) return *codec;
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{}: got '{}', want f32, f16 or bf16", flag, name)};
}

std::string default_model_path() {
  const char* cache_home = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string base;
  if (cache_home != nullptr && *cache_home != '\0') {
    base = cache_home;
  } else if (home != nullptr) {
    base = std::string(home) + "/.cache";
  }
  return base + "/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace

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
  fmt::print(stderr, "kvasir: {}\n", error.message);
  return exit_code(error);
}

void ModelFlags::add(CLI::App& app, Set set) {
  app.add_option("-m,--model", model_,
                 "GGUF file (default: $KVASIR_MODEL, else what `make run` got)");
  if (set == Set::kModelOnly) return;
  app.add_option("-c,--ctx-size", n_ctx_, "tokens a sequence may hold; 0: the model's own");
  app.add_option("-t,--threads", n_threads_, "threads; 0: every usable CPU");
  app.add_option("-b,--batch-size", n_batch_, "prompt tokens per forward pass");
  app.add_option("--kv-type", kv_type_, "type of cached K and V: f32, f16, bf16");
  app.add_option("-k,--kv-type-k,--cache-type-k", kv_type_k_, "type of K alone");
  app.add_option("-v,--kv-type-v,--cache-type-v", kv_type_v_, "type of V alone");
  app.add_option("--act", act_, "activations in matmuls: int8, or f32 as the reference");
  app.add_option("--kv-budget", budget_, "hard limit for weights, KV and scratch, e.g. 512M");
  app.add_option("--page-tokens", page_tokens_, "16..512 (a power of two), or contiguous");
  app.add_option("--kv-heads", head_order_, "split or interleaved");
  app.add_option("--kv-pool", pool_layout_, "unified or per-layer");
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

Result<engine::EngineOptions> ModelFlags::engine_options() const {
  engine::EngineOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.model_path, path());
  options.n_ctx = n_ctx_;
  options.n_threads = n_threads_;
  options.n_batch = n_batch_;
  KVASIR_ASSIGN_OR_RETURN(options.codec_k,
                          parse_kv_type("--kv-type-k", kv_type_k_.empty() ? kv_type_ : kv_type_k_));
  KVASIR_ASSIGN_OR_RETURN(options.codec_v,
                          parse_kv_type("--kv-type-v", kv_type_v_.empty() ? kv_type_ : kv_type_v_));
  KVASIR_ASSIGN_OR_RETURN(options.activations, choose<model::ActivationMode>(
                                                   "--act", act_,
                                                   {{"int8", model::ActivationMode::kInt8},
                                                    {"f32", model::ActivationMode::kFloat32}}));
  if (!budget_.empty()) {
    const auto bytes = parse_bytes(budget_);
    if (!bytes) return Error{ErrorCode::kInvalidArgument, "--kv-budget: " + bytes.error().message};
    options.budget_bytes = *bytes;
  }
  if (page_tokens_ == "contiguous") {
    options.page_tokens = 0;
  } else {
    KVASIR_ASSIGN_OR_RETURN(options.page_tokens, choose<int>("--page-tokens", page_tokens_,
                                                             {{"16", 16},
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
  ProgressBar bar("loading");
  return engine::Engine::load(Env::posix(), options, [&bar](double share) { bar.update(share); });
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
      ->take_all();
  app.add_option("-s,--seed", seed_, "-1: a random one");
  app.add_option("--stop", stops_, "end the answer before this text; may be given 16 times")
      ->take_all();
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
  for (const std::string& stop : stops_) {
    if (stop.empty())
      return Error{ErrorCode::kInvalidArgument, "--stop: got empty text, want some"};
  }
  if (seed_ < -1) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("--seed: got {}, want -1 or more", seed_)};
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

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) != 0 && !(term != nullptr && std::string_view(term) == "dumb");
}

bool stdin_is_terminal() { return ::isatty(STDIN_FILENO) != 0; }

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), started_(SteadyClock().now_seconds()) {}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressBar::update(double share, const std::string& note) {
  if (!stderr_is_terminal() || SteadyClock().now_seconds() - started_ < 1.0) return;
  shown_ = true;
  constexpr int kWidth = 30;
  const int n_full = static_cast<int>(share * kWidth);
  std::string bar(static_cast<std::size_t>(n_full), '#');
  bar.resize(kWidth, '.');
  fmt::print(stderr, "\r\x1b[K{} [{}] {:3.0f} %{}{}", label_, bar, share * 100,
             note.empty() ? "" : "  ", note);
  std::fflush(stderr);
}

Result<std::string> read_stdin() {
  std::string content;
  char buffer[1 << 16];
  std::size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0) {
    content.append(buffer, n);
    if (content.size() > kInputBytesMax) {
      return Error{ErrorCode::kExhausted, "stdin: too long; want at most 1 GiB"};
    }
  }
  if (std::ferror(stdin) != 0) return Error{ErrorCode::kIo, "stdin: cannot read"};
  return content;
}

Result<std::string> read_input(const std::string& path) {
  if (path == "-") return read_stdin();
  return Env::posix().read_file(path, kInputBytesMax);
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
    return Error{ErrorCode::kInvalidArgument, fmt::format("{}: not JSON; {}", where, error.what())};
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

Result<std::vector<TokenId>> parse_ids(const std::string& text) {
  const bool bracketed = text.find('[') != std::string::npos;
  KVASIR_ASSIGN_OR_RETURN(const nlohmann::ordered_json json,
                          parse_json(bracketed ? text : "[" + text + "]", "--ids"));
  std::vector<TokenId> ids;
  for (const auto& id : json) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
        id.get<std::int64_t>() > INT32_MAX) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--ids: got {}, want token ids such as 1,2,3", dump(id))};
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    std::_Exit(141);  // as a process killed by SIGPIPE would
  }
}

std::atomic<bool>& interrupted() { return g_interrupted; }

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // `print` notices and leaves quietly
}

}  // namespace kvasir::cli
