// A sequence whose K and V are not finite is counted and refused; whoever is in the same batch has
// the bits that it has alone.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/kv_dir_support.h"

namespace kvasir::engine {
namespace {

using namespace testing;
using cache::CodecId;

constexpr TokenId kBad = 500;

/// A model whose token kBad is embedded as NaN. Its output matrix is another one.
class Faults : public ::testing::TestWithParam<cache::LayerCodecs> {
 protected:
  void SetUp() override {
    Bytes bytes = read_bytes(kData + "arch_vectors/llama_untied_gqa.gguf");
    const auto file = gguf::File::parse(bytes, "model");
    ASSERT_TRUE(file) << file.error().message;
    const gguf::TensorInfo* embedding = file->tensor("token_embd.weight");
    ASSERT_NE(embedding, nullptr);
    const std::size_t row_bytes = embedding->shape[0] * sizeof(float);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes.data() + embedding->file_offset + kBad * row_bytes, &nan, sizeof(nan));
    std::filesystem::create_directories(scratch_.path());
    const std::string path = scratch_.path() + "/model.gguf";
    write_bytes(path, bytes);

    EngineOptions options;
    options.model_path = path;
    options.n_threads = 2;
    options.n_batch = 32;
    options.kv.codecs = GetParam();
    options.kv.n_sink_tiles = options.kv.n_tail_tiles = 0;
    auto engine = Engine::load(Env::posix(), options);
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = std::move(*engine);
  }

  std::vector<float> logits_of(const Tokens& tokens) {
    Session session(*engine_);
    const auto report = session.prompt(tokens);
    EXPECT_TRUE(report) << report.error().message;
    return {session.logits().begin(), session.logits().end()};
  }

  KvDirectory scratch_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(Faults, OfOneSequenceAreCountedAndItsNeighbourKeepsItsBits) {
  const Tokens clean = run_of(150);
  Tokens poisoned = run_of(150, 40);
  poisoned[100] = kBad;
  const std::vector<float> want = logits_of(clean);
  EXPECT_EQ(engine_->faults().n_poisoned_tokens, 0);
  EXPECT_EQ(engine_->faults().n_refused_steps, 0);

  cache::Sequence good = engine_->cache().open(), bad = engine_->cache().open();
  std::vector<float> logits;
  std::vector<model::ItemFaults> faults;
  for (int first = 0; first < 150; first += 50) {
    const auto chunk = [&](const Tokens& tokens) {
      return std::span(tokens).subspan(static_cast<std::size_t>(first), 50);
    };
    const int n_logits = first == 100 ? 1 : 0;
    const Engine::Step steps[] = {{&bad, chunk(poisoned), n_logits},
                                  {&good, chunk(clean), n_logits}};
    const Status status = engine_->forward(steps, logits, &faults);
    ASSERT_EQ(faults.size(), 2u);
    EXPECT_EQ(faults[1].n_poisoned, 0);
    EXPECT_FALSE(faults[1].has_bad_logits);
    if (first < 100) {
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_EQ(faults[0].n_poisoned, 0);
      continue;
    }
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidModel);
    EXPECT_NE(status.error().message.find("in 1 of 2 sequences (K or V of 50 tokens are not)"),
              std::string::npos)
        << status.error().message;
    EXPECT_EQ(faults[0].n_poisoned, 50);  // the bad one, and those behind it, which have seen it
    EXPECT_TRUE(faults[0].has_bad_logits);
    const std::span<const float> both(logits);
    EXPECT_TRUE(same_bits(both.subspan(both.size() / 2), want));
  }
  EXPECT_EQ(engine_->faults().n_poisoned_tokens, 50);
  EXPECT_EQ(engine_->faults().n_refused_steps, 1);

  // Both are as they were; the good one goes on alone.
  EXPECT_EQ(good.n_tokens(), 100);
  EXPECT_EQ(bad.n_tokens(), 100);
  const Engine::Step alone{&good, std::span(clean).subspan(100), 1};
  ASSERT_TRUE(engine_->forward({&alone, 1}, logits, &faults));
  EXPECT_TRUE(same_bits(logits, want));
  EXPECT_EQ(engine_->faults().n_poisoned_tokens, 50);
  engine_->cache().check_invariants();
}

/// Chunks whose logits nobody wants are not refused, but counted.
TEST_P(Faults, OfAPromptsEarlierChunkAreCountedToo) {
  Tokens poisoned = run_of(150);
  poisoned[70] = kBad;
  Session session(*engine_);
  const auto report = session.prompt(poisoned);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidModel);
  EXPECT_EQ(engine_->faults().n_poisoned_tokens, 80);
  EXPECT_EQ(engine_->faults().n_refused_steps, 1);
  const std::vector<float> after = logits_of(run_of(100));
  for (const float logit : after) ASSERT_TRUE(std::isfinite(logit));
  EXPECT_EQ(engine_->faults().n_poisoned_tokens, 80);
}

INSTANTIATE_TEST_SUITE_P(Codecs, Faults,
                         ::testing::Values(cache::LayerCodecs{CodecId::kF16, CodecId::kF16},
                                           cache::LayerCodecs{CodecId::kBF16, CodecId::kF32},
                                           cache::LayerCodecs{CodecId::kInt8, CodecId::kInt8G64},
                                           cache::LayerCodecs{CodecId::kTile4, CodecId::kTile3}),
                         [](const auto& tested) {
                           return std::string(cache::codec_name(tested.param.k)) +
                                  std::string(cache::codec_name(tested.param.v)).substr(0, 4);
                         });

}  // namespace
}  // namespace kvasir::engine
