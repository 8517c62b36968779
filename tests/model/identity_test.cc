// The same tokens give the same bits, however they are stored, chunked, batched or threaded
// (architecture.md D2): what makes caching, sharing and scheduling safe to do at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
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
using testing::run_in_chunks;
using testing::same_bits;

struct Case {
  const char* name;
  const char* file;
  ActivationMode mode;
  int n_tokens;  ///< spans several segments of 256 positions where the model allows
};

// Plain and GQA heads, int8 and float kernels, windows of two patterns, heads of 8.
const Case kCases[] = {
    {"Gqa9Heads", "arch_vectors/llama_9q3kv_hd64.gguf", ActivationMode::kFloat32, 300},
    {"Q4_0", "arch_vectors/q_q4_0.gguf", ActivationMode::kInt8, 300},
    {"Q4_K", "arch_vectors/q_q4_k_s.gguf", ActivationMode::kInt8, 150},
    {"Q6_K", "arch_vectors/q_q6_k.gguf", ActivationMode::kInt8, 150},
    {"Bf16", "arch_vectors/q_bf16.gguf", ActivationMode::kInt8, 150},
    {"Gemma2", "arch_vectors/gemma2_b.gguf", ActivationMode::kFloat32, 300},
    {"Gemma3", "arch_vectors/gemma3.gguf", ActivationMode::kFloat32, 300},
    {"Phi3", "arch_vectors/phi3.gguf", ActivationMode::kFloat32, 150},
    {"Stories", "stories260k/stories260K.gguf", ActivationMode::kInt8, 300},
};

std::vector<Layout> layouts(CodecId codec) {
  return {
      {"contiguous", 512, HeadOrder::kSplit, Grouping::kModel, codec},
      {"contiguous, odd length", 336, HeadOrder::kSplit, Grouping::kModel, codec},
      {"16-token pages", 16, HeadOrder::kSplit, Grouping::kModel, codec},
      {"64-token pages", 64, HeadOrder::kSplit, Grouping::kModel, codec},
      {"16, interleaved heads", 16, HeadOrder::kInterleaved, Grouping::kModel, codec},
      {"512, interleaved heads", 512, HeadOrder::kInterleaved, Grouping::kModel, codec},
      {"64, a group per layer", 64, HeadOrder::kSplit, Grouping::kPerLayer, codec},
      {"16, interleaved, a group per layer", 16, HeadOrder::kInterleaved, Grouping::kPerLayer,
       codec},
  };
}

class BitIdentity : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    harness_ = Harness::load(GetParam().file, 1, GetParam().mode);
    ASSERT_NE(harness_, nullptr);
    tokens_ = random_tokens(GetParam().n_tokens, harness_->vocab_size(), 7);
  }
  std::vector<float> reference(CodecId codec) {
    return run_in_chunks(*harness_, layouts(codec)[0], tokens_, {GetParam().n_tokens});
  }

  std::unique_ptr<Harness> harness_;
  std::vector<TokenId> tokens_;
};

TEST_P(BitIdentity, OverLayouts) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kF16, CodecId::kBF16}) {
    const auto want = reference(codec);
    for (const Layout& layout : layouts(codec)) {
      EXPECT_TRUE(same_bits(run_in_chunks(*harness_, layout, tokens_, {GetParam().n_tokens}), want))
          << layout.name << ", codec " << static_cast<int>(codec);
    }
  }
}

TEST_P(BitIdentity, OverChunkings) {
  const auto want = reference(CodecId::kF16);
  const auto all = layouts(CodecId::kF16);
  const std::vector<std::vector<int>> chunkings = {{1}, {64}, {16, 1, 1}, {97, 3}, {255, 1}, {7}};
  for (std::size_t i = 0; i < chunkings.size(); ++i) {
    EXPECT_TRUE(
        same_bits(run_in_chunks(*harness_, all[i % all.size()], tokens_, chunkings[i]), want))
        << "chunks of " << chunkings[i][0] << ", " << all[i % all.size()].name;
  }
}

TEST_P(BitIdentity, OverThreads) {
  const auto want = reference(CodecId::kF16);
  for (const int n_threads : {2, 3}) {
    auto threaded = Harness::load(GetParam().file, n_threads, GetParam().mode);
    ASSERT_NE(threaded, nullptr);
    for (const std::vector<int>& chunks : {std::vector<int>{GetParam().n_tokens}, {1}, {40}}) {
      EXPECT_TRUE(
          same_bits(run_in_chunks(*threaded, layouts(CodecId::kF16)[3], tokens_, chunks), want))
          << n_threads << " threads, chunks of " << chunks[0];
    }
  }
}

/// Mixed batches: a prompt in chunks beside another sequence that generates, and one that wants
/// nothing.
TEST_P(BitIdentity, BatchedWithOtherSequences) {
  const auto want = reference(CodecId::kF16);
  auto threaded = Harness::load(GetParam().file, 2, GetParam().mode);
  ASSERT_NE(threaded, nullptr);
  auto kv = threaded->make_cache(layouts(CodecId::kF16)[2]);
  cache::Sequence sequence = kv->open(), other = kv->open(), silent = kv->open();
  const auto noise = random_tokens(GetParam().n_tokens, threaded->vocab_size(), 99);
  const auto n_vocab = static_cast<std::size_t>(threaded->vocab_size());
  std::vector<float> all;
  std::size_t begin = 0, n_other = 0;
  for (std::size_t chunk = 1; begin < tokens_.size(); chunk = chunk * 2 % 61 + 1) {
    const std::size_t n = std::min(chunk, tokens_.size() - begin);
    const Harness::Step steps[] = {
        {&other, std::span(noise).subspan(n_other, 1), 1},
        {&sequence, std::span(tokens_).subspan(begin, n), static_cast<int>(n)},
        {&silent, std::span(noise).subspan(n_other, 3), 0},
    };
    const auto logits = threaded->forward(steps);
    ASSERT_EQ(logits.size(), (n + 1) * n_vocab);
    all.insert(all.end(), logits.begin() + static_cast<std::ptrdiff_t>(n_vocab), logits.end());
    begin += n;
    ++n_other;
  }
  EXPECT_TRUE(same_bits(all, want));
}

/// The last layer skips rows whose logits nobody wants; the others must not notice.
TEST_P(BitIdentity, WhateverLogitsAreWanted) {
  const auto want = reference(CodecId::kF16);
  const auto n_vocab = static_cast<std::size_t>(harness_->vocab_size());
  for (const int n_logits : {1, 5}) {
    auto kv = harness_->make_cache(layouts(CodecId::kF16)[3]);
    cache::Sequence sequence = kv->open();
    const auto half = tokens_.size() / 2;
    EXPECT_TRUE(harness_->forward(sequence, std::span(tokens_).first(half), 0).empty());
    const auto got = harness_->forward(sequence, std::span(tokens_).subspan(half), n_logits);
    const std::vector<float> tail(
        want.end() - static_cast<std::ptrdiff_t>(n_vocab * static_cast<std::size_t>(n_logits)),
        want.end());
    EXPECT_TRUE(same_bits(got, tail)) << n_logits << " logits";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BitIdentity, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace kvasir::model
