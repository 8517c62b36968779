// Loading: tensors that are missing, misshapen or too many, the byte budget, progress, accounting.
#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "model/harness.h"
#include "model/tiny_llama.h"

namespace kvasir::model {
namespace {

using kvasir::testing::GgufWriter;
using testing::tiny_llama;

class ModelLoad : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Model>> load(const GgufWriter& writer, LoadOptions options = {}) {
    bytes_ = writer.build();
    const auto file = gguf::File::parse(bytes_, "test");
    if (!file) return file.error();
    return Model::load(*file, options, budget_, pool_);
  }

  /// Three tokens through the model, all their logits wanted.
  Status forward(const GgufWriter& writer, std::vector<float>& logits) {
    const auto model = load(writer);
    if (!model) return model.error();
    cache::CacheOptions options;
    options.groups = (*model)->cache_groups();
    const auto kv = cache::KvCache::create(options, budget_);
    cache::Sequence sequence = (*kv)->open();
    EXPECT_TRUE(sequence.append(3).has_value());
    const auto views = sequence.views();
    const std::vector<TokenId> tokens = {1, 7, 40};
    const ForwardItem item{.tokens = tokens, .first_pos = 0, .layers = views, .n_logits = 3};
    return (*model)->forward({&item, 1}, pool_, logits);
  }

  std::vector<float> logits_of(const GgufWriter& writer) {
    std::vector<float> logits;
    const Status status = forward(writer, logits);
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
    return logits;
  }

  std::vector<std::uint8_t> bytes_;
  cache::ByteBudget budget_;
  ThreadPool pool_{1};
};

TEST_F(ModelLoad, ChargesTheWeightsAndGivesThemBack) {
  {
    const auto model = load(tiny_llama());
    ASSERT_TRUE(model.has_value()) << model.error().message;
    EXPECT_GT((*model)->weight_bytes(), 0u);
    EXPECT_EQ(budget_.reserved(cache::MemoryOwner::kWeights), (*model)->weight_bytes());
  }
  EXPECT_EQ(budget_.reserved(), 0u);
}

TEST_F(ModelLoad, RefusesWhatTheBudgetCannotHold) {
  const auto bytes = tiny_llama().build();
  const auto file = gguf::File::parse(bytes, "test");
  ASSERT_TRUE(file.has_value());
  cache::ByteBudget small(10000);
  const auto model = Model::load(*file, {}, small, pool_);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::kExhausted);
  EXPECT_NE(model.error().message.find_first_of("0123456789"), std::string::npos)
      << model.error().message;
  EXPECT_EQ(small.reserved(), 0u);
}

TEST_F(ModelLoad, LogitsThatAreNotFiniteAreAnError) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    GgufWriter writer = tiny_llama();
    writer.remove_tensor("output_norm.weight");
    writer.add_f32_tensor("output_norm.weight", {32}, std::vector<float>(32, bad));
    std::vector<float> logits;
    const Status status = forward(writer, logits);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidModel);
    EXPECT_NE(status.error().message.find("not finite"), std::string::npos)
        << status.error().message;
  }
}

TEST_F(ModelLoad, ReportsProgressUpToOne) {
  std::vector<double> shares;
  LoadOptions options;
  options.progress = [&](double share) { shares.push_back(share); };
  ASSERT_TRUE(load(tiny_llama(), options).has_value());
  ASSERT_GT(shares.size(), 4u);
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_DOUBLE_EQ(shares.back(), 1.0);
}

TEST_F(ModelLoad, NamesTheTensorThatIsMissingOrMisshapen) {
  for (const char* name : {"output_norm.weight", "blk.1.attn_norm.weight", "blk.0.attn_k.weight",
                           "blk.1.ffn_down.weight"}) {
    GgufWriter writer = tiny_llama();
    writer.remove_tensor(name);
    auto model = load(writer);
    ASSERT_FALSE(model.has_value()) << name;
    EXPECT_EQ(model.error().code, ErrorCode::kInvalidModel);
    EXPECT_NE(model.error().message.find(name), std::string::npos) << model.error().message;

    writer.add_f32_tensor(name, {8, 8}, std::vector<float>(64, 1.0f));
    model = load(writer);
    ASSERT_FALSE(model.has_value()) << name;
    EXPECT_EQ(model.error().code, ErrorCode::kInvalidModel);
    EXPECT_NE(model.error().message.find(name), std::string::npos) << model.error().message;
  }
  EXPECT_EQ(budget_.reserved(), 0u);
}

TEST_F(ModelLoad, RefusesTensorsItWouldHaveToIgnore) {
  GgufWriter writer = tiny_llama();
  writer.add_f32_tensor("blk.0.attn_q_norm.weight", {16}, std::vector<float>(16, 1.0f));
  const auto model = load(writer);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(model.error().message.find("blk.0.attn_q_norm.weight"), std::string::npos);
}

TEST_F(ModelLoad, RefusesQuantizedNorms) {
  GgufWriter writer = tiny_llama();
  writer.remove_tensor("output_norm.weight");
  writer.add_tensor("output_norm.weight", gguf::TensorType::kQ8_0, {32},
                    std::vector<std::uint8_t>(34, 0));
  const auto model = load(writer);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
}

TEST_F(ModelLoad, CountsMultiplyAdds) {
  const auto model = load(tiny_llama());
  ASSERT_TRUE(model.has_value());
  const double per_layer = 32 * 64 + 32 * 32 + 32 * 128 + 64 * 32;
  EXPECT_DOUBLE_EQ((*model)->multiply_adds(0), 32 * 48 + 2 * per_layer);
  EXPECT_DOUBLE_EQ((*model)->multiply_adds(10) - (*model)->multiply_adds(0), 2 * 2 * 32 * 10);
}

/// A part without a bias among parts with one counts as zero.
TEST_F(ModelLoad, BiasesCountAndMayBePartial) {
  GgufWriter partial = tiny_llama();
  partial.add_f32_tensor("blk.0.attn_v.bias", {16}, std::vector<float>(16, 0.5f));
  GgufWriter full = partial;
  full.add_f32_tensor("blk.0.attn_q.bias", {32}, std::vector<float>(32, 0.0f));
  full.add_f32_tensor("blk.0.attn_k.bias", {16}, std::vector<float>(16, 0.0f));
  const auto plain_logits = logits_of(tiny_llama());
  const auto partial_logits = logits_of(partial);
  EXPECT_NE(partial_logits, plain_logits);
  EXPECT_EQ(partial_logits, logits_of(full));
  for (const char* name : {"blk.1.attn_output.bias", "blk.1.ffn_down.bias", "output.bias"}) {
    GgufWriter biased = tiny_llama();
    const std::uint64_t n = std::string(name) == "output.bias" ? 48 : 32;
    std::vector<float> bias(n, 0.0f);
    bias[3] = 0.5f;
    biased.add_f32_tensor(name, {n}, bias);
    EXPECT_NE(logits_of(biased), plain_logits) << name;
  }
}

TEST(ModelForward, RefusesBadTokensAndSizes) {
  auto harness = testing::Harness::load("arch_vectors/llama_mha.gguf");
  ASSERT_NE(harness, nullptr);
  auto kv = harness->make_cache({});
  cache::Sequence sequence = kv->open();
  ASSERT_TRUE(sequence.append(2).has_value());
  const auto views = sequence.views();
  std::vector<float> logits;
  for (const TokenId token : {-1, harness->vocab_size(), 0x7fffffff}) {
    const std::vector<TokenId> tokens = {0, token};
    const ForwardItem item{.tokens = tokens, .first_pos = 0, .layers = views, .n_logits = 1};
    const Status status = harness->model().forward({&item, 1}, harness->pool(), logits);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  }
  const std::vector<TokenId> tokens = {0, 1};
  for (const int n_logits : {-1, 3}) {
    const ForwardItem item{.tokens = tokens, .first_pos = 0, .layers = views, .n_logits = n_logits};
    EXPECT_FALSE(harness->model().forward({&item, 1}, harness->pool(), logits).has_value());
  }
  EXPECT_FALSE(harness->model().forward({}, harness->pool(), logits).has_value());
}

TEST(ModelForward, KeepsItsScratchFromStepToStep) {
  auto harness = testing::Harness::load("arch_vectors/llama_mha.gguf");
  ASSERT_NE(harness, nullptr);
  EXPECT_EQ(harness->model().scratch_bytes(), 0u);
  auto kv = harness->make_cache({});
  cache::Sequence sequence = kv->open();
  const auto tokens = testing::random_tokens(64, harness->vocab_size(), 1);
  (void)harness->forward(sequence, tokens, 1);
  const auto after_prompt = harness->model().scratch_bytes();
  EXPECT_GT(after_prompt, 0u);
  (void)harness->forward(sequence, std::span(tokens).first(1), 1);
  EXPECT_EQ(harness->model().scratch_bytes(), after_prompt);
}

TEST(ModelGroups, WindowLayersHaveTheirOwn) {
  auto harness = testing::Harness::load("arch_vectors/gemma3.gguf");
  ASSERT_NE(harness, nullptr);
  const auto groups = harness->model().cache_groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].layers, std::vector<int>({5}));
  EXPECT_EQ(groups[0].window, 0);
  EXPECT_EQ(groups[1].layers, std::vector<int>({0, 1, 2, 3, 4, 6}));
  EXPECT_EQ(groups[1].window, 16);
}

}  // namespace
}  // namespace kvasir::model
