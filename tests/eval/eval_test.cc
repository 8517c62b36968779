// Perplexity against a naive computation, logits of single positions, rows of a benchmark.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "eval/perplexity.h"
#include "eval/throughput.h"

namespace kvasir::eval {
namespace {

std::unique_ptr<engine::Engine> load_stories(int n_batch = 512) {
  engine::EngineOptions options;
  options.model_path = KVASIR_SOURCE_DIR "/tests/data/stories260k/stories260K.gguf";
  options.n_threads = 2;
  options.n_batch = n_batch;
  auto engine = engine::Engine::load(Env::posix(), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

std::string story() {
  std::string text;
  for (int i = 0; i < 12; ++i) text += "Once upon a time there was a little girl named Lily. ";
  return text;
}

double naive_nll(const std::vector<float>& logits, TokenId target) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

TEST(Perplexity, EqualsTheDefinitionWordForWord) {
  const auto engine = load_stories();
  const std::string text = story();
  constexpr int kCtx = 32;
  const auto report = perplexity(*engine, text + "\n", {.n_ctx = kCtx, .n_chunks = 2});
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->n_chunks, 2);
  EXPECT_EQ(report->n_scored, 2 * (kCtx - 1 - kCtx / 2));

  const text::Tokenizer& tokenizer = engine->tokenizer();
  const auto ids = tokenizer.encode(text, text::AddSpecial::kYes, text::ParseSpecial::kNo);
  double sum = 0;
  for (int chunk = 0; chunk < 2; ++chunk) {
    std::vector<TokenId> input(ids.begin() + chunk * kCtx, ids.begin() + (chunk + 1) * kCtx);
    input[0] = *tokenizer.bos();
    for (int pos = kCtx / 2; pos < kCtx - 1; ++pos) {
      const int positions[] = {pos};
      const auto logits = logits_at(*engine, input, positions);
      ASSERT_TRUE(logits);
      sum += naive_nll((*logits)[0], ids[static_cast<std::size_t>(chunk * kCtx + pos + 1)]);
    }
  }
  EXPECT_NEAR(report->nll_mean, sum / static_cast<double>(report->n_scored), 1e-5);
  EXPECT_DOUBLE_EQ(report->perplexity, std::exp(report->nll_mean));
}

TEST(Perplexity, DoesNotDependOnTheBatch) {
  const auto whole = perplexity(*load_stories(512), story(), {.n_ctx = 64});
  const auto pieces = perplexity(*load_stories(7), story(), {.n_ctx = 64});
  ASSERT_TRUE(whole && pieces);
  EXPECT_EQ(whole->nll_mean, pieces->nll_mean);  // to the bit
}

TEST(Perplexity, AShortTextAndAWrongContextAreErrors) {
  const auto engine = load_stories();
  EXPECT_FALSE(perplexity(*engine, "too short", {.n_ctx = 64}));
  EXPECT_FALSE(perplexity(*engine, story(), {.n_ctx = 3}));
  EXPECT_FALSE(perplexity(*engine, story(), {.n_ctx = engine->n_ctx() + 1}));
}

TEST(Perplexity, StopsBeforeTheFirstChunk) {
  const auto engine = load_stories();
  const std::atomic<bool> stop{true};
  const auto report = perplexity(*engine, story(), {.n_ctx = 32}, {}, &stop);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
}

TEST(Logits, PositionsComeInTheOrderAsked) {
  const auto engine = load_stories(3);
  const std::vector<TokenId> ids = {1, 40, 41, 42, 43, 44, 45};
  const std::vector<int> positions = {5, 0, 5};
  const auto logits = logits_at(*engine, ids, positions);
  ASSERT_TRUE(logits);
  ASSERT_EQ(logits->size(), 3u);
  EXPECT_EQ((*logits)[0], (*logits)[2]);
  const int first[] = {0};
  EXPECT_EQ((*logits)[1], logits_at(*engine, ids, first)->front());
  const int beyond[] = {7};
  EXPECT_FALSE(logits_at(*engine, ids, beyond));
  EXPECT_FALSE(logits_at(*engine, {}, positions));
}

TEST(Throughput, EveryRowHasItsSamplesAndARooflineOnRequest) {
  const auto engine = load_stories();
  ThroughputOptions options;
  options.n_prompt = {16, 0};
  options.n_generate = {4};
  options.n_depth = {0, 32};
  options.n_repetitions = 2;
  options.n_sequences = {1, 3};
  options.with_roofline = true;
  const auto report = throughput(*engine, options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_FALSE(report->error.has_value());
  std::vector<std::string> names;
  for (const ThroughputRow& row : report->rows) {
    names.push_back(row.test_name());
    EXPECT_EQ(row.seconds.size(), 2u);
    ASSERT_TRUE(row.roofline);
    EXPECT_GT(row.roofline->limit_seconds, 0);
    EXPECT_DOUBLE_EQ(row.share_of_limit() * row.n_tokens() / row.median_rate(),
                     row.roofline->limit_seconds);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"pp16", "tg4", "tg4 x 3", "pp16 @ d32", "tg4 @ d32",
                                             "tg4 x 3 @ d32"}));
  EXPECT_EQ(report->rows.back().n_tokens(), 12);
  EXPECT_EQ(engine->memory_summary().n_sequences, 0u);
}

TEST(CacheSaving, CountsEveryRecomputedToken) {
  const auto engine = load_stories();
  const auto savings = cache_saving(*engine, {8}, 1);
  ASSERT_TRUE(savings);
  double sum = 0;
  for (int n = 1; n <= 8; ++n) sum += engine->model().multiply_adds(n);
  EXPECT_DOUBLE_EQ(savings->front().recomputed_multiply_adds, sum);
  EXPECT_DOUBLE_EQ(savings->front().cached_multiply_adds, engine->model().multiply_adds(8));
}

}  // namespace
}  // namespace kvasir::eval
