// Reuse at other positions: what is moved is right, what is asked to be exact is, and nothing that
// is approximate is ever taken for exact.
#include "engine/shifted_reuse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <ostream>
#include <random>

#include "cache/codec/row_codec.h"
#include "engine/known_histories.h"
#include "engine/reuse_support.h"

namespace kvasir::engine {
namespace {

using namespace testing;
using cache::CodecId;

constexpr int kVocab = 512;

Tokens random_tokens(int n, unsigned seed) {
  std::mt19937 random(seed);
  Tokens tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(static_cast<TokenId>(3 + random() % (kVocab - 3)));
  return tokens;
}

/// `tokens` with `n_new` others in the place of `n_gone` from `at` on.
Tokens edited(const Tokens& tokens, int at, int n_gone, int n_new) {
  Tokens out(tokens.begin(), tokens.begin() + at);
  for (int i = 0; i < n_new; ++i) out.push_back(kVocab - 1 - i);
  out.insert(out.end(), tokens.begin() + at + n_gone, tokens.end());
  return out;
}

ShiftedReuse everything_moves() { return {.min_run_tokens = 32, .share = 0, .first_tokens = 0}; }

std::unique_ptr<Engine> load_with(const std::string& file, CodecId codec,
                                  std::uint64_t prefix_bytes = kPlenty) {
  EngineOptions options;
  options.kv.codecs = {codec, codec};
  options.page_tokens = 16;
  options.n_batch = 64;
  options.prefix_bytes = prefix_bytes;
  return load(file, options);
}

struct Setting {
  std::string name;
  std::string file;
  CodecId codec;
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const char* model : {"llama_9q3kv_hd64", "llama_rope_linear", "llama_rope_yarn", "qwen3",
                            "gemma2_b", "gemma3", "phi3", "smollm3", "olmo2"}) {
    for (const CodecId codec : {CodecId::kF32, CodecId::kF16, CodecId::kBF16}) {
      all.push_back({std::string(model) + "_" + std::string(cache::codec_name(codec)),
                     std::string("arch_vectors/") + model + ".gguf", codec});
    }
  }
  return all;
}

class ShiftedReuseOf : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override { engine_ = load_with(GetParam().file, GetParam().codec); }
  const model::ModelConfig& config() const { return engine_->model().config(); }

  /// Half a step of the codec's mantissa.
  double rounding() const {
    const CodecId codec = GetParam().codec;
    return codec == CodecId::kF32 ? 0x1p-24 : codec == CodecId::kF16 ? 0x1p-11 : 0x1p-8;
  }

  /// Layer 0 depends on tokens and positions alone: there, what was moved must be what is computed,
  /// within both sides' rounding.
  void expect_layer_0(const Session& moved, const Session& exact, int begin, int end) const {
    const cache::PagedKvView got = moved.view(0), want = exact.view(0);
    const auto dim = static_cast<std::size_t>(config().head_dim);
    std::vector<float> a(dim), b(dim);
    for (int pos = begin; pos < end; ++pos) {
      for (int head = 0; head < config().n_kv_heads; ++head) {
        read_k(got, pos, head, a.data());
        read_k(want, pos, head, b.data());
        double largest = 0;
        for (const float value : b)
          largest = std::max(largest, std::abs(static_cast<double>(value)));
        for (std::size_t d = 0; d < dim; ++d) {
          // Two stored values of a pair, each rounded, turn into one that is rounded again; f32 has
          // the rotation's own roundings on top.
          ASSERT_NEAR(a[d], b[d], 4 * largest * rounding() + 1e-6 * largest) << pos << ' ' << d;
        }
        read_v(got, pos, head, a.data());
        read_v(want, pos, head, b.data());
        ASSERT_EQ(a, b) << pos;
      }
    }
  }

  std::unique_ptr<Engine> engine_;
};

TEST_P(ShiftedReuseOf, MovesLayerZeroExactly) {
  const Tokens before = random_tokens(180, 1);
  for (const auto& [n_gone, n_new] : {std::pair{0, 5}, {5, 0}, {3, 3}}) {
    engine_->cache().evict_all();
    const Tokens after = edited(before, 20, n_gone, n_new);
    Session session(*engine_);
    session.set_shifted_reuse(everything_moves());
    ASSERT_TRUE(session.prompt(before));
    const auto report = session.prompt(after);
    ASSERT_TRUE(report) << report.error().message;
    const int n_after = static_cast<int>(after.size());
    EXPECT_EQ(report->n_reused + report->n_shifted + report->n_computed, n_after);
    if (config().window == 0) {  // else the window has passed
      EXPECT_EQ(report->n_reused, 20);
    }
    EXPECT_EQ(report->n_shifted, n_after - 1 - 20 - n_new);
    EXPECT_EQ(report->first_approximate, 20 + n_new);
    engine_->cache().check_invariants();
    EngineOptions alone = engine_->options();
    alone.prefix_bytes = 0;
    alone.model_path.clear();
    const auto other = load(GetParam().file, alone);
    Session exact(*other);
    ASSERT_TRUE(exact.prompt(after));
    // A window's pages are gone where no query looks.
    const bool is_window = config().is_window_layer[0];
    const int seen = is_window ? n_after - config().window + 1 : 0;
    expect_layer_0(session, exact, std::max(seen, 20 + n_new), n_after);
    ASSERT_TRUE(session.push(7));
    for (const float logit : session.logits()) ASSERT_TRUE(std::isfinite(logit));
  }
}

TEST_P(ShiftedReuseOf, WhatIsComputedAnewInWholeIsExact) {
  const Tokens before = random_tokens(180, 2), after = edited(before, 20, 2, 9);
  EngineOptions options;
  options.kv.codecs = {GetParam().codec, GetParam().codec};
  Cold cold(GetParam().file, options);
  for (const RecomputeRule rule :
       {RecomputeRule::kFirst, RecomputeRule::kLast, RecomputeRule::kSpread}) {
    engine_->cache().evict_all();
    // The run has 180 - 22 - 1 tokens: the blocks of 16 after these 13 cover the rest.
    Session session(*engine_);
    session.set_shifted_reuse(
        ShiftedReuse{.min_run_tokens = 32, .rule = rule, .share = 1, .first_tokens = 13});
    ASSERT_TRUE(session.prompt(before));
    const auto report = session.prompt(after);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->n_shifted, 0);
    EXPECT_EQ(report->n_reused + report->n_computed, static_cast<int>(after.size()));
    EXPECT_TRUE(same_bits(session.logits(), cold.logits(after)));
  }
}

TEST_P(ShiftedReuseOf, NothingApproximateIsPublished) {
  const Tokens before = random_tokens(200, 3), after = edited(before, 20, 0, 7);
  EngineOptions options;
  options.kv.codecs = {GetParam().codec, GetParam().codec};
  Cold cold(GetParam().file, options);
  Session session(*engine_);
  session.set_shifted_reuse(everything_moves());
  ASSERT_TRUE(session.prompt(before));
  ASSERT_TRUE(session.prompt(after));
  Tokens longer = after;
  for (int i = 0; i < 40; ++i) {  // an answer, more than two pages long
    longer.push_back(40 + i);
    ASSERT_TRUE(session.push(longer.back()));
  }
  const Tokens turn = edited(longer, static_cast<int>(longer.size()), 0, 50);
  const auto next = session.prompt(turn);  // the next turn goes on
  ASSERT_TRUE(next);
  EXPECT_EQ(next->n_reused, static_cast<int>(longer.size()));
  EXPECT_EQ(next->first_approximate, 27);
  for (const Tokens& tokens : {after, longer, turn}) {
    Session other(*engine_);
    const auto report = other.prompt(tokens);
    ASSERT_TRUE(report);
    if (&tokens == &after) {
      EXPECT_LE(report->n_reused, 27);
    }
    EXPECT_EQ(report->first_approximate, -1);
    EXPECT_TRUE(same_bits(other.logits(), cold.logits(tokens)));
  }
  // Nor does the session itself take it for exact.
  session.set_shifted_reuse(std::nullopt);
  engine_->cache().evict_all();
  ASSERT_TRUE(session.prompt(turn));
  EXPECT_EQ(session.first_approximate(), -1);
  EXPECT_TRUE(same_bits(session.logits(), cold.logits(turn)));
}

INSTANTIATE_TEST_SUITE_P(Models, ShiftedReuseOf, ::testing::ValuesIn(settings()),
                         [](const auto& tested) { return tested.param.name; });

TEST(ShiftedReuse, ByNothingIsExact) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kF16, CodecId::kBF16}) {
    const auto engine = load_with(kStories, codec, 0);
    const Tokens tokens = random_tokens(150, 4);
    Session exact(*engine);
    ASSERT_TRUE(exact.prompt(tokens));
    cache::Sequence source = engine->cache().open(), target = engine->cache().open();
    std::vector<float> logits;
    const Engine::Step all{&source, tokens, 1};
    const Engine::Step begin{&target, std::span(tokens).first(21), 0};
    ASSERT_TRUE(engine->forward({&all, 1}, logits));
    ASSERT_TRUE(engine->forward({&begin, 1}, logits));
    ShiftedRows rows;
    rows.begin = rows.source_begin = 21;
    rows.end = 149;
    rows.source = std::move(source);
    ASSERT_TRUE(move_shifted(*engine, rows, tokens, target));
    const Engine::Step last{&target, std::span(tokens).subspan(149), 1};
    ASSERT_TRUE(engine->forward({&last, 1}, logits));
    EXPECT_TRUE(same_bits(logits, exact.logits()));
  }
}

TEST(ShiftedReuse, HappensOnlyWhenAskedFor) {
  const auto engine = load_stories(16);
  Cold cold(kStories, {});
  const Tokens before = random_tokens(200, 5), after = edited(before, 20, 0, 7);
  Session session(*engine);
  ASSERT_TRUE(session.prompt(before));
  const auto report = session.prompt(after);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->n_shifted, 0);
  EXPECT_EQ(report->first_approximate, -1);
  EXPECT_TRUE(same_bits(session.logits(), cold.logits(after)));
}

TEST(ShiftedReuse, TakesFromOtherSessionsThatWereNoted) {
  const auto engine = load_stories(16);
  const Tokens before = random_tokens(200, 6), after = edited(before, 20, 0, 7);
  {
    Session first(*engine);
    first.set_shifted_reuse(everything_moves());
    ASSERT_TRUE(first.prompt(before));
  }
  Session second(*engine);
  second.set_shifted_reuse(everything_moves());
  const auto report = second.prompt(after);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->n_reused, 20);
  EXPECT_EQ(report->n_shifted, 192 - 20);  // whole pages of 16
}

TEST(ShiftedReuse, AHistoryThatIsGoneHidesNoOther) {
  const auto engine = load_stories(16);
  const Tokens kept = random_tokens(200, 11), gone = edited(kept, 10, 0, 30);
  Session session(*engine);
  session.set_shifted_reuse(everything_moves());
  ASSERT_TRUE(session.prompt(kept));
  engine->known_histories().note(gone);  // has all of what comes, but no page
  const Tokens wanted = edited(gone, 0, 5, 0);
  const auto report = session.prompt(wanted);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->n_shifted, 200 - 10 - 1);
}

TEST(ShiftedReuse, AChangeInsideWhatWasMovedBeginsAnewFromWhatIsExact) {
  const auto engine = load_stories(16);
  const Tokens before = random_tokens(240, 7), after = edited(before, 20, 0, 7);
  Session session(*engine);
  session.set_shifted_reuse(everything_moves());
  ASSERT_TRUE(session.prompt(before));
  ASSERT_TRUE(session.prompt(after));
  const Tokens again = edited(after, 100, 4, 0);
  const auto report = session.prompt(again);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->n_reused, 27);
  EXPECT_EQ(report->first_approximate, 27);
  // Moved once, from the first prompt's pages: nothing is moved twice.
  EXPECT_EQ(report->n_shifted, 240 - 20 - 4 - 1);
  engine->cache().check_invariants();
}

TEST(ShiftedReuse, AForkIsApproximateToo) {
  const auto engine = load_stories(16);
  const Tokens before = random_tokens(200, 8), after = edited(before, 20, 0, 7);
  Session session(*engine);
  session.set_shifted_reuse(everything_moves());
  ASSERT_TRUE(session.prompt(before));
  ASSERT_TRUE(session.prompt(after));
  auto fork = session.fork();
  ASSERT_TRUE(fork);
  EXPECT_EQ(fork->first_approximate(), 27);
  session.clear();
  EXPECT_EQ(session.first_approximate(), -1);
}

TEST(ShiftedReuse, WithoutRoomForBothIsComputed) {
  const char* file = "arch_vectors/llama_9q3kv_hd64.gguf";
  EngineOptions options;
  options.page_tokens = 16;
  options.n_batch = 64;
  options.n_ctx = 1024;
  options.kv.codecs = {CodecId::kF32, CodecId::kF32};  // one arena holds some 680 tokens
  const Tokens before = random_tokens(600, 9), after = edited(before, 20, 0, 7);
  std::vector<float> want;
  {
    const auto unlimited = load(file, options);
    Session session(*unlimited);
    ASSERT_TRUE(session.prompt(after));
    want.assign(session.logits().begin(), session.logits().end());
    const auto memory = unlimited->memory_summary();
    ASSERT_EQ(memory.allocated, std::uint64_t{2} << 20);
    options.budget_bytes = memory.reserved_weights + memory.reserved_kv + memory.reserved_scratch +
                           (std::uint64_t{256} << 10);
  }
  const auto engine = load(file, options);
  Session session(*engine);
  session.set_shifted_reuse(everything_moves());
  ASSERT_TRUE(session.prompt(before));
  const auto report = session.prompt(after);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->n_shifted, 0);
  EXPECT_EQ(report->first_approximate, -1);
  EXPECT_TRUE(same_bits(session.logits(), want));
  engine->cache().check_invariants();
}

TEST(ShiftedReuse, TakesFromTheDiskOfAnEarlierProcess) {
  const std::string directory = ::testing::TempDir() + "/kvasir-shifted-reuse";
  std::filesystem::remove_all(directory);
  const Tokens before = random_tokens(200, 10), after = edited(before, 20, 0, 7);
  EngineOptions options;
  options.page_tokens = 16;
  options.prefix_bytes = kPlenty;
  options.kv_dir = directory;
  options.always_load = true;
  {
    const auto engine = load(kStories, options);
    Session session(*engine);
    ASSERT_TRUE(session.prompt(before));
    ASSERT_TRUE(engine->cache().flush(30));
  }
  {
    const auto engine = load(kStories, options);
    ASSERT_EQ(engine->known_histories().all().size(), 1u);
    EXPECT_EQ(engine->known_histories().all()[0], Tokens(before.begin(), before.begin() + 192));
    Session session(*engine);
    session.set_shifted_reuse(everything_moves());
    const auto report = session.prompt(after);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->n_reused, 20);
    EXPECT_EQ(report->n_shifted, 192 - 20);
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvasir::engine
