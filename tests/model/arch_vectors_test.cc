// Every architecture and weight type against llama.cpp's logits
// (tests/data/arch_vectors/README.md).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/harness.h"

namespace kvasir::model {
namespace {

using testing::Harness;
using testing::Layout;
using Json = nlohmann::json;

/// Well-formed files that nothing here runs; their fault must be named.
const std::set<std::string> kUnsupportedFiles = {"gpt2", "llama_moe", "llama_partial_rope",
                                                 "qwen3moe"};

std::vector<std::string> supported_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::data_path("arch_vectors"))) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".json" && !kUnsupportedFiles.contains(name)) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Json load_json(const std::string& name) {
  std::ifstream stream(testing::data_path("arch_vectors/" + name + ".json"));
  return Json::parse(stream);
}

/// All rows' logits of the file's ids, in one batch.
std::vector<float> compute(const std::string& name, const Json& vector, ActivationMode mode,
                           cache::CodecId codec) {
  auto harness = Harness::load("arch_vectors/" + name + ".gguf", 1, mode);
  if (harness == nullptr) return {};
  Layout layout;
  layout.codec = codec;
  auto kv = harness->make_cache(layout);
  cache::Sequence sequence = kv->open();
  const auto ids = vector["ids"].get<std::vector<TokenId>>();
  return harness->forward(sequence, ids, static_cast<int>(ids.size()));
}

struct Difference {
  double max = 0.0;
  double rms = 0.0;
};

/// Over the positions whose logits the file holds.
Difference compare(const std::vector<float>& logits, const Json& vector, const char* reference) {
  Difference difference;
  const auto positions = vector["positions"].get<std::vector<std::size_t>>();
  const auto rows = vector[reference].get<std::vector<std::vector<double>>>();
  const std::size_t n_vocab = rows[0].size();
  double sum = 0.0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t token = 0; token < n_vocab; ++token) {
      const double d =
          std::abs(static_cast<double>(logits[positions[i] * n_vocab + token]) - rows[i][token]);
      difference.max = std::isnan(d) ? 1e30 : std::max(difference.max, d);
      sum += d * d;
    }
  }
  difference.rms = std::sqrt(sum / static_cast<double>(rows.size() * n_vocab));
  return difference;
}

void expect_close(const std::vector<float>& logits, const Json& vector, const char* reference,
                  const char* tolerance_name) {
  const Json& tolerance = vector["tolerance"][tolerance_name];
  const Difference difference = compare(logits, vector, reference);
  EXPECT_LE(difference.max, tolerance["max"].get<double>()) << tolerance_name;
  if (tolerance.contains("rms")) {
    EXPECT_LE(difference.rms, tolerance["rms"].get<double>()) << tolerance_name;
  }
  // Shown by ctest -V: how much of the tolerance is used.
  ::testing::Test::RecordProperty(tolerance_name, fmt::format("{:.3g}", difference.max));
}

void expect_same_argmax(const std::vector<float>& logits, const Json& vector) {
  const auto argmax = vector["argmax"].get<std::vector<int>>();
  const auto gap = vector["gap"].get<std::vector<double>>();
  const double threshold = vector["tolerance"]["argmax_compare_where_gap_above"].get<double>();
  const std::size_t n_vocab = logits.size() / argmax.size();
  int n_compared = 0;
  for (std::size_t pos = 0; pos < argmax.size(); ++pos) {
    if (gap[pos] <= threshold) continue;
    ++n_compared;
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(pos * n_vocab);
    const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(n_vocab));
    EXPECT_EQ(best - row, argmax[pos]) << "position " << pos;
  }
  EXPECT_GE(n_compared, 20);
}

double mean_nll(const std::vector<float>& logits, const std::vector<TokenId>& ids) {
  const std::size_t n_vocab = logits.size() / ids.size();
  double total = 0.0;
  for (std::size_t pos = 0; pos + 1 < ids.size(); ++pos) {
    const float* row = logits.data() + pos * n_vocab;
    const double best = *std::max_element(row, row + n_vocab);
    double sum = 0.0;
    for (std::size_t token = 0; token < n_vocab; ++token) sum += std::exp(row[token] - best);
    total += best + std::log(sum) - row[static_cast<std::size_t>(ids[pos + 1])];
  }
  return total / static_cast<double>(ids.size() - 1);
}

class ArchVectors : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    vector_ = load_json(GetParam());
    quantized_ = vector_.contains("logits_dequant_f64");
    ids_ = vector_["ids"].get<std::vector<TokenId>>();
  }

  Json vector_;
  bool quantized_ = false;
  std::vector<TokenId> ids_;
};

TEST_P(ArchVectors, FloatActivationsAndF32Kv) {
  const auto logits = compute(GetParam(), vector_, ActivationMode::kFloat32, cache::CodecId::kF32);
  ASSERT_FALSE(logits.empty());
  expect_same_argmax(logits, vector_);
  const double nll_tolerance = vector_["tolerance"]["nll_abs"].get<double>();
  if (quantized_) {
    expect_close(logits, vector_, "logits_dequant_f64", "vs_dequant_float_activations_f32_kv");
    EXPECT_NEAR(mean_nll(logits, ids_), vector_["nll_mean_dequant_f64"].get<double>(),
                nll_tolerance);
    return;
  }
  expect_close(logits, vector_, "logits", "f32_kv");
  if (vector_.contains("logits_f64")) {  // llama.cpp's GELU is a table of half floats
    expect_close(logits, vector_, "logits_f64", "f32_kv_vs_logits_f64");
  }
  EXPECT_NEAR(mean_nll(logits, ids_), vector_["nll_mean"].get<double>(), nll_tolerance);
}

TEST_P(ArchVectors, FloatActivationsAndF16Kv) {
  const auto logits = compute(GetParam(), vector_, ActivationMode::kFloat32, cache::CodecId::kF16);
  ASSERT_FALSE(logits.empty());
  expect_same_argmax(logits, vector_);
  if (quantized_) {
    expect_close(logits, vector_, "logits_dequant_f64", "vs_dequant_float_activations_f16_kv");
  } else {
    expect_close(logits, vector_, "logits", "f16_kv");
  }
}

/// Unquantized weights take the float kernels in this mode too; then it is the mode above.
TEST_P(ArchVectors, Int8Activations) {
  const auto logits = compute(GetParam(), vector_, ActivationMode::kInt8, cache::CodecId::kF32);
  ASSERT_FALSE(logits.empty());
  expect_same_argmax(logits, vector_);
  if (quantized_) {
    expect_close(logits, vector_, "logits", "vs_llamacpp_any");
    expect_close(logits, vector_, "logits_dequant_f64", "vs_dequant_rounded_activations");
    return;
  }
  const auto reference =
      compute(GetParam(), vector_, ActivationMode::kFloat32, cache::CodecId::kF32);
  EXPECT_EQ(logits, reference);
}

INSTANTIATE_TEST_SUITE_P(Files, ArchVectors, ::testing::ValuesIn(supported_names()),
                         [](const auto& tested) { return tested.param; });

TEST(ArchVectorFiles, OthersAreRefusedByName) {
  for (const std::string& name : kUnsupportedFiles) {
    SCOPED_TRACE(name);
    auto file = gguf::File::open(Env::posix(),
                                 testing::data_path("arch_vectors/" + name + ".gguf").string());
    ASSERT_TRUE(file.has_value());
    ThreadPool pool(1);
    cache::ByteBudget budget;
    const auto model = Model::load(*file, {}, budget, pool);
    ASSERT_FALSE(model.has_value());
    EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(model.error().message.rfind("model: ", 0), 0u) << model.error().message;
    EXPECT_EQ(budget.reserved(), 0u);
  }
  EXPECT_EQ(supported_names().size(), 26u);
}

}  // namespace
}  // namespace kvasir::model
