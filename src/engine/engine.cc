#include "engine/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/units.h"
#include "engine/key_scope.h"
#include "engine/known_histories.h"

namespace kvasir::engine {
namespace {

Error bad_option(const char* flag, int got, const char* want) {
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}: got {}, want {}", flag, got, want)};
}

/// Multiply-adds a second and thread before any prompt was timed: a tenth of what a fast core does.
constexpr double kGuessedRate = 1e11;
constexpr double kScanPatienceSeconds = 0.5;
/// A basis of K in digits: 33 MB of a model of 8B.
constexpr std::uint64_t kMostCalibrationBytes = std::uint64_t{256} << 20;
/// Tokens of a prompt whose speed is taken for that of others.
constexpr int kTimedTokens = 128;
/// Share of the newest prompt in the running mean.
constexpr double kNewestShare = 0.5;

Status check(const EngineOptions& options) {
  if (options.n_threads < 0 || options.n_threads > 1024) {
    return bad_option("threads", options.n_threads, "0 (all) to 1024");
  }
  if (options.n_batch < 1 || options.n_batch > 65536) {
    return bad_option("batch", options.n_batch, "1 to 65536");
  }
  if (options.n_ctx < 0 || options.n_ctx > (1 << 24)) {
    return bad_option("context", options.n_ctx, "0 (the model's) to 16777216");
  }
  const int page = options.page_tokens;
  if (page != 0 && page != EngineOptions::kAutoPage &&
      (page < 16 || page > 512 || (page & (page - 1)) != 0)) {
    return bad_option("page-tokens", page,
                      "a power of two 16 to 512, or 0 for one contiguous page");
  }
  return {};
}

std::vector<cache::GroupSpec> arrange(std::vector<cache::GroupSpec> groups, PoolLayout layout) {
  if (layout == PoolLayout::kUnified) return groups;
  std::vector<cache::GroupSpec> one_each;
  for (const cache::GroupSpec& group : groups) {
    for (const int layer : group.layers) {
      cache::GroupSpec single = group;
      single.layers = {layer};
      one_each.push_back(std::move(single));
    }
  }
  return one_each;
}

}  // namespace

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(Env& env, const EngineOptions& options,
                                             std::function<void(double)> progress) {
  const SteadyClock clock;
  const double start = clock.now_seconds();
  KVASIR_RETURN_IF_ERROR(check(options));
  std::unique_ptr<Engine> engine(new Engine());
  engine->options_ = options;
  engine->env_ = &env;
  KVASIR_ASSIGN_OR_RETURN(engine->file_, gguf::File::open(env, options.model_path));
  const gguf::File& file = *engine->file_;
  // The config first: an unsupported architecture should be the message, not its tokenizer.
  KVASIR_ASSIGN_OR_RETURN(const model::ModelConfig config, model::ModelConfig::from_gguf(file));
  KVASIR_ASSIGN_OR_RETURN(engine->tokenizer_, text::Tokenizer::load(file));
  if (engine->tokenizer_->vocab_size() > config.vocab_size) {
    return Error{ErrorCode::kInvalidModel,
                 fmt::format("{}: vocabulary and embedding differ; got {} tokens, want at most {}",
                             file.name(), engine->tokenizer_->vocab_size(), config.vocab_size)};
  }

  const int n_threads = options.n_threads > 0 ? options.n_threads : ThreadPool::usable_cpus();
  engine->pool_ = std::make_unique<ThreadPool>(n_threads);
  engine->budget_ = std::make_unique<cache::ByteBudget>(options.budget_bytes);
  if (options.prefix_bytes > 0) fingerprint_model(file, *engine->pool_, engine->key_scope_);
  model::LoadOptions load_options;
  load_options.activations = options.activations;
  load_options.progress = std::move(progress);
  KVASIR_ASSIGN_OR_RETURN(engine->model_,
                          model::Model::load(file, load_options, *engine->budget_, *engine->pool_));
  engine->n_ctx_ = options.n_ctx > 0 ? options.n_ctx : config.n_ctx_train;

  KVASIR_ASSIGN_OR_RETURN(engine->kv_format_, engine->kv_format(options.kv));
  cache::CacheOptions cache_options = engine->cache_options(engine->kv_format_);
  cache_options.prefix_bytes = options.prefix_bytes;
  if (options.prefix_bytes > 0 && !options.kv_dir.empty()) engine->open_disk();
  cache_options.disk = engine->disk_.get();
  KVASIR_ASSIGN_OR_RETURN(engine->cache_, cache::KvCache::create(cache_options, *engine->budget_));
  cache::KeyScope& scope = engine->key_scope_;
  scope.salt = options.salt;
  scope.codec_k = engine->kv_format_.all.k;
  scope.codec_v = engine->kv_format_.all.v;
  scope.codec_layers = engine->kv_format_.details(config.n_layers);
  scope.page_tokens = cache_options.page_tokens;
  scope.head_order = options.head_order;
  scope.activations = options.activations == model::ActivationMode::kInt8 ? "int8" : "f32";
  scope.arithmetic_version = kArithmeticVersion;
  if (options.prefix_bytes > 0) engine->root_key_ = cache::root_key(scope);
  if (engine->disk_ != nullptr) engine->write_manifest();
  engine->seconds_per_token_ =
      engine->model_->multiply_adds(0) / (kGuessedRate * engine->pool_->n_threads());
  engine->load_seconds_ = clock.now_seconds() - start;
  return engine;
}

Result<cache::KvFormat> Engine::kv_format(const KvChoice& choice) {
  cache::KvFormat format{choice.codecs, choice.layers, choice.n_sink_tiles, choice.n_tail_tiles,
                         choice.key_bases};
  if (choice.plan.empty() && choice.n_protected == 0) return format;
  const int n_layers = model_->config().n_layers;
  if (!calibration_) {
    KVASIR_ASSIGN_OR_RETURN(calibration_, read_calibration(n_layers));
  }
  return apply_calibration(*calibration_, choice, n_layers, format);
}

const cache::Fingerprint& Engine::model_fingerprint() {
  if (key_scope_.model == cache::Fingerprint{}) fingerprint_model(*file_, *pool_, key_scope_);
  return key_scope_.model;
}

cache::KeyBases::Shape Engine::key_shape() const {
  const model::ModelConfig& config = model_->config();
  return {config.n_layers, config.n_kv_heads, config.head_dim};
}

Result<KvCalibration> Engine::read_calibration(int n_layers) {
  const std::string path = calibration_path(options_.model_path);
  const auto text = env_->read_file(path, kMostCalibrationBytes);
  if (!text && text.error().code == ErrorCode::kNotFound) return KvCalibration();
  if (!text) return text.error();
  KVASIR_ASSIGN_OR_RETURN(KvCalibration calibration, parse_calibration(path, *text, n_layers));
  if (calibration.model != model_fingerprint()) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("{}: made for another model; `kvasir calibrate kv` makes a new one", path)};
  }
  if (const cache::KeyBases* const bases = calibration.key_bases.get()) {
    const cache::KeyBases::Shape got = bases->shape(), want = key_shape();
    if (got != want) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("{}: K bases; got {} heads of {}, want {} of {}; `kvasir calibrate "
                               "kv` makes a new file",
                               path, got.n_kv_heads, got.head_dim, want.n_kv_heads, want.head_dim)};
    }
    KVASIR_RETURN_IF_ERROR(budget_->reserve(cache::MemoryOwner::kWeights, bases->bytes()));
  }
  return calibration;
}

cache::CacheOptions Engine::cache_options(const cache::KvFormat& format) const {
  cache::CacheOptions made;
  made.groups = arrange(model_->cache_groups(), options_.pool_layout);
  made.codec_k = format.all.k;
  made.codec_v = format.all.v;
  made.layer_codecs = format.layers;
  made.n_sink_tiles = format.n_sink_tiles;
  made.n_tail_tiles = format.n_tail_tiles;
  made.key_bases = format.key_bases;
  made.page_tokens = options_.page_tokens;
  if (made.page_tokens == EngineOptions::kAutoPage) {
    const bool has_tiles = format.has_tiles(model_->config().n_layers);
    made.page_tokens = has_tiles ? cache::kTileTokens : cache::CacheOptions().page_tokens;
  } else if (made.page_tokens == 0) {
    made.page_tokens =
        static_cast<int>(round_up(static_cast<std::uint64_t>(n_ctx_), cache::kTileTokens));
  }
  made.head_order = options_.head_order;
  made.is_contiguous = options_.page_tokens == 0;
  return made;
}

Result<std::unique_ptr<cache::KvCache>> Engine::make_cache(const KvChoice& choice) {
  KVASIR_ASSIGN_OR_RETURN(const cache::KvFormat format, kv_format(choice));
  return cache::KvCache::create(cache_options(format), *budget_);
}

void Engine::open_disk() {
  cache::DiskTierOptions disk_options;
  disk_options.directory = options_.kv_dir;
  disk_options.capacity_bytes = options_.kv_disk_bytes;
  disk_options.scans_behind = true;
  auto disk = cache::DiskTier::open(disk_options, cache::FileSystem::posix(), clock_);
  if (disk) {
    disk_ = std::move(*disk);
  } else {
    kv_dir_error_ = disk.error();
  }
}

void Engine::write_manifest() {
  const auto roots = disk_->manifests();
  // Advice to people: without it everything works.
  if (roots && std::find(roots->begin(), roots->end(), root_key_) == roots->end()) {
    int most = -1;
    for (const cache::PageKey& root : *roots) {
      const auto text = disk_->read_manifest(root);
      const auto manifest = text ? parse_manifest(*text) : std::nullopt;
      if (!manifest) continue;
      const int n_common = cache::fields_in_common(key_scope_, manifest->scope);
      if (n_common <= most) continue;
      most = n_common;
      scope_difference_ = cache::first_difference(key_scope_, manifest->scope);
    }
  }
  (void)disk_->write_manifest(root_key_, manifest_of(key_scope_, model_->config().name));
}

void Engine::note_prefill(double seconds, int n_tokens) {
  if (n_tokens < kTimedTokens) return;  // a few tokens say nothing of many
  const double newest = seconds / n_tokens;
  seconds_per_token_ += kNewestShare * (newest - seconds_per_token_);
}

Status Engine::charge_scratch(std::uint64_t now) {
  if (now > scratch_charged_) {
    KVASIR_RETURN_IF_ERROR(budget_->reserve(cache::MemoryOwner::kScratch, now - scratch_charged_));
  } else if (now < scratch_charged_) {
    budget_->release(cache::MemoryOwner::kScratch, scratch_charged_ - now);
  }
  scratch_charged_ = now;
  return {};
}

cache::MemorySummary Engine::memory_summary() {
  KVASIR_CHECK(charge_scratch(model_->scratch_bytes()).has_value());  // gives back at most
  return cache_->memory_summary();
}

Status Engine::compute(std::span<const model::ForwardItem> items, std::vector<float>& logits,
                       std::vector<model::ItemFaults>& faults) {
  faults.clear();
  // Before anything is computed: what does not fit must not have been allocated.
  const std::uint64_t scratch = model_->scratch_bytes_after(items, pool_->n_threads());
  Status status = charge_scratch(scratch);
  while (!status && cache_->evict_one()) status = charge_scratch(scratch);
  if (!status) {
    return Error{status.error().code, status.error().message + "; a smaller batch needs less"};
  }
  const Status computed = model_->forward(items, *pool_, logits, &faults);
  for (const model::ItemFaults& item : faults) {
    faults_.n_poisoned_tokens += item.n_poisoned;
    faults_.n_refused_steps += item.has_bad_logits ? 1 : 0;
  }
  return computed;
}

Status Engine::recompute(cache::Sequence& sequence, std::span<const TokenId> tokens,
                         std::span<const int> blocks, int block_tokens) {
  const std::vector<cache::PagedKvView> views = sequence.views();
  const auto n_tokens = static_cast<std::size_t>(block_tokens);
  const std::size_t per_step =
      std::max<std::size_t>(1, static_cast<std::size_t>(options_.n_batch) / n_tokens);
  std::vector<float> no_logits;
  std::vector<model::ItemFaults> faults;
  for (; !blocks.empty(); blocks = blocks.subspan(std::min(per_step, blocks.size()))) {
    std::vector<model::ForwardItem> items;
    for (const int first : blocks.first(std::min(per_step, blocks.size()))) {
      items.push_back({tokens.subspan(static_cast<std::size_t>(first), n_tokens), first, views, 0});
    }
    KVASIR_RETURN_IF_ERROR(compute(items, no_logits, faults));
  }
  return {};
}

KnownHistories& Engine::known_histories() {
  if (histories_ == nullptr) {
    histories_ = std::make_unique<KnownHistories>();
    // What a slow disk has not shown by then is not looked at.
    if (disk_ != nullptr && disk_->wait_until_scanned(kScanPatienceSeconds)) {
      histories_->note_disk(*disk_, root_key_);
    }
  }
  return *histories_;
}

Status Engine::forward(std::span<const Step> steps, std::vector<float>& logits,
                       std::vector<model::ItemFaults>* faults) {
  std::vector<model::ItemFaults> unasked;
  if (faults == nullptr) faults = &unasked;
  faults->clear();
  std::vector<int> n_before;
  const auto roll_back = [&] {
    // Only appended slots go; no page below a window was freed yet, so this cannot be refused.
    for (std::size_t i = 0; i < n_before.size(); ++i) {
      KVASIR_CHECK(steps[i].sequence->truncate(n_before[i]).has_value());
    }
  };
  std::vector<std::vector<cache::PagedKvView>> views;
  std::vector<model::ForwardItem> items;
  // Only now, not after the last step: what that one sealed is published whole.
  for (const Step& step : steps) step.sequence->free_below_windows();
  for (const Step& step : steps) {
    const int n_old = step.sequence->n_tokens();
    const auto n_new = static_cast<std::int64_t>(step.tokens.size());
    if (n_old + n_new > n_ctx_) {
      roll_back();
      return Error{
          ErrorCode::kExhausted,
          fmt::format("context: full; got {} tokens, want at most {}", n_old + n_new, n_ctx_)};
    }
    if (const Status status = step.sequence->append(static_cast<int>(n_new)); !status) {
      roll_back();
      return status.error();
    }
    n_before.push_back(n_old);
    views.push_back(step.sequence->views());
    items.push_back({step.tokens, n_old, views.back(), step.n_logits});
  }
  // `items` views vectors whose elements moved while `views` grew: bind them now.
  for (std::size_t i = 0; i < items.size(); ++i) items[i].layers = views[i];
  const Status status = compute(items, logits, *faults);
  if (!status) roll_back();
  return status;
}

}  // namespace kvasir::engine
