// Errors of attention's output: none between equal types, the definition between others.
#include "eval/attention_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace kvasir::eval {
namespace {

const KvFormat kF32{"f32", {cache::CodecId::kF32, cache::CodecId::kF32}};
const KvFormat kF16{"f16", {cache::CodecId::kF16, cache::CodecId::kF16}};
const KvFormat kBF16{"bf16", {cache::CodecId::kBF16, cache::CodecId::kBF16}};

std::unique_ptr<engine::Engine> load_stories(int n_batch = 512, int n_threads = 2) {
  engine::EngineOptions options;
  options.model_path = KVASIR_SOURCE_DIR "/tests/data/stories260k/stories260K.gguf";
  options.n_threads = n_threads;
  options.n_batch = n_batch;
  options.activations = model::ActivationMode::kFloat32;
  auto engine = engine::Engine::load(Env::posix(), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

std::string story() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "Once upon a time there was a little child named ";
    text += i % 3 == 0 ? "Lily. " : "Max. ";
  }
  return text;
}

AttentionErrorOptions options_of(std::vector<KvFormat> candidates, int n_ctx = 64,
                                 int n_chunks = 2) {
  AttentionErrorOptions options;
  options.n_ctx = n_ctx;
  options.n_chunks = n_chunks;
  options.candidates = std::move(candidates);
  return options;
}

std::vector<double> numbers_of(const AttentionErrorReport& report) {
  std::vector<double> all;
  for (const AttentionErrors& errors : report.candidates) {
    for (const auto* part : {&errors.heads, &errors.layers}) {
      for (const RelativeError& one : *part) all.insert(all.end(), {one.rms, one.mean});
    }
  }
  return all;
}

TEST(AttentionError, OfTheBaseAgainstItselfIsExactlyZero) {
  const auto engine = load_stories();
  for (const KvFormat& format : {kF32, kBF16}) {
    AttentionErrorOptions options = options_of({format});
    options.base = format;
    const auto report = attention_error(*engine, story(), options);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->n_scored, 2 * (64 - 1 - 32));
    for (const double number : numbers_of(*report)) EXPECT_EQ(number, 0);
  }
}

TEST(AttentionError, OfF16IsSmallInEveryHeadAndOfBf16Larger) {
  const auto engine = load_stories();
  const auto report = attention_error(*engine, story(), options_of({kF16, kBF16}));
  ASSERT_TRUE(report) << report.error().message;
  const AttentionErrors &f16 = report->candidates[0], &bf16 = report->candidates[1];
  ASSERT_EQ(f16.heads.size(), static_cast<std::size_t>(report->n_layers * report->n_heads));
  for (const RelativeError& error : f16.heads) {
    EXPECT_GT(error.rms, 0);
    EXPECT_LT(error.rms, 5e-3);
    EXPECT_GT(error.mean, 0);
  }
  for (int layer = 0; layer < report->n_layers; ++layer) {
    const auto i = static_cast<std::size_t>(layer);
    EXPECT_GT(bf16.layers[i].rms, 3 * f16.layers[i].rms);
    EXPECT_GE(bf16.head(layer, bf16.worst_head(layer)).rms, bf16.layers[i].rms);
  }
}

TEST(AttentionError, EqualsTheDefinitionOfTheRowsThatAModelShows) {
  constexpr int kCtx = 48, kFirst = kCtx / 2;
  const auto engine = load_stories();
  const auto report = attention_error(*engine, story(), options_of({kBF16}, kCtx, 1));
  ASSERT_TRUE(report) << report.error().message;

  auto ids = engine->tokenizer().encode(story(), text::AddSpecial::kYes, text::ParseSpecial::kNo);
  ids.resize(kCtx - 1);
  const auto& config = engine->model().config();
  const int last = config.n_layers - 1, head = 1, n = config.head_dim;
  const auto rows_of = [&](const KvFormat& format) {
    std::map<Position, std::vector<float>> rows;  // of one head in the last layer
    const auto keep = [&](int layer, Position first, int n_rows, const float* heads,
                          std::size_t stride) {
      if (layer != last) return;
      for (int row = 0; row < n_rows; ++row) {
        const float* from = heads + static_cast<std::size_t>(row) * stride + head * n;
        rows[first + row].assign(from, from + n);
      }
    };
    engine->model().set_observers({.qkv = {}, .attention = keep});
    auto cache = engine->make_cache(format.choice);
    cache::Sequence sequence = (*cache)->open();
    const engine::Engine::Step step{&sequence, ids, kCtx - 1 - kFirst};
    std::vector<float> logits;
    EXPECT_TRUE(engine->forward({&step, 1}, logits));
    engine->model().set_observers({});
    EXPECT_EQ(rows.begin()->first, kFirst) << "the last layer attends for wanted rows only";
    return rows;
  };
  const auto base = rows_of(kF32), other = rows_of(kBF16);
  double errors = 0, squares = 0, ratios = 0;
  for (const auto& [pos, row] : base) {
    double error = 0, square = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      error += std::pow(static_cast<double>(other.at(pos)[i]) - row[i], 2);
      square += std::pow(static_cast<double>(row[i]), 2);
    }
    errors += error;
    squares += square;
    ratios += std::sqrt(error / square);
  }
  EXPECT_EQ(report->n_scored, static_cast<std::int64_t>(base.size()));
  const RelativeError got = report->candidates[0].head(last, head);
  EXPECT_NEAR(got.rms, std::sqrt(errors / squares), 1e-12);
  EXPECT_NEAR(got.mean, ratios / static_cast<double>(base.size()), 1e-12);
}

TEST(AttentionError, DoesNotDependOnTheBatchNorTheThreads) {
  const auto whole = attention_error(*load_stories(), story(), options_of({kBF16}));
  const auto pieces = attention_error(*load_stories(7, 1), story(), options_of({kBF16}));
  ASSERT_TRUE(whole && pieces);
  EXPECT_EQ(numbers_of(*whole), numbers_of(*pieces));
}

TEST(AttentionError, StopsWithTheChunksThatAreDone) {
  const auto engine = load_stories();
  std::atomic<bool> stop{false};
  const auto progress = [&](int done, int) { stop = done == 1; };
  const auto report = attention_error(*engine, story(), options_of({kF16}), progress, &stop);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->n_chunks, 1);
  const auto none = attention_error(*engine, story(), options_of({kF16}), {}, &stop);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace kvasir::eval
