// The cost of moved K and V: nothing where all is computed anew, something where nothing is.
#include "eval/shifted.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace kvasir::eval {
namespace {

std::unique_ptr<engine::Engine> load_stories() {
  engine::EngineOptions options;
  options.model_path = KVASIR_SOURCE_DIR "/tests/data/stories260k/stories260K.gguf";
  options.n_threads = 2;
  options.n_ctx = 1024;
  auto engine = engine::Engine::load(Env::posix(), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

std::string story() {
  const char* const words[] = {"Lily", "a dog", "the park", "saw", "ran to", "was happy with"};
  std::mt19937 random(1);
  std::string text = "Once upon a time";
  for (int i = 0; i < 1200; ++i) text += std::string(" ") + words[random() % 6];
  return text;
}

ShiftedOptions options_of(std::initializer_list<double> shares) {
  ShiftedOptions options;
  options.n_prompt = 300;
  options.n_scored = 8;
  options.n_cases = 3;
  for (const double share : shares) options.settings.push_back({.share = share});
  return options;
}

TEST(Shifted, CostsNothingWhereAllIsComputed) {
  const auto engine = load_stories();
  for (const bool repeats_change : {false, true}) {
    ShiftedOptions options = options_of({1, 0});
    options.repeats_change = repeats_change;
    const auto report = shifted_reuse(*engine, story(), options);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->n_cases, 3);
    EXPECT_EQ(report->n_scored, 24);
    ASSERT_EQ(report->settings.size(), 2u);
    const ShiftedFigures& all = report->settings[0];
    EXPECT_EQ(all.kld_max, 0);
    EXPECT_EQ(all.same_top, 1);
    EXPECT_EQ(all.moved, 0);
    EXPECT_EQ(all.nll_mean, report->exact_nll);
    const ShiftedFigures& none = report->settings[1];
    EXPECT_GT(none.moved, 0.7);
    EXPECT_GT(none.kld_mean, 0);
    EXPECT_LE(none.kld_median, none.kld_99);
    EXPECT_LE(none.kld_99, none.kld_max);
    EXPECT_GT(report->unchanged.kld_mean, 0);
  }
}

TEST(Shifted, RefusesWhatCannotBe) {
  const auto engine = load_stories();
  const auto refused = [&](const ShiftedOptions& options, const std::string& text) {
    const auto report = shifted_reuse(*engine, text, options);
    return !report && report.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(options_of({0}), "Once"));
  ShiftedOptions options = options_of({0});
  options.n_prompt = 2000;
  EXPECT_TRUE(refused(options, story()));
  options = options_of({0});
  options.n_edit_max = 0;
  EXPECT_TRUE(refused(options, story()));
  options = options_of({0});
  const std::atomic<bool> stop = true;
  const auto report = shifted_reuse(*engine, story(), options, {}, &stop);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace kvasir::eval
