// Hyperparameters of hostile and of odd headers, and the rope tables made of them.
#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "model/tiny_llama.h"

namespace kvasir::model {
namespace {

using kvasir::testing::GgufWriter;
using testing::tiny_llama;

Result<ModelConfig> parse(const GgufWriter& writer, int n_ctx = 0) {
  const auto bytes = writer.build();
  const auto file = gguf::File::parse(bytes, "test");
  if (!file) return file.error();
  return ModelConfig::from_gguf(*file, n_ctx);
}

TEST(ModelConfig, ReadsATinyLlama) {
  const auto config = parse(tiny_llama());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->n_layers, 2);
  EXPECT_EQ(config->n_embd, 32);
  EXPECT_EQ(config->n_heads, 2);
  EXPECT_EQ(config->n_kv_heads, 1);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->vocab_size, 48);
  EXPECT_EQ(config->window, 0);
  EXPECT_FLOAT_EQ(config->attention_scale, 0.25f);
  EXPECT_EQ(config->rope[0].inverse_frequency.size(), 8u);
}

struct BadHeader {
  const char* what;
  ErrorCode code;
  std::function<void(GgufWriter&)> change;
};

template <class Add>
std::function<void(GgufWriter&)> replace(const char* key, Add add) {
  return [key = std::string(key), add](GgufWriter& writer) {
    writer.remove(key);
    add(writer, key);
  };
}
auto uint32(std::uint32_t value) {
  return [value](GgufWriter& writer, const std::string& key) { writer.add_uint32(key, value); };
}
auto int64(std::int64_t value) {
  return [value](GgufWriter& writer, const std::string& key) { writer.add_int64(key, value); };
}
auto float32(float value) {
  return [value](GgufWriter& writer, const std::string& key) { writer.add_float32(key, value); };
}
auto text(const char* value) {
  return [value](GgufWriter& writer, const std::string& key) { writer.add_string(key, value); };
}
auto nothing() {
  return [](GgufWriter&, const std::string&) {};
}
auto uint32_array(std::vector<std::uint32_t> values) {
  return [values](GgufWriter& writer, const std::string& key) { writer.add_array(key, values); };
}

std::vector<BadHeader> bad_headers() {
  constexpr ErrorCode kBad = ErrorCode::kInvalidModel, kCannot = ErrorCode::kUnsupported;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  return {
      {"no architecture", kBad, replace("general.architecture", nothing())},
      {"architecture is a number", kBad, replace("general.architecture", uint32(1))},
      {"unknown architecture", kCannot, replace("general.architecture", text("mamba"))},
      {"no layers", kBad, replace("llama.block_count", nothing())},
      {"0 layers", kBad, replace("llama.block_count", uint32(0))},
      {"1025 layers", kBad, replace("llama.block_count", uint32(1025))},
      {"negative layers", kBad, replace("llama.block_count", int64(-1))},
      {"layers as text", kBad, replace("llama.block_count", text("2"))},
      {"embedding 2^31", kBad, replace("llama.embedding_length", uint32(0x80000000u))},
      {"feed-forward 2^32 - 1", kBad, replace("llama.feed_forward_length", uint32(0xffffffffu))},
      {"0 heads", kBad, replace("llama.attention.head_count", uint32(0))},
      {"3 heads of 32", kBad, replace("llama.attention.head_count", uint32(3))},
      {"0 kv heads", kBad, replace("llama.attention.head_count_kv", uint32(0))},
      {"more kv heads than heads", kBad, replace("llama.attention.head_count_kv", uint32(4))},
      {"heads of 4", kCannot, replace("llama.attention.head_count", uint32(8))},
      {"heads of 20", kCannot, replace("llama.attention.key_length", uint32(20))},
      {"heads of 1024", kCannot,
       [](GgufWriter& writer) {
         writer.add_uint32("llama.attention.key_length", 1024);
         writer.add_uint32("llama.attention.value_length", 1024);
       }},
      {"values shorter than keys", kCannot, replace("llama.attention.value_length", uint32(8))},
      {"layers differ", kCannot, replace("llama.attention.head_count_kv", uint32_array({1, 2}))},
      {"no heads in the list", kBad, replace("llama.attention.head_count_kv", uint32_array({}))},
      {"eps missing", kBad, replace("llama.attention.layer_norm_rms_epsilon", nothing())},
      {"eps 0", kBad, replace("llama.attention.layer_norm_rms_epsilon", float32(0.0f))},
      {"eps NaN", kBad, replace("llama.attention.layer_norm_rms_epsilon", float32(nan))},
      {"eps infinite", kBad, replace("llama.attention.layer_norm_rms_epsilon", float32(inf))},
      {"rope base 0", kBad, replace("llama.rope.freq_base", float32(0.0f))},
      {"rope base NaN", kBad, replace("llama.rope.freq_base", float32(nan))},
      {"rope base negative", kBad, replace("llama.rope.freq_base", float32(-1.0f))},
      {"rope factor NaN", kBad, replace("llama.rope.scaling.factor", float32(nan))},
      {"rope of half a head", kCannot, replace("llama.rope.dimension_count", uint32(8))},
      {"rope beyond the head", kBad, replace("llama.rope.dimension_count", uint32(32))},
      {"unknown scaling", kCannot, replace("llama.rope.scaling.type", text("ntk"))},
      {"longrope without factors", kBad, replace("llama.rope.scaling.type", text("longrope"))},
      {"experts", kCannot, replace("llama.expert_count", uint32(8))},
      {"context 0", kBad, replace("llama.context_length", uint32(0))},
      {"no embedding", kBad, [](GgufWriter& writer) { writer.remove_tensor("token_embd.weight"); }},
      {"more tokens than rows", kBad,
       [](GgufWriter& writer) {
         writer.add_string_array("tokenizer.ggml.tokens", std::vector<std::string>(49, "a"));
       }},
      {"rope_freqs of a wrong length", kBad,
       [](GgufWriter& writer) {
         writer.add_f32_tensor("rope_freqs.weight", {3}, {1, 1, 1});
       }},
      {"rope_freqs with a zero", kBad,
       [](GgufWriter& writer) {
         writer.add_f32_tensor("rope_freqs.weight", {8}, {1, 1, 1, 0, 1, 1, 1, 1});
       }},
  };
}

TEST(ModelConfig, RefusesBadHeadersWithAReason) {
  for (const BadHeader& bad : bad_headers()) {
    SCOPED_TRACE(bad.what);
    GgufWriter writer = tiny_llama();
    bad.change(writer);
    const auto config = parse(writer);
    ASSERT_FALSE(config.has_value());
    EXPECT_EQ(config.error().code, bad.code) << config.error().message;
    EXPECT_GT(config.error().message.size(), 15u);
  }
}

TEST(ModelConfig, AcceptsUniformLists) {
  GgufWriter writer = tiny_llama();
  writer.remove("llama.attention.head_count_kv");
  writer.add_array<std::uint32_t>("llama.attention.head_count_kv", {1, 1});
  const auto config = parse(writer);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->n_kv_heads, 1);
}

TEST(ModelConfig, GemmaWindowPatterns) {
  GgufWriter writer = tiny_llama("gemma3");
  writer.remove("gemma3.block_count");
  writer.add_uint32("gemma3.block_count", 12);
  writer.add_uint32("gemma3.attention.sliding_window", 16);
  auto config = parse(writer);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  for (int layer = 0; layer < 12; ++layer) {
    EXPECT_EQ(config->is_window_layer[static_cast<std::size_t>(layer)], layer % 6 != 5) << layer;
  }
  EXPECT_FLOAT_EQ(config->embedding_scale, std::sqrt(32.0f));

  writer.add_bool_array("gemma3.attention.sliding_window_pattern", std::vector<bool>(12, true));
  config = parse(writer);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_TRUE(config->is_window_layer[5]);
}

TEST(ModelConfig, Gemma27bScalesByEmbeddingPerHead) {
  GgufWriter writer = tiny_llama("gemma3");
  writer.remove("gemma3.block_count");
  writer.add_uint32("gemma3.block_count", 62);
  writer.add_uint32("gemma3.attention.key_length", 64);
  writer.add_uint32("gemma3.attention.value_length", 64);
  const auto config = parse(writer);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_FLOAT_EQ(config->attention_scale, 1.0f / std::sqrt(16.0f));
}

TEST(Rope, LinearDividesEveryFrequency) {
  GgufWriter writer = tiny_llama();
  const auto plain = parse(writer);
  writer.add_string("llama.rope.scaling.type", "linear");
  writer.add_float32("llama.rope.scaling.factor", 4.0f);
  const auto scaled = parse(writer);
  ASSERT_TRUE(plain.has_value() && scaled.has_value());
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_DOUBLE_EQ(plain->rope[0].inverse_frequency[i],
                     std::pow(10000.0, -static_cast<double>(i) / 8.0));
    EXPECT_DOUBLE_EQ(scaled->rope[0].inverse_frequency[i],
                     plain->rope[0].inverse_frequency[i] / 4.0);
  }
}

TEST(Rope, YarnKeepsFastPairsAndStretchesSlowOnes) {
  GgufWriter writer = tiny_llama();
  const auto plain = parse(writer);
  writer.add_string("llama.rope.scaling.type", "yarn");
  writer.add_float32("llama.rope.scaling.factor", 8.0f);
  writer.add_uint32("llama.rope.scaling.original_context_length", 4096);
  const auto yarn = parse(writer);
  ASSERT_TRUE(plain.has_value() && yarn.has_value());
  const auto& before = plain->rope[0].inverse_frequency;
  const auto& after = yarn->rope[0].inverse_frequency;
  EXPECT_DOUBLE_EQ(after.front(), before.front());
  EXPECT_DOUBLE_EQ(after.back(), before.back() / 8.0);
  EXPECT_NEAR(yarn->rope[0].magnitude, 1.0 + 0.1 * std::log(8.0), 1e-6);
}

/// The tensor that converters write and the metadata must mean the same.
TEST(Rope, Llama3FactorsFromTensorAndMetadataAgree) {
  GgufWriter by_tensor = tiny_llama();
  std::vector<float> divisors;
  for (int i = 0; i < 8; ++i) {
    const double wavelength = 2.0 * std::numbers::pi * std::pow(10000.0, i / 8.0);
    if (wavelength < 64.0 / 4.0) {
      divisors.push_back(1.0f);
    } else if (wavelength > 64.0) {
      divisors.push_back(8.0f);
    } else {
      const double smooth = (64.0 / wavelength - 1.0) / 3.0;
      divisors.push_back(static_cast<float>(1.0 / ((1.0 - smooth) / 8.0 + smooth)));
    }
  }
  by_tensor.add_f32_tensor("rope_freqs.weight", {8}, divisors);
  GgufWriter by_metadata = tiny_llama();
  by_metadata.add_string("llama.rope.scaling.type", "llama3");
  by_metadata.add_float32("llama.rope.scaling.factor", 8.0f);
  by_metadata.add_uint32("llama.rope.scaling.original_context_length", 64);
  const auto a = parse(by_tensor), b = parse(by_metadata);
  ASSERT_TRUE(a.has_value() && b.has_value());
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(a->rope[0].inverse_frequency[i] / b->rope[0].inverse_frequency[i], 1.0, 1e-6) << i;
  }
}

TEST(Rope, LongRopeChoosesItsFactorsByContext) {
  GgufWriter writer = tiny_llama();
  writer.add_string("llama.rope.scaling.type", "longrope");
  writer.add_uint32("llama.rope.scaling.original_context_length", 64);
  writer.add_float32("llama.rope.scaling.attn_factor", 1.19f);
  writer.add_f32_tensor("rope_factors_long.weight", {8}, std::vector<float>(8, 4.0f));
  writer.add_f32_tensor("rope_factors_short.weight", {8}, std::vector<float>(8, 2.0f));
  const auto trained = parse(writer), shorter = parse(writer, 64);
  ASSERT_TRUE(trained.has_value() && shorter.has_value());
  EXPECT_DOUBLE_EQ(trained->rope[0].inverse_frequency[0], 0.25);
  EXPECT_DOUBLE_EQ(shorter->rope[0].inverse_frequency[0], 0.5);
  EXPECT_FLOAT_EQ(shorter->rope[0].magnitude, 1.19f);
}

TEST(Rope, Gemma3WindowLayersUseTheLocalBaseUnstretched) {
  GgufWriter writer = tiny_llama("gemma3");
  writer.add_uint32("gemma3.attention.sliding_window", 16);
  writer.add_float32("gemma3.rope.freq_base", 1e6f);
  writer.add_string("gemma3.rope.scaling.type", "linear");
  writer.add_float32("gemma3.rope.scaling.factor", 8.0f);
  const auto config = parse(writer);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_DOUBLE_EQ(config->rope[0].inverse_frequency[0], 0.125);
  EXPECT_DOUBLE_EQ(config->rope[0].inverse_frequency[1], std::pow(1e6, -0.125) / 8.0);
  EXPECT_DOUBLE_EQ(config->rope[1].inverse_frequency[1], std::pow(1e4, -0.125));
}

}  // namespace
}  // namespace kvasir::model
