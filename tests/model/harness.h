// Loads the tiny models of tests/data and runs tokens through them; shared by the model tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "cache/cache.h"
#include "gguf/file.h"
#include "model/model.h"
#include "support/key_bases.h"

namespace kvasir::model::testing {

inline std::filesystem::path data_path(const std::string& name) {
  return std::filesystem::path(KVASIR_SOURCE_DIR) / "tests" / "data" / name;
}

/// Which layers share a page table.
enum class Grouping { kModel, kPerLayer };

struct Layout {
  std::string name = "64-token pages";
  int page_tokens = 64;
  cache::HeadOrder head_order = cache::HeadOrder::kSplit;
  Grouping grouping = Grouping::kModel;
  cache::CodecId codec = cache::CodecId::kF32;
  std::optional<cache::LayerCodecs> codecs = {};      ///< in place of `codec` for both
  std::vector<cache::LayerCodecs> layer_codecs = {};  ///< in place of these
  int n_sink_tiles = 1, n_tail_tiles = 1;
  bool has_basis = false;  ///< of K in tiles
};

/// A model with its budget and threads.
class Harness {
 public:
  static std::unique_ptr<Harness> load(const std::string& path, int n_threads = 1,
                                       ActivationMode mode = ActivationMode::kFloat32) {
    auto harness = std::make_unique<Harness>(n_threads);
    auto file = gguf::File::open(Env::posix(), data_path(path).string());
    if (!file) {
      ADD_FAILURE() << file.error().message;
      return nullptr;
    }
    LoadOptions options;
    options.activations = mode;
    auto model = Model::load(*file, options, harness->budget_, harness->pool_);
    if (!model) {
      ADD_FAILURE() << path << ": " << model.error().message;
      return nullptr;
    }
    harness->model_ = *std::move(model);
    return harness;
  }

  explicit Harness(int n_threads) : pool_(n_threads) {}

  Model& model() { return *model_; }
  ThreadPool& pool() { return pool_; }
  int vocab_size() const { return model_->config().vocab_size; }

  std::unique_ptr<cache::KvCache> make_cache(const Layout& layout) {
    cache::CacheOptions options;
    for (const cache::GroupSpec& group : model_->cache_groups()) {
      if (layout.grouping == Grouping::kModel) {
        options.groups.push_back(group);
        continue;
      }
      for (const int layer : group.layers) {
        cache::GroupSpec single = group;
        single.layers = {layer};
        options.groups.push_back(single);
      }
    }
    options.codec_k = layout.codecs ? layout.codecs->k : layout.codec;
    options.codec_v = layout.codecs ? layout.codecs->v : layout.codec;
    options.layer_codecs = layout.layer_codecs;
    options.n_sink_tiles = layout.n_sink_tiles;
    options.n_tail_tiles = layout.n_tail_tiles;
    if (layout.has_basis) {
      const ModelConfig& config = model_->config();
      options.key_bases = random_key_bases({config.n_layers, config.n_kv_heads, config.head_dim});
    }
    options.page_tokens = layout.page_tokens;
    options.head_order = layout.head_order;
    auto created = cache::KvCache::create(options, budget_);
    if (!created) {
      ADD_FAILURE() << layout.name << ": " << created.error().message;
      return nullptr;
    }
    return *std::move(created);
  }

  struct Step {
    cache::Sequence* sequence;
    std::span<const TokenId> tokens;
    int n_logits;
  };

  /// Appends, computes, frees below windows. Logits of all steps, in order.
  std::vector<float> forward(std::span<const Step> steps) {
    std::vector<std::vector<cache::PagedKvView>> views;
    std::vector<ForwardItem> items;
    for (const Step& step : steps) {
      const int n_before = step.sequence->n_tokens();
      const Status appended = step.sequence->append(static_cast<int>(step.tokens.size()));
      EXPECT_TRUE(appended.has_value()) << (appended ? "" : appended.error().message);
      views.push_back(step.sequence->views());
      items.push_back(
          {.tokens = step.tokens, .first_pos = n_before, .layers = {}, .n_logits = step.n_logits});
    }
    for (std::size_t i = 0; i < items.size(); ++i) items[i].layers = views[i];
    std::vector<float> logits;
    const auto scratch = model_->scratch_bytes_after(items, pool_.n_threads());
    const Status status = model_->forward(items, pool_, logits);
    // What a budget would have reserved before the pass is what the pass came to hold.
    EXPECT_EQ(model_->scratch_bytes(), scratch);
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
    for (const Step& step : steps) step.sequence->free_below_windows();
    return logits;
  }

  std::vector<float> forward(cache::Sequence& sequence, std::span<const TokenId> tokens,
                             int n_logits) {
    const Step step{&sequence, tokens, n_logits};
    return forward(std::span<const Step>(&step, 1));
  }

 private:
  cache::ByteBudget budget_;
  ThreadPool pool_;
  std::unique_ptr<Model> model_;
};

/// All logits of `tokens`, computed in chunks of the sizes in `chunks`, over and over.
inline std::vector<float> run_in_chunks(Harness& harness, const Layout& layout,
                                        std::span<const TokenId> tokens,
                                        const std::vector<int>& chunks) {
  auto kv = harness.make_cache(layout);
  cache::Sequence sequence = kv->open();
  std::vector<float> all;
  std::size_t begin = 0;
  for (std::size_t i = 0; begin < tokens.size(); ++i) {
    const std::size_t n =
        std::min(static_cast<std::size_t>(chunks[i % chunks.size()]), tokens.size() - begin);
    const auto logits = harness.forward(sequence, tokens.subspan(begin, n), static_cast<int>(n));
    all.insert(all.end(), logits.begin(), logits.end());
    begin += n;
    kv->check_invariants();
  }
  return all;
}

inline ::testing::AssertionResult same_bits(std::span<const float> got,
                                            std::span<const float> want) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " values, want " << want.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure()
             << "value " << i << " of " << want.size() << ": " << got[i] << ", want " << want[i];
    }
  }
  return ::testing::AssertionSuccess();
}

/// Ids below `vocab_size`, the same for the same seed everywhere.
inline std::vector<TokenId> random_tokens(int n, int vocab_size, std::uint64_t seed) {
  std::vector<TokenId> tokens;
  std::uint64_t state = seed * 2862933555777941757u + 3037000493u;
  for (int i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<TokenId>((state >> 33) % static_cast<std::uint64_t>(vocab_size)));
  }
  return tokens;
}

}  // namespace kvasir::model::testing
