// Sessions on a disk that is slower than computing: the tiny models compute a page faster than any
// disk reads it, so they always are.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "engine/kv_dir_support.h"

namespace kvasir::engine::testing {
namespace {

class LoadBehind : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    options_.page_tokens = 16;
    options_.n_batch = 24;  // no multiple of a page
    cold_ = std::make_unique<Cold>(GetParam(), options_);
    RandomPrompts prompts(cold_->vocab_size(), 220, 3);
    prompt_ = prompts.next();
    const auto engine = load_on(directory_, GetParam(), options_);
    Session session(*engine);
    ASSERT_TRUE(session.prompt(prompt_));
    settle(*engine);
  }
  /// The same directory again, now going by what loading costs.
  std::unique_ptr<Engine> restart() const {
    EngineOptions options = options_;
    options.kv_dir = directory_.path();
    options.prefix_bytes = kPlenty;
    return load(GetParam(), options);
  }
  /// Gives the disk time between two chunks.
  static void pause(int, int) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

  const KvDirectory directory_;
  EngineOptions options_;
  std::unique_ptr<Cold> cold_;
  Tokens prompt_;
};

TEST_P(LoadBehind, TheEndOfAPromptComesFromTheDiskAndChangesNoBit) {
  const auto engine = restart();
  for (const int n_new : {0, 1, 30}) {
    Tokens tokens = prompt_;
    tokens.resize(tokens.size() + static_cast<std::size_t>(n_new), 7);
    Session session(*engine);
    const auto report = session.prompt(tokens, pause);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->n_reused + report->n_behind + report->n_computed,
              static_cast<int>(tokens.size()));
    if (n_new == 0) {
      EXPECT_EQ(report->end, cache::MatchEnd::kLoadSlowerThanRecompute);
      EXPECT_GT(report->n_behind, 0);
      EXPECT_GT(report->n_computed, 0);
    }
    EXPECT_TRUE(same_bits(session.logits(), cold_->logits(tokens)));
    // What follows is computed and published as after any prompt.
    ASSERT_TRUE(session.push(9));
    tokens.push_back(9);
    EXPECT_TRUE(same_bits(session.logits(), cold_->logits(tokens)));
    engine->cache().check_invariants();
  }
}

TEST_P(LoadBehind, APageThatIsGoneInTheMiddleIsComputed) {
  std::filesystem::remove(directory_.pages()[directory_.pages().size() / 2]);
  const auto engine = restart();
  Session session(*engine);
  const auto report = session.prompt(prompt_, pause);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(same_bits(session.logits(), cold_->logits(prompt_)));
}

TEST_P(LoadBehind, AnInterruptedPromptGoesOn) {
  const auto engine = restart();
  Session session(*engine);
  std::atomic<bool> stop{false};
  int n_chunks = 0;
  const auto interrupt = [&](int, int) { stop = ++n_chunks == 2; };
  EXPECT_EQ(session.prompt(prompt_, interrupt, &stop).error().code, ErrorCode::kCancelled);
  engine->cache().check_invariants();
  const auto report = session.prompt(prompt_, pause);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(same_bits(session.logits(), cold_->logits(prompt_)));
}

INSTANTIATE_TEST_SUITE_P(Models, LoadBehind,
                         ::testing::Values("arch_vectors/llama_9q3kv_hd64.gguf",
                                           "arch_vectors/gemma2_b.gguf", kStories));

}  // namespace
}  // namespace kvasir::engine::testing
