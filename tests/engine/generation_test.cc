// Stop strings, sessions and generations, on the 260K-parameter model of tests/data.
#include "engine/generation.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "engine/session.h"

namespace kvasir::engine {
namespace {

const std::string kStories = KVASIR_SOURCE_DIR "/tests/data/stories260k/stories260K.gguf";

std::unique_ptr<Engine> load_stories(EngineOptions options = {}) {
  options.model_path = kStories;
  options.n_threads = 2;
  auto engine = Engine::load(Env::posix(), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

GenerationParams greedy(int n_max) {
  GenerationParams params;
  params.sampling.temperature = 0;
  params.n_max = n_max;
  return params;
}

struct Output {
  std::string text;
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::kLength;
};

Output run(Engine& engine, Session& session, const GenerationParams& params) {
  Generation generation(engine, session, params);
  Output output;
  while (true) {
    auto event = generation.next();
    EXPECT_TRUE(event) << event.error().message;
    output.text += event->text;
    if (event->finished) {
      output.reason = *event->finished;
      break;
    }
  }
  output.tokens = generation.tokens();
  return output;
}

std::vector<TokenId> encode(const Engine& engine, const std::string& text) {
  return engine.tokenizer().encode(text, text::AddSpecial::kYes, text::ParseSpecial::kNo);
}

TEST(Engine, RefusesABatchBeforeItsScratchIsThere) {
  const auto unlimited = load_stories();
  EngineOptions options;
  options.budget_bytes = unlimited->model().weight_bytes() + (3 << 19);
  const auto engine = load_stories(options);
  const std::vector<TokenId> tokens(400, 5);
  cache::Sequence sequence = engine->cache().open();
  std::vector<float> logits;
  const Engine::Step step{&sequence, tokens, 1};
  const Status status = engine->forward({&step, 1}, logits);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kExhausted);
  EXPECT_NE(status.error().message.find("scratch"), std::string::npos) << status.error().message;
  EXPECT_EQ(engine->model().scratch_bytes(), 0u);
  EXPECT_EQ(sequence.n_tokens(), 0);
  const Engine::Step smaller{&sequence, std::span(tokens).first(8), 1};
  const Status fits = engine->forward({&smaller, 1}, logits);
  EXPECT_TRUE(fits) << fits.error().message;
  const cache::MemorySummary memory = engine->memory_summary();
  EXPECT_LE(memory.reserved_weights + memory.reserved_kv + memory.reserved_scratch,
            options.budget_bytes);
}

TEST(Generation, EveryTokenRuledOutIsAnError) {
  const auto engine = load_stories();
  Session session(*engine);
  ASSERT_TRUE(session.prompt(encode(*engine, "Once")));
  GenerationParams params = greedy(4);
  for (TokenId token = 0; token < engine->model().config().vocab_size; ++token) {
    params.sampling.logit_bias.emplace_back(token, -std::numeric_limits<float>::infinity());
  }
  const auto event = Generation(*engine, session, params).next();
  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code, ErrorCode::kInvalidArgument);
}

TEST(StopMatcher, FindsAStopAcrossEverySplit) {
  const std::string text = "one END two";
  for (std::size_t i = 0; i <= text.size(); ++i) {
    for (std::size_t j = i; j <= text.size(); ++j) {
      StopMatcher matcher({"END"});
      std::string shown;
      for (const std::string& part : {text.substr(0, i), text.substr(i, j - i), text.substr(j)}) {
        if (!matcher.matched()) shown += matcher.push(part);
      }
      ASSERT_TRUE(matcher.matched()) << i << " " << j;
      EXPECT_EQ(shown, "one ");
    }
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBecomeAStop) {
  StopMatcher matcher({"abcab", "xyz"});
  EXPECT_EQ(matcher.push("hello ab"), "hello ");
  EXPECT_EQ(matcher.push("cx"), "abc");
  EXPECT_EQ(matcher.push("q"), "xq");
  EXPECT_EQ(matcher.push("abca"), "");
  EXPECT_EQ(matcher.finish(), "abca");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, TakesTheEarliestOfSeveral) {
  StopMatcher matcher({"later", "now"});
  EXPECT_EQ(matcher.push("do it now or later"), "do it ");
  EXPECT_EQ(matcher.matched(), "now");
}

TEST(Generation, StreamedTextEqualsDecodedTokens) {
  auto engine = load_stories();
  Session session(*engine);
  ASSERT_TRUE(session.prompt(encode(*engine, "Once upon a time")));
  const Output output = run(*engine, session, greedy(40));
  EXPECT_EQ(output.tokens.size(), 40u);
  EXPECT_EQ(output.reason, FinishReason::kLength);
  std::string pieces;
  for (const TokenId token : output.tokens) pieces += engine->tokenizer().piece(token);
  EXPECT_NE(output.text.find(pieces.substr(1)), std::string::npos);
}

TEST(Generation, StopStringEndsTheAnswerBeforeIt) {
  auto engine = load_stories();
  Session session(*engine);
  const auto prompt = encode(*engine, "Once upon a time");
  ASSERT_TRUE(session.prompt(prompt));
  const Output whole = run(*engine, session, greedy(60));
  const std::string stop = whole.text.substr(20, 7);
  ASSERT_TRUE(session.prompt(prompt));
  GenerationParams params = greedy(60);
  params.stops = {stop};
  const Output cut = run(*engine, session, params);
  EXPECT_EQ(cut.reason, FinishReason::kStopString);
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stop)));
}

TEST(Generation, EndsWhenTheContextIsFull) {
  EngineOptions options;
  options.n_ctx = 24;
  auto engine = load_stories(options);
  Session session(*engine);
  ASSERT_TRUE(session.prompt(encode(*engine, "Once upon a time")));
  GenerationParams params = greedy(-1);
  params.ignore_eog = true;
  EXPECT_EQ(run(*engine, session, params).reason, FinishReason::kContextFull);
  EXPECT_EQ(session.n_tokens(), 24);
}

TEST(Session, APromptLongerThanTheContextIsRefusedWithNumbers) {
  EngineOptions options;
  options.n_ctx = 8;
  auto engine = load_stories(options);
  Session session(*engine);
  const auto report = session.prompt(std::vector<TokenId>(9, 5));
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kExhausted);
  EXPECT_NE(report.error().message.find("got 9 tokens, want at most 8"), std::string::npos);
  EXPECT_FALSE(session.prompt({}));
  EXPECT_FALSE(session.prompt(std::vector<TokenId>{100000}));
  EXPECT_EQ(session.n_tokens(), 0);
}

TEST(Session, ReusesTheCommonPrefixAndGivesTheSameLogits) {
  auto engine = load_stories();
  const auto first = encode(*engine, "Once upon a time there was a dog. The dog was big");
  const auto second = encode(*engine, "Once upon a time there was a cat who had a hat");
  Session warm(*engine), cold(*engine);
  ASSERT_TRUE(warm.prompt(first));
  const auto report = warm.prompt(second);
  ASSERT_TRUE(report);
  EXPECT_GT(report->n_reused, 5);
  EXPECT_EQ(report->n_reused + report->n_computed, report->n_prompt);
  ASSERT_TRUE(cold.prompt(second));
  ASSERT_EQ(warm.logits().size(), cold.logits().size());
  for (std::size_t i = 0; i < cold.logits().size(); ++i)
    ASSERT_EQ(warm.logits()[i], cold.logits()[i]);
}

TEST(Session, TheSamePromptAgainComputesOneToken) {
  auto engine = load_stories();
  Session session(*engine);
  const auto prompt = encode(*engine, "Once upon a time");
  ASSERT_TRUE(session.prompt(prompt));
  const std::vector<float> before(session.logits().begin(), session.logits().end());
  const auto report = session.prompt(prompt);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->n_computed, 1);
  EXPECT_EQ(std::vector<float>(session.logits().begin(), session.logits().end()), before);
}

TEST(Session, AnInterruptedPromptResumesWhereItStopped) {
  EngineOptions options;
  options.n_batch = 8;
  auto engine = load_stories(options);
  std::vector<TokenId> prompt;
  for (int i = 0; i < 60; ++i) prompt.push_back(3 + i * 7 % 500);
  Session session(*engine), whole(*engine);
  std::atomic<bool> stop{false};
  const auto interrupt = [&](int done, int) { stop = done >= 24; };
  const auto cut = session.prompt(prompt, interrupt, &stop);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(session.n_tokens(), 24);
  const auto resumed = session.prompt(prompt);
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->n_computed, 36);
  ASSERT_TRUE(whole.prompt(prompt));
  EXPECT_TRUE(std::equal(session.logits().begin(), session.logits().end(), whole.logits().begin()));
}

TEST(Session, AForkGoesItsOwnWay) {
  auto engine = load_stories();
  Session parent(*engine);
  ASSERT_TRUE(parent.prompt(encode(*engine, "Once upon a time")));
  auto child = parent.fork();
  ASSERT_TRUE(child);
  EXPECT_GT(engine->memory_summary().shared, 0u);
  const Output from_child = run(*engine, *child, greedy(30));
  const Output from_parent = run(*engine, parent, greedy(30));
  EXPECT_EQ(from_child.tokens, from_parent.tokens);
  engine->cache().check_invariants();
}

TEST(Engine, ThreeHundredRoundsReturnToTheStartingBytes) {
  auto engine = load_stories();
  const auto prompt = encode(*engine, "Once upon a time there was");
  {
    Session warm_up(*engine);
    ASSERT_TRUE(warm_up.prompt(prompt));
    run(*engine, warm_up, greedy(8));
  }
  const cache::MemorySummary start = engine->memory_summary();
  EXPECT_EQ(start.allocated, 0u);
  for (int round = 0; round < 300; ++round) {
    Session session(*engine);
    ASSERT_TRUE(session.prompt(prompt));
    run(*engine, session, greedy(8));
  }
  const cache::MemorySummary end = engine->memory_summary();
  EXPECT_EQ(end.allocated, start.allocated);
  EXPECT_EQ(end.used, start.used);
  EXPECT_EQ(end.reserved_kv, start.reserved_kv);
  EXPECT_EQ(end.reserved_scratch, start.reserved_scratch);
  EXPECT_EQ(end.n_sequences, start.n_sequences);
}

TEST(Engine, ABudgetTooSmallIsRefusedWithNumbersAndNothingIsLost) {
  EngineOptions options;
  options.model_path = kStories;
  options.budget_bytes = 1000;
  const auto refused = Engine::load(Env::posix(), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);

  // Room for the weights, one arena of KV and the scratch of short batches, not for a second arena.
  auto roomy = load_stories();
  options.budget_bytes = roomy->model().weight_bytes() + (std::uint64_t{3} << 20) + (1u << 20);
  options.n_batch = 16;
  auto tight = load_stories(options);
  std::vector<std::unique_ptr<Session>> sessions;
  bool was_refused = false;
  for (int i = 0; i < 64 && !was_refused; ++i) {
    sessions.push_back(std::make_unique<Session>(*tight));
    const auto report = sessions.back()->prompt(std::vector<TokenId>(200, 5));
    if (report) continue;
    was_refused = true;
    EXPECT_EQ(report.error().code, ErrorCode::kExhausted);
    EXPECT_LT(sessions.back()->n_tokens(), 200);
  }
  ASSERT_TRUE(was_refused);
  tight->cache().check_invariants();
  sessions.erase(sessions.begin());  // somebody leaves: now it fits
  EXPECT_TRUE(sessions.back()->prompt(std::vector<TokenId>(200, 5)));
  const cache::MemorySummary memory = tight->memory_summary();
  EXPECT_LE(memory.reserved_kv + memory.reserved_weights + memory.reserved_scratch, memory.budget);
}

TEST(Engine, BadOptionsAndFilesAreErrors) {
  EngineOptions options;
  options.model_path = kStories;
  options.page_tokens = 48;
  EXPECT_FALSE(Engine::load(Env::posix(), options));
  options.page_tokens = 64;
  options.n_batch = 0;
  EXPECT_FALSE(Engine::load(Env::posix(), options));
  options.n_batch = 1;
  options.model_path = KVASIR_SOURCE_DIR "/no/such/file.gguf";
  const auto missing = Engine::load(Env::posix(), options);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace kvasir::engine
