// Comparisons of KV types: nothing between equal ones, the definition between others, resuming.
#include "eval/kld.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "eval/perplexity.h"

namespace kvasir::eval {
namespace {

const KvFormat kF32{"f32", {cache::CodecId::kF32, cache::CodecId::kF32}};
const KvFormat kF16{"f16", {cache::CodecId::kF16, cache::CodecId::kF16}};
const KvFormat kBF16{"bf16", {cache::CodecId::kBF16, cache::CodecId::kBF16}};

std::unique_ptr<engine::Engine> load_stories(cache::CodecId codec = cache::CodecId::kF16,
                                             int n_batch = 512, int n_threads = 2) {
  engine::EngineOptions options;
  options.model_path = KVASIR_SOURCE_DIR "/tests/data/stories260k/stories260K.gguf";
  options.n_threads = n_threads;
  options.n_batch = n_batch;
  options.kv.codecs = {codec, codec};
  options.activations = model::ActivationMode::kFloat32;
  auto engine = engine::Engine::load(Env::posix(), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

KldText story(int n_sentences, const std::string& name = "a story") {
  const char* const ends[] = {"Lily. ", "Tom. ", "Max. ", "Sue. ", "Ben. "};
  std::string text;
  for (int i = 0; i < n_sentences; ++i) {
    text += std::string("Once upon a time there was a little child named ") + ends[i * i % 5];
  }
  return {name, text};
}

KldOptions options_of(std::vector<KvFormat> candidates, int n_ctx = 64, int n_chunks = 2) {
  KldOptions options;
  options.n_ctx = n_ctx;
  options.n_chunks = n_chunks;
  options.candidates = std::move(candidates);
  return options;
}

Result<KldReport> run(engine::Engine& engine, const KldOptions& options) {
  const KldText texts[] = {story(40)};
  return kld(engine, Env::posix(), texts, options);
}

/// All figures but the NaN that a single block gives.
std::vector<double> numbers_of(const KldFigures& f) {
  return {static_cast<double>(f.n_scored),
          f.base_perplexity,
          f.excess,
          f.token_error,
          std::isnan(f.block_error) ? -1 : f.block_error,
          f.excess_low,
          f.excess_high,
          f.kld_mean,
          f.kld_median,
          f.kld_99,
          f.kld_999,
          f.kld_max,
          f.kld_error,
          f.same_top,
          f.delta_p_rms,
          static_cast<double>(f.bytes)};
}

std::vector<double> numbers_of(const KldReport& report) {
  std::vector<double> all;
  const auto add = [&](const std::vector<KldFigures>& figures) {
    for (const KldFigures& one : figures) {
      const auto numbers = numbers_of(one);
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
  };
  add(report.all);
  for (const KldTextReport& text : report.texts) add(text.figures);
  return all;
}

TEST(Kld, OfTheBaseAgainstItselfIsExactlyZero) {
  const auto engine = load_stories();
  for (const KvFormat& format : {kF32, kBF16}) {
    KldOptions options = options_of({format});
    options.base = format;
    const auto report = run(*engine, options);
    ASSERT_TRUE(report) << report.error().message;
    const KldFigures& figures = report->all[0];
    EXPECT_EQ(figures.n_scored, 2 * (64 - 1 - 32));
    EXPECT_EQ(figures.kld_max, 0);
    EXPECT_EQ(figures.kld_mean, 0);
    EXPECT_EQ(figures.excess, 0);
    EXPECT_EQ(figures.excess_low, 0);
    EXPECT_EQ(figures.excess_high, 0);
    EXPECT_EQ(figures.delta_p_rms, 0);
    EXPECT_EQ(figures.same_top, 1);
  }
}

TEST(Kld, EqualsTheDefinitionWithAnEngineOfEachType) {
  constexpr int kCtx = 48;
  const auto engine = load_stories();
  const auto report = run(*engine, options_of({kBF16}, kCtx, 1));
  ASSERT_TRUE(report) << report.error().message;

  const auto ids =
      engine->tokenizer().encode(story(40).text, text::AddSpecial::kYes, text::ParseSpecial::kNo);
  std::vector<TokenId> input(ids.begin(), ids.begin() + kCtx - 1);
  input[0] = *engine->tokenizer().bos();
  std::vector<int> positions;
  for (int pos = kCtx / 2; pos < kCtx - 1; ++pos) positions.push_back(pos);
  const auto base = logits_at(*load_stories(cache::CodecId::kF32), input, positions);
  const auto other = logits_at(*load_stories(cache::CodecId::kBF16), input, positions);
  ASSERT_TRUE(base && other);
  const auto probabilities = [](const std::vector<float>& row) {
    std::vector<double> p(row.size());
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    for (std::size_t i = 0; i < row.size(); ++i) p[i] = std::exp(static_cast<double>(row[i])) / sum;
    return p;
  };
  double kld_sum = 0, ratio = 0, nll = 0, squares = 0, n_same = 0;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    const auto p = probabilities((*base)[row]), q = probabilities((*other)[row]);
    for (std::size_t i = 0; i < p.size(); ++i) kld_sum += p[i] * std::log(p[i] / q[i]);
    const auto next = static_cast<std::size_t>(ids[static_cast<std::size_t>(positions[row]) + 1]);
    nll -= std::log(p[next]);
    ratio += std::log(p[next] / q[next]);
    squares += (q[next] - p[next]) * (q[next] - p[next]);
    n_same += std::max_element(p.begin(), p.end()) - p.begin() ==
              std::max_element(q.begin(), q.end()) - q.begin();
  }
  const KldFigures& figures = report->all[0];
  const auto n = static_cast<double>(positions.size());
  EXPECT_EQ(figures.n_scored, static_cast<std::int64_t>(positions.size()));
  EXPECT_NEAR(figures.kld_mean, kld_sum / n, 1e-5 * kld_sum / n);
  EXPECT_NEAR(figures.base_perplexity, std::exp(nll / n), 1e-5 * std::exp(nll / n));
  EXPECT_NEAR(figures.excess, std::expm1(ratio / n), 1e-7);
  EXPECT_NEAR(figures.delta_p_rms, std::sqrt(squares / n), 1e-7);
  EXPECT_NEAR(figures.same_top, n_same / n, 1e-12);
}

TEST(Kld, OfF16IsSmallAndOfBf16Larger) {
  const auto engine = load_stories();
  const auto report = run(*engine, options_of({kF16, kBF16}, 128, 3));
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_GT(report->all[0].kld_mean, 0);
  EXPECT_LT(report->all[0].kld_mean, 1e-4);
  EXPECT_GT(report->all[1].kld_mean, 4 * report->all[0].kld_mean);
  EXPECT_LE(report->all[1].kld_median, report->all[1].kld_99);
  EXPECT_LE(report->all[1].kld_99, report->all[1].kld_max);
  EXPECT_LT(report->all[1].excess_low, report->all[1].excess);
  EXPECT_GT(report->all[1].excess_high, report->all[1].excess);
}

TEST(Kld, DoesNotDependOnTheBatchNorTheThreads) {
  const auto whole = run(*load_stories(), options_of({kBF16}));
  const auto pieces = run(*load_stories(cache::CodecId::kF16, 7, 1), options_of({kBF16}));
  ASSERT_TRUE(whole && pieces);
  EXPECT_EQ(numbers_of(*whole), numbers_of(*pieces));
}

TEST(Kld, ScoresAllPositionsOnRequest) {
  const auto engine = load_stories();
  KldOptions options = options_of({kF16}, 96, 1);
  options.scores_all = true;
  const auto report = run(*engine, options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->first_scored, 64);
  EXPECT_EQ(report->n_scored, 96 - 1 - 64);
}

TEST(Kld, CountsEveryByteOfPagesAndTables) {
  const auto engine = load_stories();
  const auto report = run(*engine, options_of({kF32, kF16}, 72, 1));
  ASSERT_TRUE(report) << report.error().message;
  // 71 tokens are in three pages of 32.
  const auto n_values = static_cast<std::uint64_t>(report->n_values / 71);
  EXPECT_EQ(report->all[0].bytes, 3 * (32 * n_values * 4 + 12));
  EXPECT_EQ(report->all[1].bytes, 3 * (32 * n_values * 2 + 12));
  EXPECT_NEAR(report->bits_per_value(report->all[1]), 16.0 * 96 / 71, 0.1);
  EXPECT_EQ(engine->memory_summary().n_sequences, 0u);
}

TEST(Kld, TakesEveryTextByItselfAndAll) {
  const auto engine = load_stories();
  const KldText texts[] = {story(40, "long"), story(12, "short")};
  const auto report = kld(*engine, Env::posix(), texts, options_of({kF16, kBF16}, 64, -1));
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->texts.size(), 2u);
  EXPECT_EQ(report->texts[1].name, "short");
  EXPECT_GT(report->texts[0].n_chunks, report->texts[1].n_chunks);
  EXPECT_EQ(report->n_chunks, report->texts[0].n_chunks + report->texts[1].n_chunks);
  for (std::size_t i = 0; i < 2; ++i) {
    const KldFigures &one = report->texts[0].figures[i], &other = report->texts[1].figures[i];
    const auto n = static_cast<double>(one.n_scored), m = static_cast<double>(other.n_scored);
    EXPECT_NEAR(report->all[i].kld_mean, (n * one.kld_mean + m * other.kld_mean) / (n + m), 1e-12);
    EXPECT_EQ(report->all[i].kld_max, std::max(one.kld_max, other.kld_max));
  }
}

TEST(Kld, StopsWithTheChunksThatAreDone) {
  const auto engine = load_stories();
  const KldText texts[] = {story(40)};
  std::atomic<bool> stop{false};
  const auto progress = [&](int done, int, double) { stop = done == 2; };
  const auto report = kld(*engine, Env::posix(), texts, options_of({kF16}, 64, 4), progress, &stop);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->n_chunks, 2);
  const auto none = kld(*engine, Env::posix(), texts, options_of({kF16}, 64, 4), {}, &stop);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kCancelled);
}

TEST(Kld, RefusesWhatCannotBeAndSaysWhatItWants) {
  const auto engine = load_stories();
  const auto message = [&](const KldOptions& options, const KldText& text) {
    const auto report = kld(*engine, Env::posix(), {&text, 1}, options);
    if (report) return std::string();
    EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
    return report.error().message;
  };
  EXPECT_EQ(message(options_of({kF16}, 3), story(40)), "--ctx-size: got 3, want 4 to 512");
  EXPECT_EQ(message(options_of({kF16}, 513), story(40)), "--ctx-size: got 513, want 4 to 512");
  KldOptions all = options_of({kF16}, 65);
  all.scores_all = true;
  EXPECT_EQ(message(all, story(40)), "--ctx-size: got 65, want 66 to 512");
  EXPECT_EQ(message(options_of({kF16}), {"tiny.txt", "Once"}).substr(0, 38),
            "kld: tiny.txt: text too short; got 2 t");
  EXPECT_NE(message(options_of({}), story(40)).find("got 0 candidates"), std::string::npos);
}

class KldResume : public ::testing::Test {
 protected:
  KldResume() : engine_(load_stories()) { std::filesystem::remove(path_); }
  ~KldResume() override { std::filesystem::remove(path_); }

  Result<KldReport> run_to(int n_chunks, std::vector<KvFormat> candidates = {kF16, kBF16}) {
    KldOptions options = options_of(std::move(candidates), 64, n_chunks);
    options.checkpoint = path_;
    return run(*engine_, options);
  }
  std::string read() { return *Env::posix().read_file(path_, 1 << 24); }
  void write(const std::string& text) {
    ASSERT_TRUE(Env::posix().write_file_atomic(
        path_, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
  }

  // Other tests of this fixture run at the same time, in processes of their own.
  const std::string path_ =
      ::testing::TempDir() + "kld_resume_" + std::to_string(::getpid()) + ".jsonl";
  std::unique_ptr<engine::Engine> engine_;
};

TEST_F(KldResume, GivesTheReportOfOneRun) {
  const auto whole = run(*engine_, options_of({kF16, kBF16}, 64, 4));
  ASSERT_TRUE(run_to(2));
  const auto resumed = run_to(4);
  ASSERT_TRUE(whole && resumed);
  EXPECT_EQ(resumed->n_chunks_resumed, 2);
  EXPECT_EQ(numbers_of(*resumed), numbers_of(*whole));
  const auto again = run_to(4);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->n_chunks_resumed, 4);
  EXPECT_EQ(numbers_of(*again), numbers_of(*whole));
  EXPECT_EQ(run_to(3)->n_chunks, 3);
}

TEST_F(KldResume, SurvivesALineTornAnywhere) {
  const auto whole = run_to(3);
  ASSERT_TRUE(whole) << whole.error().message;
  const std::string text = read();
  const std::size_t last = text.rfind('\n', text.size() - 2) + 1;
  const std::size_t first = text.find('\n');
  for (const std::size_t n : {std::size_t{0}, first / 2, first, first + 1, last, last + 1,
                              (last + text.size()) / 2, text.size() - 1}) {
    write(text.substr(0, n));
    const auto resumed = run_to(3);
    ASSERT_TRUE(resumed) << n << ": " << resumed.error().message;
    EXPECT_EQ(numbers_of(*resumed), numbers_of(*whole)) << n;
    // Where only the line's end is missing, all is there and nothing was to be saved.
    EXPECT_TRUE(read() == text || n + 1 == text.size()) << n;
  }
}

TEST_F(KldResume, RefusesOtherSettingsAndLeavesTheFileAlone) {
  ASSERT_TRUE(run_to(1));
  const std::string text = read();
  const auto refused = run_to(1, {kF16});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find(
                "--resume: a checkpoint of other settings; got kv-type 'f16,bf16', want 'f16'"),
            std::string::npos)
      << refused.error().message;
  const KldText other[] = {story(41)};
  KldOptions options = options_of({kF16, kBF16}, 64, 1);
  options.checkpoint = path_;
  EXPECT_FALSE(kld(*engine_, Env::posix(), other, options));
  EXPECT_EQ(read(), text);
}

TEST_F(KldResume, OfOtherWeightsUnderTheSameNameIsRefused) {
  ASSERT_TRUE(run_to(1));
  std::string text = read();
  const std::size_t digit = text.find("weights ") + 8;
  text[digit] = text[digit] == '0' ? '1' : '0';
  write(text);
  const auto resumed = run_to(1);
  ASSERT_FALSE(resumed);
  EXPECT_NE(resumed.error().message.find("other settings; got model"), std::string::npos)
      << resumed.error().message;
}

TEST_F(KldResume, RefusesOtherFilesAndDamage) {
  for (const char* const foreign :
       {"notes of mine\n", "{\"a\":1}\n", "[]", "{\"kvasir_eval_kld\""}) {
    write(foreign);
    const bool is_torn = std::string(foreign).starts_with("{\"kvasir");
    EXPECT_EQ(run_to(1).has_value(), is_torn) << foreign;
  }
  ASSERT_TRUE(run_to(3));
  std::string text = read();
  const std::size_t second = text.find('\n') + 1;
  text[second + 40] = '?';
  write(text);
  const auto damaged = run_to(3);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, ErrorCode::kCorruption);
  EXPECT_NE(damaged.error().message.find("line 2"), std::string::npos);
}

TEST(KldFigures, ErrorsAreThoseOfTokensAndOfBlocks) {
  // Two chunks of 600 tokens: blocks of 512 and 88 tokens. What a block's tokens share counts once.
  KldChunk chunks[2];
  for (int c = 0; c < 2; ++c) {
    chunks[c].n_scored = 600;
    chunks[c].base_nll = 1200;
    CandidateChunk one;
    for (int i = 0; i < 600; ++i) {
      one.log_ratio.push_back(c == 0 ? 0.01f : 0.03f);
      one.kld.push_back(0.001f * static_cast<float>(i));
    }
    one.n_same_top = 570;
    one.squared_delta_p = 6;
    chunks[c].candidates.push_back(one);
  }
  const KldChunk* const all[] = {&chunks[0], &chunks[1]};
  const KldFigures figures = figures_of(all, 0);
  EXPECT_NEAR(figures.base_perplexity, std::exp(2.0), 1e-12);
  EXPECT_NEAR(figures.excess, std::expm1(0.02), 1e-8);
  EXPECT_NEAR(figures.token_error, std::exp(0.02) * 0.01 / std::sqrt(1199.0), 1e-8);
  const double blocks = 2 * (5.12 * 5.12 + 0.88 * 0.88) * 4 / 3;
  EXPECT_EQ(figures.n_blocks, 4);
  EXPECT_NEAR(figures.block_error, std::exp(0.02) * std::sqrt(blocks) / 1200, 1e-7);
  EXPECT_NEAR(figures.excess_high, std::expm1(0.02 + 1.959964 * std::sqrt(blocks) / 1200), 1e-7);
  EXPECT_NEAR(figures.kld_median, 0.2995, 6e-4);
  EXPECT_NEAR(figures.kld_max, 0.599, 1e-6);
  EXPECT_NEAR(figures.same_top, 0.95, 1e-12);
  EXPECT_NEAR(figures.delta_p_rms, 0.1, 1e-12);
  const KldFigures one_block = figures_of({all, 1}, 0);
  EXPECT_EQ(one_block.n_blocks, 2);
}

}  // namespace
}  // namespace kvasir::eval
