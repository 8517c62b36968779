// The engine: one loaded model with its tokenizer, threads, budget and KV cache.
//
// Thread safety: one engine thread. Kernels fork over the engine's pool.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/env.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "base/types.h"
#include "cache/cache.h"
#include "cache/tier/disk_tier.h"
#include "engine/kv_plan.h"
#include "gguf/file.h"
#include "model/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace kvasir::engine {

class KnownHistories;

/// How layers are divided into cache groups. kUnified: one pool for all layers of the same window
/// (the default, architecture.md D1). kPerLayer exists to be measured against it (M3b).
enum class PoolLayout : std::uint8_t { kUnified, kPerLayer };

/// Behaviour first, performance second.
struct EngineOptions {
  std::string model_path;
  int n_ctx = 0;  ///< tokens a sequence may hold; 0: what the model was trained for
  KvChoice kv;
  model::ActivationMode activations = model::ActivationMode::kInt8;
  std::uint64_t budget_bytes = 0;  ///< for weights, KV and scratch together; 0: no limit

  int n_threads = 0;  ///< 0: every usable CPU
  int n_batch = 512;  ///< prompt tokens computed in one forward pass
  /// Tokens of a page: a power of two 16..512, or 0 for one page that holds the whole context.
  /// kAutoPage: 32, or 64 with tile codecs.
  int page_tokens = kAutoPage;
  static constexpr int kAutoPage = -1;
  cache::HeadOrder head_order = cache::HeadOrder::kSplit;
  PoolLayout pool_layout = PoolLayout::kUnified;

  /// The most that K and V of ended sequences may take, kept for prompts that begin alike; 0: none.
  std::uint64_t prefix_bytes = 0;
  std::string salt;  ///< namespace of these; nothing is shared across
  /// Where they outlive the process, and how much of the disk they may take; empty: nowhere.
  std::string kv_dir;
  std::uint64_t kv_disk_bytes = std::uint64_t{8} << 30;
  /// Load what is there even where computing seems to be faster: for measurements and tests.
  bool always_load = false;
};

/// What was not finite since the engine was loaded. It was contained: the logits were refused, and
/// no other sequence saw it.
struct FaultCounters {
  std::int64_t n_poisoned_tokens = 0;  ///< computed with K or V that is not finite as it is stored
  std::int64_t n_refused_steps = 0;    ///< steps of one sequence whose logits were not finite
};

class Engine {
 public:
  /// Opens, checks and packs the model. `progress` (may be empty) gets the share done, 0..1.
  /// Errors: kNotFound, kIo, kInvalidModel, kUnsupported, kInvalidArgument (an option),
  /// kExhausted (the budget, with the numbers).
  static Result<std::unique_ptr<Engine>> load(Env& env, const EngineOptions& options,
                                              std::function<void(double)> progress = {});
  ~Engine();

  const EngineOptions& options() const { return options_; }
  /// Tokens a sequence may hold.
  int n_ctx() const { return n_ctx_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  /// The model's chat template, ready to render. Errors: kUnsupported (the model has none),
  /// kInvalidModel (it is broken; the model still runs on plain text). Must not outlive the engine.
  Result<text::ChatFormatter> chat_formatter() const {
    return text::ChatFormatter::load(*file_, *tokenizer_);
  }
  const model::Model& model() const { return *model_; }
  model::Model& model() { return *model_; }
  cache::KvCache& cache() { return *cache_; }
  /// Another cache of this model, in the same budget and page layout, with other codecs and without
  /// a prefix tree. `forward` runs its sequences as it does those of `cache()`: one copy of the
  /// weights serves both. Must not outlive the engine. Errors: those of kv_format, kInvalidArgument
  /// and kUnsupported (the codecs).
  Result<std::unique_ptr<cache::KvCache>> make_cache(const KvChoice& choice);
  /// What a choice means for this model, whose calibration is read from beside its file. Errors:
  /// kInvalidArgument (it is broken, or another model's; layers to protect, and none), kExhausted
  /// (the budget has no room for its basis of K).
  Result<cache::KvFormat> kv_format(const KvChoice& choice);
  /// Whether the calibration, once a choice has had it read, has bits by layer under this name.
  bool has_plan(const std::string& name) const {
    return calibration_ && calibration_->plans.count(name) != 0;
  }
  /// What the engine's own cache has.
  const cache::KvFormat& kv_format() const { return kv_format_; }
  ThreadPool& pool() { return *pool_; }
  int n_threads() const { return pool_->n_threads(); }
  /// SHA-256 of the weights and parameters. Cost: one pass over the file, the first time.
  const cache::Fingerprint& model_fingerprint();
  /// Of a basis of this model's K.
  cache::KeyBases::Shape key_shape() const;
  /// What K and V depend on besides the tokens, and the key of that. Without prefix_bytes: of no
  /// meaning.
  const cache::KeyScope& key_scope() const { return key_scope_; }
  const cache::PageKey& root_key() const { return root_key_; }
  /// Seconds that a prompt's token takes, by the newest prompt; before the first, a guess.
  double seconds_per_token() const { return seconds_per_token_; }
  void note_prefill(double seconds, int n_tokens);
  /// What differs between this engine's scope and the nearest one whose pages kv_dir holds, when it
  /// holds none of this scope: "model", "codec_k", ... (cache::first_difference); else empty.
  const std::string& scope_difference() const { return scope_difference_; }
  /// Why kv_dir is not in use although it was given. The engine works without it.
  const std::optional<Error>& kv_dir_error() const { return kv_dir_error_; }
  /// Bytes by owner; scratch as kernels hold it at present.
  cache::MemorySummary memory_summary();

  /// Forward pass over sequences' next tokens: frees pages below windows, appends slots, computes.
  struct Step {
    cache::Sequence* sequence = nullptr;
    std::span<const TokenId> tokens;
    int n_logits = 1;  ///< of the last tokens
  };
  /// Errors: kInvalidArgument (token id out of range, past n_ctx), kExhausted, kInvalidModel
  /// (logits that are not finite; `faults` says of which steps, and the others can go on without
  /// these); every sequence is then as it was. `faults` gets one entry a step, or none where
  /// nothing was computed.
  Status forward(std::span<const Step> steps, std::vector<float>& logits,
                 std::vector<model::ItemFaults>* faults = nullptr);

  /// Computes blocks of `block_tokens` tokens of a sequence once more, at their places among K and
  /// V that are there already; `tokens` are the sequence's, `blocks` the blocks' first ones,
  /// ascending and disjoint. Requires: no cache group with a window; the pages are the sequence's
  /// own. Errors: as of `forward`.
  Status recompute(cache::Sequence& sequence, std::span<const TokenId> tokens,
                   std::span<const int> blocks, int block_tokens);

  /// Histories that sessions have noted, for reuse at other positions; before all others those
  /// that earlier processes have left on the disk, which the first call looks for.
  KnownHistories& known_histories();

  const FaultCounters& faults() const { return faults_; }

  /// Seconds spent loading, for the one line of figures.
  double load_seconds() const { return load_seconds_; }

 private:
  Engine() = default;
  /// What every cache of this engine has in common, with these codecs.
  cache::CacheOptions cache_options(const cache::KvFormat& format) const;
  /// From beside the model's file; empty where there is none. Errors: those of kv_format.
  Result<KvCalibration> read_calibration(int n_layers);
  /// The disk tier in options().kv_dir, or kv_dir_error().
  void open_disk();
  /// Says in kv_dir whose pages these are, and finds scope_difference().
  void write_manifest();
  /// Makes the budget hold `now` bytes of scratch. Errors: kExhausted; nothing has changed.
  Status charge_scratch(std::uint64_t now);
  /// Runs the model over items whose slots are there.
  Status compute(std::span<const model::ForwardItem> items, std::vector<float>& logits,
                 std::vector<model::ItemFaults>& faults);

  Env* env_ = nullptr;
  EngineOptions options_;
  int n_ctx_ = 0;
  double load_seconds_ = 0;
  std::optional<gguf::File> file_;
  std::optional<text::Tokenizer> tokenizer_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<cache::ByteBudget> budget_;
  std::uint64_t scratch_charged_ = 0;
  std::unique_ptr<model::Model> model_;
  SteadyClock clock_;
  std::unique_ptr<cache::DiskTier> disk_;
  std::optional<Error> kv_dir_error_;
  std::string scope_difference_;
  std::unique_ptr<cache::KvCache> cache_;
  double seconds_per_token_ = 0;
  FaultCounters faults_;
  cache::KvFormat kv_format_;
  std::optional<KvCalibration> calibration_;  ///< once it was asked for
  cache::KeyScope key_scope_;
  cache::PageKey root_key_;
  std::unique_ptr<KnownHistories> histories_;  ///< null: not asked for yet
};

}  // namespace kvasir::engine
