// Calibrations: each unit's damage is that of comparing it alone, and what is refused.
#include "eval/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace kvasir::eval {
namespace {

using cache::CodecId;

constexpr int kCtx = 320;

std::unique_ptr<engine::Engine> load(const std::string& file, int n_batch = 512,
                                     int n_threads = 2) {
  engine::EngineOptions options;
  options.model_path = KVASIR_SOURCE_DIR "/tests/data/" + file;
  options.n_threads = n_threads;
  options.n_batch = n_batch;
  options.activations = model::ActivationMode::kFloat32;
  auto engine = engine::Engine::load(Env::posix(), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

/// 2 layers, heads of 64.
std::unique_ptr<engine::Engine> load_tiny(int n_batch = 512, int n_threads = 2) {
  return load("arch_vectors/llama_9q3kv_hd64.gguf", n_batch, n_threads);
}

KldText story(int n_words, const std::string& name = "a story") {
  const char* const words[] = {"Once ", "upon ", "a time ", "there ", "was ", "Lily. ", "She "};
  std::string text;
  for (int i = 0; i < n_words; ++i) text += words[(i * i + i / 7) % 7];
  return {name, text};
}

CalibrateOptions options_of(int n_chunks = 2, int n_ctx = kCtx) { return {n_ctx, n_chunks}; }

TEST(Calibrate, MeasuresWhatComparingThatUnitAloneMeasures) {
  const auto engine = load_tiny();
  const KldText texts[] = {story(1300)};
  const auto report = calibrate_kv(*engine, texts, options_of(1));
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->n_chunks, 1);
  EXPECT_EQ(report->n_scored, kCtx - 1 - 64);

  // Its one chunk is the middle one: of all the text's chunks, the one that agrees.
  KldOptions options;
  options.n_ctx = kCtx;
  options.scores_all = true;
  const cache::LayerCodecs exact{CodecId::kF32, CodecId::kF32};
  const std::vector<std::vector<cache::LayerCodecs>> layers = {
      {{CodecId::kTile3, CodecId::kF32}, exact},
      {exact, {CodecId::kTile4, CodecId::kF32}},
      {exact, {CodecId::kF32, CodecId::kTile3}}};
  for (const auto& one : layers) {
    engine::KvChoice choice;
    choice.layers = one;
    choice.key_bases = report->calibration.key_bases;
    options.candidates.push_back({"unit", choice});
  }
  const auto ids =
      engine->tokenizer().encode(texts[0].text, text::AddSpecial::kYes, text::ParseSpecial::kNo);
  const int n_chunks = static_cast<int>(ids.size()) / kCtx;
  ASSERT_GE(n_chunks, 3);
  const auto upto = [&](int n) {
    options.n_chunks = n;
    return *kld(*engine, Env::posix(), texts, options);
  };
  const KldReport with = upto(n_chunks / 2 + 1), without = upto(n_chunks / 2);
  const auto of_middle = [&](std::size_t i) {
    const KldFigures &a = with.all[i], &b = without.all[i];
    const auto n = static_cast<double>(a.n_scored), m = static_cast<double>(b.n_scored);
    return (a.kld_mean * n - b.kld_mean * m) / (n - m);
  };
  const engine::KvCalibration& made = report->calibration;
  EXPECT_NEAR(made.damage_k.at(3)[0] / of_middle(0), 1, 1e-4);
  EXPECT_NEAR(made.damage_k.at(4)[1] / of_middle(1), 1, 1e-4);
  EXPECT_NEAR(made.damage_v.at(3)[1] / of_middle(2), 1, 1e-4);
  EXPECT_EQ(made.damage_k.at(5)[0], made.damage_k.at(4)[0] / 4);
  EXPECT_EQ(made.damage_v.at(5)[0], made.damage_v.at(3)[0] / 16);
}

TEST(Calibrate, FewerBitsDoMoreDamageAndEveryTypeHasItsPlan) {
  const auto engine = load_tiny();
  const KldText texts[] = {story(700), story(400, "another")};
  const auto report = calibrate_kv(*engine, texts, options_of());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->n_chunks, 2);
  const engine::KvCalibration& made = report->calibration;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    EXPECT_GT(made.damage_k.at(4)[layer], 0);
    EXPECT_GT(made.damage_k.at(3)[layer], 2 * made.damage_k.at(4)[layer]);
    EXPECT_GT(made.damage_v.at(3)[layer], 0);
  }
  EXPECT_EQ(made.model, engine->model_fingerprint());
  ASSERT_NE(made.key_bases, nullptr);
  EXPECT_EQ(made.key_bases->shape(), engine->key_shape());
  for (const char* const name : {"int4", "int4-3", "int3"}) {
    ASSERT_TRUE(made.plans.contains(name)) << name;
    EXPECT_EQ(made.plans.at(name).size(), 2u);
    EXPECT_GT(report->shares.at(name), 0.2);
    EXPECT_LT(report->shares.at(name), 0.31);
  }
  EXPECT_LE(report->shares.at("int4-3"), 0.25);
  EXPECT_TRUE(engine::parse_calibration("made", engine::text_of(made), 2));
}

TEST(Calibrate, GivesTheSameFileWhateverTheThreadsAndTheBatch) {
  const KldText texts[] = {story(400)};
  const auto one = calibrate_kv(*load_tiny(), texts, options_of(1));
  const auto other = calibrate_kv(*load_tiny(33, 1), texts, options_of(1));
  ASSERT_TRUE(one && other);
  EXPECT_EQ(engine::text_of(one->calibration), engine::text_of(other->calibration));
}

TEST(Calibrate, TakesAtLeastOneChunkOfEachTextAndNoMoreThanThereAre) {
  const auto engine = load_tiny();
  const KldText texts[] = {story(800, "a"), story(800, "b"), story(800, "c")};
  EXPECT_EQ(calibrate_kv(*engine, texts, options_of(1))->n_chunks, 3);
  EXPECT_EQ(calibrate_kv(*engine, texts, options_of(4))->n_chunks, 4);
  const KldText short_text[] = {story(500)};
  EXPECT_LT(calibrate_kv(*engine, short_text, options_of(50))->n_chunks, 5);
}

TEST(Calibrate, ShowsHowFarItIsAndStopsWithNothing) {
  const auto engine = load_tiny();
  const KldText texts[] = {story(400)};
  std::vector<double> shares;
  const auto note = [&](double share) { shares.push_back(share); };
  ASSERT_TRUE(calibrate_kv(*engine, texts, options_of(1), note));
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_DOUBLE_EQ(shares.back(), 1);
  for (const double when : {0.0, 0.4, 1.0}) {
    std::atomic<bool> stop{when == 0};
    const auto stop_then = [&](double share) { stop = share >= when; };
    const auto report = calibrate_kv(*engine, texts, options_of(1), stop_then, &stop);
    ASSERT_FALSE(report) << when;
    EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
  }
}

TEST(Calibrate, RefusesWhatCannotBeAndSaysWhatItWants) {
  const auto engine = load_tiny();
  const KldText texts[] = {story(400)};
  const auto message = [&](std::span<const KldText> of, const CalibrateOptions& options) {
    const auto report = calibrate_kv(*engine, of, options);
    return report ? std::string() : report.error().message;
  };
  EXPECT_EQ(message(texts, options_of(0)), "--chunks: got 0, want 1 or more");
  EXPECT_EQ(message(texts, options_of(1, 255)), "--ctx-size: got 255, want 256 to 512");
  EXPECT_EQ(message(texts, options_of(1, 513)), "--ctx-size: got 513, want 256 to 512");
  EXPECT_EQ(message({}, options_of()), "calibrate: got no text, want 1 or more");
  const KldText tiny[] = {{"tiny.txt", "Once"}};
  EXPECT_TRUE(message(tiny, options_of()).starts_with("calibrate: tiny.txt: text too short"));

  const auto stories = load("stories260k/stories260K.gguf");  // heads of 8
  const auto refused = calibrate_kv(*stories, texts, options_of());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message.find("head size; got 8, want a multiple of 16"),
            std::string::npos)
      << refused.error().message;
}

TEST(Calibrate, WorksWithWindowsOfAttention) {
  const auto engine = load("arch_vectors/gemma3.gguf");
  const KldText texts[] = {story(400)};
  const auto report = calibrate_kv(*engine, texts, options_of(1));
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->calibration.plans.at("int4").size(), 7u);
}

}  // namespace
}  // namespace kvasir::eval
