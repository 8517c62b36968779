// What an earlier prompt computed gives the bits that computing it again would: from the tree, from
// a copied page, in a fork, after eviction; and a prompt's report says what was reused and why no
// more.
#include <gtest/gtest.h>

#include "engine/reuse_support.h"

namespace kvasir::engine {
namespace {

using namespace testing;
using cache::MatchEnd;

TEST(PrefixReuse, ASecondSessionComputesOnlyWhatIsNew) {
  Cold cold(kStories, {});
  const auto engine = load_stories(16);
  const Tokens known = run_of(100);
  Session first(*engine);
  PromptReport report = first.prompt(known).value();
  EXPECT_EQ(report.n_reused, 0);
  EXPECT_EQ(report.n_computed, 100);
  EXPECT_TRUE(same_bits(first.logits(), cold.logits(known)));

  Session second(*engine);
  report = second.prompt(known).value();
  EXPECT_EQ(report.n_reused, 96);
  EXPECT_EQ(report.n_computed, 4);
  EXPECT_TRUE(same_bits(second.logits(), cold.logits(known)));
  for (int layer = 0; layer < engine->model().config().n_layers; ++layer) {
    EXPECT_EQ(first.view(layer).rows.frames[5], second.view(layer).rows.frames[5])
        << "one page for both";
  }

  first.clear();  // what it left still serves, and so does a part of a page
  const Tokens other = branch(known, 41, 20);
  Session third(*engine);
  report = third.prompt(other).value();
  EXPECT_EQ(report.n_reused, 41);
  EXPECT_TRUE(same_bits(third.logits(), cold.logits(other)));
  EXPECT_TRUE(same_bits(second.logits(), cold.logits(known)));

  Session fork = second.fork().value();
  Tokens longer = known;
  for (const TokenId token : {7, 400, 21}) {
    ASSERT_TRUE(fork.push(token));
    longer.push_back(token);
    EXPECT_TRUE(same_bits(fork.logits(), cold.logits(longer)));
  }
  ASSERT_TRUE(second.push(9));
  Tokens sibling = known;
  sibling.push_back(9);
  EXPECT_TRUE(same_bits(second.logits(), cold.logits(sibling)));

  second.clear();
  third.clear();
  fork.clear();
  engine->cache().evict_all();
  EXPECT_EQ(engine->memory_summary().allocated, 0u);
  Session again(*engine);
  EXPECT_EQ(again.prompt(known).value().n_reused, 0);
  EXPECT_TRUE(same_bits(again.logits(), cold.logits(known)));
  engine->cache().check_invariants();
}

/// Pushed tokens are published like a prompt's.
TEST(PrefixReuse, AnAnswerIsAPrefixOfTheNextPrompt) {
  Cold cold(kStories, {});
  const auto engine = load_stories(16);
  {
    Session session(*engine);
    ASSERT_TRUE(session.prompt(run_of(10)));
    for (TokenId token = 13; token < 53; ++token) ASSERT_TRUE(session.push(token));
  }
  const Tokens next = branch(run_of(50), 50, 10);
  Session session(*engine);
  EXPECT_EQ(session.prompt(next).value().n_reused, 48);
  EXPECT_TRUE(same_bits(session.logits(), cold.logits(next)));
}

TEST(PrefixReuse, ReportsSayWhereReuseEndedAndWhy) {
  struct Row {
    const char* name;
    Tokens prompt;
    int n_reused;
    MatchEnd end;
    TokenId cached = -1, wanted = -1;
  };
  const Tokens known = run_of(70);  // ids 3..72
  const Row rows[] = {
      {"longer than what is cached", run_of(90), 64, MatchEnd::kEndOfCache},
      {"other behind it", branch(known, 64, 10), 64, MatchEnd::kEndOfCache},
      {"the same", run_of(65), 64, MatchEnd::kLastToken},
      {"whole pages", run_of(64), 63, MatchEnd::kLastToken},
      {"one token", run_of(1), 0, MatchEnd::kLastToken},
      {"other in a page", branch(known, 37, 10), 37, MatchEnd::kFirstDifference, 40, 400},
      {"other at a page", branch(known, 48, 10), 48, MatchEnd::kFirstDifference, 51, 400},
      {"other from the first", branch(known, 0, 10), 0, MatchEnd::kFirstDifference, 3, 400},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const auto engine = load_stories(16);
    Session(*engine).prompt(known).value();
    Session session(*engine);
    const PromptReport report = session.prompt(row.prompt).value();
    EXPECT_EQ(report.n_prompt, static_cast<int>(row.prompt.size()));
    EXPECT_EQ(report.n_reused, row.n_reused);
    EXPECT_EQ(report.n_computed, report.n_prompt - row.n_reused);
    EXPECT_EQ(report.end, row.end) << match_end_name(report.end);
    EXPECT_EQ(report.cached, row.cached);
    EXPECT_EQ(report.wanted, row.wanted);
  }

  const auto engine = load_stories(16);
  Session(*engine).prompt(known).value();
  ASSERT_TRUE(engine->cache().evict_one());
  const PromptReport report = Session(*engine).prompt(known).value();
  EXPECT_EQ(report.n_reused, 48);
  EXPECT_EQ(report.end, MatchEnd::kEvicted);
}

/// The session's own history reaches further than the tree, whose pages are whole.
TEST(PrefixReuse, ASessionsOwnHistoryIsTakenWhereItIsLonger) {
  for (const std::uint64_t prefix_bytes : {kPlenty, std::uint64_t{0}}) {
    SCOPED_TRACE(prefix_bytes);
    Cold cold(kStories, {});
    const auto engine = load_stories(64, prefix_bytes);
    Session session(*engine);
    ASSERT_TRUE(session.prompt(run_of(50)));
    PromptReport report = session.prompt(branch(run_of(50), 40, 5)).value();
    EXPECT_EQ(report.n_reused, 40);
    EXPECT_EQ(report.end, MatchEnd::kFirstDifference);
    EXPECT_EQ(report.cached, 43);
    EXPECT_EQ(report.wanted, 400);
    EXPECT_TRUE(same_bits(session.logits(), cold.logits(branch(run_of(50), 40, 5))));
    report = session.prompt(branch(run_of(50), 40, 9)).value();
    EXPECT_EQ(report.n_reused, 45);
    EXPECT_EQ(report.end, MatchEnd::kEndOfCache);
    report = session.prompt(branch(run_of(50), 40, 9)).value();
    EXPECT_EQ(report.n_reused, 48);
    EXPECT_EQ(report.end, MatchEnd::kLastToken);
    report = session.prompt(run_of(20, 100)).value();
    EXPECT_EQ(report.n_reused, 0);
    EXPECT_EQ(report.end, MatchEnd::kFirstDifference);
    EXPECT_EQ(report.cached, 3);
    EXPECT_EQ(report.wanted, 100);
    EXPECT_TRUE(same_bits(session.logits(), cold.logits(run_of(20, 100))));
  }
}

/// A window that has passed is no first difference: the page was there and has gone. The prefix
/// tree still has it, of every group.
TEST(PrefixReuse, AHistoryBelowAWindowIsComputedAgainOrFoundInTheTree) {
  const char* const file = "arch_vectors/gemma2_b.gguf";
  Cold cold(file, {});
  for (const std::uint64_t prefix_bytes : {kPlenty, std::uint64_t{0}}) {
    SCOPED_TRACE(prefix_bytes);
    EngineOptions options;
    options.page_tokens = 16;
    options.n_batch = 32;  // the window passes from chunk to chunk
    options.prefix_bytes = prefix_bytes;
    const auto engine = load(file, options);
    Session session(*engine);
    ASSERT_TRUE(session.prompt(run_of(150)));
    const Tokens back = branch(run_of(150), 50, 30);
    const PromptReport report = session.prompt(back).value();
    const bool has_tree = prefix_bytes > 0;
    EXPECT_EQ(report.n_reused, has_tree ? 50 : 0);
    EXPECT_EQ(report.end, has_tree ? MatchEnd::kFirstDifference : MatchEnd::kEvicted)
        << match_end_name(report.end);
    EXPECT_EQ(report.cached, has_tree ? 53 : -1);
    EXPECT_TRUE(same_bits(session.logits(), cold.logits(back)));
    engine->cache().check_invariants();
  }
}

TEST(PrefixReuse, UnusedPagesGiveWayToKvAndScratch) {
  EngineOptions options;
  options.page_tokens = 16;
  options.n_batch = 32;
  options.prefix_bytes = kPlenty;
  const auto roomy = load(kStories, options);
  options.budget_bytes = roomy->model().weight_bytes() + (std::uint64_t{5} << 20);
  const auto tight = load(kStories, options);
  Cold cold(kStories, {});
  for (int i = 0; i < 60; ++i) {  // 200 tokens are 250 KB: the budget holds some 20 such prompts
    const Tokens prompt = run_of(200, 3 + i);
    Session session(*tight);
    const auto report = session.prompt(prompt);
    ASSERT_TRUE(report) << report.error().message;
    if (i % 10 == 0) {
      EXPECT_TRUE(same_bits(session.logits(), cold.logits(prompt)));
    }
  }
  const cache::MemorySummary memory = tight->memory_summary();
  EXPECT_LE(memory.reserved_kv + memory.reserved_weights + memory.reserved_scratch, memory.budget);
  EXPECT_GT(memory.cached, 0u);
  tight->cache().check_invariants();
}

/// Histories computed in small steps fill the budget, then a prompt in one step wants scratch,
/// which is no page. The prompt's own page keeps one arena of two.
TEST(PrefixReuse, UnusedPagesGiveWayToScratchAlone) {
  EngineOptions options;
  options.page_tokens = 128;
  options.prefix_bytes = kPlenty;
  const auto roomy = load(kStories, options);
  options.budget_bytes = roomy->model().weight_bytes() + (std::uint64_t{4} << 20);
  const auto tight = load(kStories, options);
  for (int i = 0; i < 16; ++i) {
    Tokens history;
    Session session(*tight);
    while (history.size() < 512) {
      for (int k = 0; k < 16; ++k) {
        history.push_back(3 + (i + static_cast<TokenId>(history.size())) % 500);
      }
      ASSERT_TRUE(session.prompt(history));
    }
  }
  Cold cold(kStories, {});
  cache::MemorySummary memory = tight->memory_summary();
  const std::uint64_t n_pages = memory.groups[0].n_pages_used;
  EXPECT_LT(memory.budget - memory.reserved_kv - memory.reserved_weights - memory.reserved_scratch,
            std::uint64_t{100'000})
      << "the budget is not full";
  Session session(*tight);
  const Tokens prompt = run_of(128, 203);
  const auto report = session.prompt(prompt);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(same_bits(session.logits(), cold.logits(prompt)));
  EXPECT_LT(tight->memory_summary().groups[0].n_pages_used, n_pages);
}

}  // namespace
}  // namespace kvasir::engine
