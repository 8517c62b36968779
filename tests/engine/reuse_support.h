// Engines on the tiny models, and the logits that reuse must give: those of computing everything.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/session.h"
#include "support/key_bases.h"

namespace kvasir::engine::testing {

using Tokens = std::vector<TokenId>;

inline const std::string kData = KVASIR_SOURCE_DIR "/tests/data/";
inline const char* const kStories = "stories260k/stories260K.gguf";
inline constexpr std::uint64_t kPlenty = std::uint64_t{1} << 30;

inline std::unique_ptr<Engine> load(const std::string& file, EngineOptions options) {
  options.model_path = kData + file;
  options.n_threads = 2;
  auto engine = Engine::load(Env::posix(), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

inline std::unique_ptr<Engine> load_stories(int page_tokens, std::uint64_t prefix_bytes = kPlenty) {
  EngineOptions options;
  options.page_tokens = page_tokens;
  options.prefix_bytes = prefix_bytes;
  return load(kStories, options);
}

/// K and V in codes, on models whose heads these have.
struct CodedSetting {
  std::string name;
  const char* file;
  KvChoice kv;
  int page_tokens;
};
inline std::vector<CodedSetting> coded_settings() {
  using cache::CodecId;
  const char* const llama = "arch_vectors/llama_9q3kv_hd64.gguf";
  const char* const gemma2 = "arch_vectors/gemma2_b.gguf";  // window 24 in every second layer
  std::vector<CodedSetting> all;
  const auto add = [&](const std::string& name, const char* file, cache::LayerCodecs codecs,
                       int page_tokens, int n_sink_tiles = 1, int n_tail_tiles = 1) {
    KvChoice kv;
    kv.codecs = codecs;
    kv.n_sink_tiles = n_sink_tiles;
    kv.n_tail_tiles = n_tail_tiles;
    all.push_back({name + "Page" + std::to_string(page_tokens), file, kv, page_tokens});
  };
  add("LlamaInt8", llama, {CodecId::kInt8, CodecId::kInt8}, 16);
  add("LlamaInt8G64", llama, {CodecId::kInt8G64, CodecId::kInt8G64}, 64);
  add("LlamaTile4", llama, {CodecId::kTile4, CodecId::kTile4}, 64);
  add("LlamaTile4NoTail", llama, {CodecId::kTile4, CodecId::kTile4}, 64, 0, 0);
  add("LlamaTile4Tile3", llama, {CodecId::kTile4, CodecId::kTile3}, 128, 0, 0);
  add("Gemma2Int8", gemma2, {CodecId::kInt8, CodecId::kF16}, 16);
  add("Gemma2Tile4", gemma2, {CodecId::kTile4, CodecId::kTile4}, 64, 0, 0);
  add("Gemma2Tile5Int8", gemma2, {CodecId::kTile5, CodecId::kInt8}, 64, 1, 0);
  add("LlamaTile4InABasis", llama, {CodecId::kTile4, CodecId::kTile4}, 64);
  all.back().kv.key_bases = random_key_bases({2, 3, 64});
  add("LlamaByLayer", llama, {}, 64, 0, 0);
  all.back().kv.layers = {{CodecId::kInt8, CodecId::kTile4}, {CodecId::kTile5, CodecId::kTile3}};
  return all;
}

/// Ids that count up from `first`: no two prompts of other firsts begin alike.
inline Tokens run_of(int n, TokenId first = 3) {
  Tokens tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(first + i);
  return tokens;
}

/// The first `n` of `tokens`, and others.
inline Tokens branch(const Tokens& tokens, int n, int n_others) {
  Tokens out(tokens.begin(), tokens.begin() + n);
  for (int i = 0; i < n_others; ++i) out.push_back(400 + i);
  return out;
}

inline ::testing::AssertionResult same_bits(std::span<const float> got,
                                            std::span<const float> want) {
  if (got.size() != want.size() || want.empty()) {
    return ::testing::AssertionFailure() << got.size() << " values, want " << want.size();
  }
  if (std::memcmp(got.data(), want.data(), want.size_bytes()) == 0) {
    return ::testing::AssertionSuccess();
  }
  const auto differ = std::mismatch(got.begin(), got.end(), want.begin());
  return ::testing::AssertionFailure() << "logit " << differ.first - got.begin() << ": "
                                       << *differ.first << ", want " << *differ.second;
}

/// Logits of whole prompts, each computed by a session of its own in an engine that keeps nothing.
class Cold {
 public:
  Cold(const std::string& file, EngineOptions options) {
    options.prefix_bytes = 0;
    options.page_tokens = 64;
    options.n_batch = 512;
    engine_ = load(file, options);
  }
  const std::vector<float>& logits(const Tokens& tokens) {
    std::vector<float>& entry = known_[tokens];
    if (entry.empty()) {
      Session session(*engine_);
      EXPECT_TRUE(session.prompt(tokens));
      entry.assign(session.logits().begin(), session.logits().end());
    }
    return entry;
  }
  int vocab_size() const { return engine_->model().config().vocab_size; }

 private:
  std::unique_ptr<Engine> engine_;
  std::map<Tokens, std::vector<float>> known_;
};

/// Prompts of up to 220 tokens that mostly begin like an earlier one, as often as not in the middle
/// of a page.
class RandomPrompts {
 public:
  RandomPrompts(int vocab_size, int least, std::uint32_t seed)
      : vocab_size_(vocab_size), least_(least), random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }
  TokenId token() { return below(vocab_size_); }
  Tokens next() {
    Tokens prompt;
    if (!prompts_.empty() && below(8) != 0) {
      prompt = prompts_[static_cast<std::size_t>(below(static_cast<int>(prompts_.size())))];
      if (below(3) != 0) {
        prompt.resize(static_cast<std::size_t>(below(static_cast<int>(prompt.size())) + 1));
      }
    }
    n_shared_ = static_cast<int>(prompt.size());
    const int n_new = prompt.empty() ? least_ + below(100) : below(40);
    for (int i = 0; i < n_new && prompt.size() < 220; ++i) prompt.push_back(token());
    prompts_.push_back(prompt);
    return prompt;
  }
  std::size_t n_prompts() const { return prompts_.size(); }
  /// Tokens that the newest prompt has in common with an earlier one, at least.
  int n_shared() const { return n_shared_; }

 private:
  const int vocab_size_, least_;
  std::mt19937 random_;
  std::vector<Tokens> prompts_;
  int n_shared_ = 0;
};

}  // namespace kvasir::engine::testing
