// Runs of a prompt in earlier histories, against looking at every place.
#include "engine/known_histories.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvasir::engine {
namespace {

using Tokens = std::vector<TokenId>;

Tokens counting(int n, TokenId first) {
  Tokens tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(first + i);
  return tokens;
}

Tokens joined(std::initializer_list<Tokens> parts) {
  Tokens all;
  for (const Tokens& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(TokenRuns, FindWhatFollowsAChange) {
  const Tokens head = counting(10, 0), tail = counting(50, 100), other = counting(3, 900);
  const Tokens history = joined({head, tail});
  const std::span<const TokenId> histories[] = {history};
  const auto runs = find_token_runs(joined({head, other, tail}), 10, histories, 20);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].begin, 13);
  EXPECT_EQ(runs[0].end, 63);
  EXPECT_EQ(runs[0].history_begin, 10);
  EXPECT_EQ(runs[0].shift(), 3);
}

TEST(TokenRuns, TakeTheLongestAndGoOnBehindIt) {
  const Tokens a = counting(40, 0), b = counting(40, 100), c = counting(40, 200);
  const Tokens first = joined({b, counting(5, 900)}), second = joined({a, b, c});
  const std::span<const TokenId> histories[] = {first, second};
  const auto runs = find_token_runs(joined({c, b, c, a}), 0, histories, 16);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].end, 40);
  EXPECT_EQ(runs[1].history_idx, 1u);
  EXPECT_EQ(runs[1].begin, 40);
  EXPECT_EQ(runs[1].end, 120);
  EXPECT_EQ(runs[2].end, 160);
}

TEST(TokenRuns, AreRealLongEnoughAndMissNothingLong) {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 300; ++round) {
    Tokens history, prompt;
    for (int i = 0; i < 200; ++i) history.push_back(below(1000));
    while (prompt.size() < 200) {  // pieces of the history and others
      const int begin = below(200), n = std::min(below(60), 200 - begin);
      prompt.insert(prompt.end(), history.begin() + begin, history.begin() + begin + n);
      for (int i = below(4); i > 0; --i) prompt.push_back(below(1000));
    }
    const int first = below(50), min_tokens = 8 + below(20);
    const std::span<const TokenId> histories[] = {history};
    int end = first;
    std::vector<bool> is_in_run(prompt.size(), false);
    for (const TokenRun& run : find_token_runs(prompt, first, histories, min_tokens)) {
      ASSERT_GE(run.begin, end);
      ASSERT_GE(run.n_tokens(), min_tokens);
      end = run.end;
      for (int i = 0; i < run.n_tokens(); ++i) {
        ASSERT_EQ(prompt[static_cast<std::size_t>(run.begin + i)],
                  history[static_cast<std::size_t>(run.history_begin + i)]);
        is_in_run[static_cast<std::size_t>(run.begin + i)] = true;
      }
    }
    // Nothing as long as that is left between the runs.
    for (std::size_t at = static_cast<std::size_t>(first); at < prompt.size(); ++at) {
      for (std::size_t from = 0; from < history.size(); ++from) {
        std::size_t n = 0;
        while (at + n < prompt.size() && from + n < history.size() && !is_in_run[at + n] &&
               prompt[at + n] == history[from + n]) {
          ++n;
        }
        ASSERT_LT(n, static_cast<std::size_t>(min_tokens)) << "prompt " << at << " = " << from;
      }
    }
  }
}

TEST(KnownHistories, KeepTheLongestAndTheNewest) {
  KnownHistories known;
  known.note({});
  known.note(counting(5, 0));
  known.note(counting(9, 0));  // goes on
  known.note(counting(7, 0));  // known
  ASSERT_EQ(known.all().size(), 1u);
  EXPECT_EQ(known.all()[0].size(), 9u);
  for (std::size_t i = 0; i < KnownHistories::kMost; ++i) {
    known.note(counting(3, static_cast<TokenId>(100 * (i + 1))));
  }
  EXPECT_EQ(known.all().size(), KnownHistories::kMost);
  EXPECT_EQ(known.all()[0][0], 100);
}

}  // namespace
}  // namespace kvasir::engine
