// Free-running answers: none differ from their own type's; what the figures count.
#include "eval/drift.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir::eval {
namespace {

const KvFormat kF32{"f32", {cache::CodecId::kF32, cache::CodecId::kF32}};
const KvFormat kBF16{"bf16", {cache::CodecId::kBF16, cache::CodecId::kBF16}};

std::unique_ptr<engine::Engine> load_stories(int n_batch = 512, int n_ctx = 0) {
  engine::EngineOptions options;
  options.model_path = KVASIR_SOURCE_DIR "/tests/data/stories260k/stories260K.gguf";
  options.n_threads = 2;
  options.n_batch = n_batch;
  options.n_ctx = n_ctx;
  auto engine = engine::Engine::load(Env::posix(), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

std::string story() {
  const char* const words[] = {"Lily", "a dog", "the park", "saw", "ran to", "was happy with"};
  std::string text = "Once upon a time";
  for (int i = 0; i < 300; ++i) text += std::string(" ") + words[i * i % 37 % 6];
  return text;
}

DriftOptions options_of(std::vector<KvFormat> candidates) {
  DriftOptions options;
  options.n_prompts = 5;
  options.n_prompt_tokens = 20;
  options.n_generate = 40;
  options.candidates = std::move(candidates);
  return options;
}

TEST(Drift, OfTheBaseAgainstItselfIsNone) {
  const auto engine = load_stories();
  const auto report = drift(*engine, story(), options_of({kF32, kBF16}));
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->figures.size(), 2u);
  const DriftFigures &same = report->figures[0], &other = report->figures[1];
  EXPECT_EQ(same.never_differs, 1);
  EXPECT_EQ(same.matching, 1);
  EXPECT_EQ(same.equal_mean, report->base_tokens_mean);
  EXPECT_EQ(same.repetition, report->base_repetition);
  EXPECT_LE(other.equal_mean, same.equal_mean);
  EXPECT_EQ(engine->memory_summary().n_sequences, 0u);
}

TEST(Drift, DoesNotDependOnTheBatch) {
  const auto whole = drift(*load_stories(512), story(), options_of({kBF16}));
  const auto pieces = drift(*load_stories(3), story(), options_of({kBF16}));
  ASSERT_TRUE(whole && pieces);
  EXPECT_EQ(whole->base_repetition, pieces->base_repetition);
  EXPECT_EQ(whole->figures[0].matching, pieces->figures[0].matching);
  EXPECT_EQ(whole->figures[0].equal_mean, pieces->figures[0].equal_mean);
}

TEST(Drift, FiguresCountTokensAndPositions) {
  const Answers base = {{1, 2, 3, 4}, {5, 6, 7}, {8, 9}};
  const Answers answers = {{1, 2, 9, 4}, {5, 6, 7}, {8, 9, 10, 11}};
  const DriftFigures figures = compare_answers(base, answers);
  EXPECT_DOUBLE_EQ(figures.equal_mean, (2 + 3 + 2) / 3.0);
  EXPECT_DOUBLE_EQ(figures.equal_median, 2);
  EXPECT_DOUBLE_EQ(figures.matching, (3 + 3 + 2) / 11.0);
  EXPECT_DOUBLE_EQ(figures.never_differs, 1 / 3.0);
}

TEST(Drift, RepetitionIsWhatTheSameAnswerHasHad) {
  EXPECT_EQ(repetition_rate({{1, 2, 3, 4, 5}, {1, 2, 3, 4}}), 0);
  EXPECT_DOUBLE_EQ(repetition_rate({{1, 2, 1, 2, 1, 2, 1}}), 2 / 4.0);
  EXPECT_EQ(repetition_rate({{1, 2}}), 0);
}

TEST(Drift, StopsWithTheTypesThatAreDone) {
  const auto engine = load_stories();
  std::atomic<bool> stop{false};
  const auto stop_in_third = [&](std::int64_t done, std::int64_t most) {
    stop = done > 2 * most / 3;
  };
  const auto report = drift(*engine, story(), options_of({kF32, kBF16}), stop_in_third, &stop);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->figures.size(), 1u);
  const auto none = drift(*engine, story(), options_of({kF32}), {}, &stop);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kCancelled);
}

TEST(Drift, RefusesWhatCannotBeAndSaysWhatItWants) {
  const auto engine = load_stories(512, 64);
  const auto message = [&](const DriftOptions& options, const std::string& text) {
    const auto report = drift(*engine, text, options);
    if (report) return std::string();
    const bool is_too_long = report.error().message.find("fit") != std::string::npos;
    EXPECT_EQ(report.error().code,
              is_too_long ? ErrorCode::kExhausted : ErrorCode::kInvalidArgument);
    return report.error().message;
  };
  DriftOptions options = options_of({kBF16});
  EXPECT_EQ(message(options, "Once").substr(0, 34), "drift: text too short; got 1 token");
  options.n_generate = 45;
  EXPECT_EQ(message(options, story()),
            "drift: does not fit the context; got 65 tokens, want at most 64");
  options = options_of({kBF16});
  options.n_prompts = 0;
  EXPECT_EQ(message(options, story()), "drift: prompts; got 0, want 1 to 4096");
  EXPECT_NE(message(options_of({}), story()).find("got 0 candidates"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::eval
