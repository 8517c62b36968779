// Random histories over real tiny models: open, extend, fork, truncate, resume and close sequences
// in any order; every logit must be the bits that recomputation from nothing gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/harness.h"

namespace kvasir::model {
namespace {

using cache::CodecId;
using cache::HeadOrder;
using testing::Grouping;
using testing::Harness;
using testing::Layout;
using testing::random_tokens;

struct Case {
  const char* name;
  const char* file;
  ActivationMode mode;
  Layout layout;
};

Layout coded(int page_tokens, cache::LayerCodecs codecs, int n_sink_tiles = 1, int n_tail_tiles = 1,
             std::vector<cache::LayerCodecs> layers = {}) {
  Layout layout;
  layout.page_tokens = page_tokens;
  layout.codecs = codecs;
  layout.layer_codecs = std::move(layers);
  layout.n_sink_tiles = n_sink_tiles;
  layout.n_tail_tiles = n_tail_tiles;
  return layout;
}

const Case kCases[] = {
    {"Stories",
     "stories260k/stories260K.gguf",
     ActivationMode::kInt8,
     {"16", 16, HeadOrder::kSplit, Grouping::kModel, CodecId::kF16}},
    {"Q4_0",
     "arch_vectors/q_q4_0.gguf",
     ActivationMode::kInt8,
     {"64", 64, HeadOrder::kInterleaved, Grouping::kPerLayer, CodecId::kF16}},
    {"Gemma3",
     "arch_vectors/gemma3.gguf",
     ActivationMode::kFloat32,
     {"16", 16, HeadOrder::kSplit, Grouping::kModel, CodecId::kF32}},
    {"Gemma2",
     "arch_vectors/gemma2_b.gguf",
     ActivationMode::kFloat32,
     {"32", 32, HeadOrder::kSplit, Grouping::kPerLayer, CodecId::kBF16}},
    {"LlamaInt8", "arch_vectors/llama_9q3kv_hd64.gguf", ActivationMode::kInt8,
     coded(16, {CodecId::kInt8, CodecId::kInt8})},
    {"Gemma2Int8G64", "arch_vectors/gemma2_b.gguf", ActivationMode::kFloat32,
     coded(32, {CodecId::kInt8G64, CodecId::kInt8})},
    {"LlamaTile4", "arch_vectors/llama_9q3kv_hd64.gguf", ActivationMode::kInt8,
     coded(64, {CodecId::kTile4, CodecId::kTile4})},
    {"LlamaTile4Tile3", "arch_vectors/llama_9q3kv_hd64.gguf", ActivationMode::kFloat32,
     coded(256, {CodecId::kTile4, CodecId::kTile3}, 0, 0)},
    {"Gemma2Tile4Int8", "arch_vectors/gemma2_b.gguf", ActivationMode::kFloat32,
     coded(128, {CodecId::kTile4, CodecId::kInt8}, 1, 0)},
    {"Gemma3F16Tile5", "arch_vectors/gemma3.gguf", ActivationMode::kInt8,
     coded(64, {CodecId::kF16, CodecId::kTile5}, 0, 1)},
    {"LlamaByLayer", "arch_vectors/llama_9q3kv_hd64.gguf", ActivationMode::kInt8,
     coded(128, {}, 0, 0, {{CodecId::kInt8, CodecId::kTile4}, {CodecId::kTile5, CodecId::kTile3}})},
};

/// A sequence and the tokens it must stand for.
struct Twin {
  cache::Sequence sequence;
  std::vector<TokenId> tokens;
};

class History : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kTokensMax = 200;
  static constexpr std::size_t kSequencesMax = 6;

  void SetUp() override {
    harness_ = Harness::load(GetParam().file, 2, GetParam().mode);
    ASSERT_NE(harness_, nullptr);
    kv_ = harness_->make_cache(GetParam().layout);
    ASSERT_NE(kv_, nullptr);
  }

  int random(int n) { return static_cast<int>(rng_() % static_cast<std::uint64_t>(n)); }

  /// The last row's logits of `tokens` in a cache of its own, one batch, contiguous.
  std::vector<float> recompute(const std::vector<TokenId>& tokens) {
    Layout layout = GetParam().layout;
    layout.page_tokens = 512;
    layout.head_order = HeadOrder::kSplit;
    layout.grouping = Grouping::kModel;
    auto kv = harness_->make_cache(layout);
    cache::Sequence sequence = kv->open();
    return harness_->forward(sequence, tokens, 1);
  }

  void extend(Twin& twin, int n) {
    const auto fresh = random_tokens(n, harness_->vocab_size(), rng_());
    twin.tokens.insert(twin.tokens.end(), fresh.begin(), fresh.end());
    const auto got = harness_->forward(twin.sequence, fresh, 1);
    const auto want = recompute(twin.tokens);
    ASSERT_EQ(got.size(), want.size());
    ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
        << "history of " << twin.tokens.size() << " tokens";
  }

  void truncate(Twin& twin) {
    const int n = random(static_cast<int>(twin.tokens.size()) + 1);
    const Status status = twin.sequence.truncate(n);
    if (!status) {  // a window's pages are gone: the caller starts over
      ASSERT_EQ(status.error().code, ErrorCode::kUnsupported);
      ++n_refused_;
      twin.sequence = kv_->open();
      twin.tokens.clear();
      return;
    }
    twin.tokens.resize(static_cast<std::size_t>(n));
  }

  void step() {
    const int choice = random(10);
    if (twins_.empty() || (choice == 0 && twins_.size() < kSequencesMax)) {
      twins_.push_back({kv_->open(), {}});
    }
    Twin& twin = twins_[static_cast<std::size_t>(random(static_cast<int>(twins_.size())))];
    if (choice <= 1 && twins_.size() < kSequencesMax) {
      auto fork = twin.sequence.fork();
      ASSERT_TRUE(fork.has_value());
      twins_.push_back({*std::move(fork), twin.tokens});
    } else if (choice == 2) {
      std::swap(twin, twins_.back());
      twins_.pop_back();
    } else if (choice <= 4) {
      truncate(twin);
    } else {
      const int room = kTokensMax - static_cast<int>(twin.tokens.size());
      if (room > 0) extend(twin, 1 + random(std::min(room, choice == 9 ? 60 : 6)));
    }
  }

  std::unique_ptr<Harness> harness_;
  std::unique_ptr<cache::KvCache> kv_;
  std::vector<Twin> twins_;
  std::mt19937_64 rng_{20240};
  int n_refused_ = 0;
};

TEST_P(History, EqualsRecomputationAfterAnyOperations) {
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE("operation " + std::to_string(i));
    step();
    kv_->check_invariants();
    if (HasFatalFailure()) break;
  }
  twins_.clear();
  kv_->check_invariants();
  EXPECT_EQ(kv_->memory_summary().used, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, History, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace kvasir::model
