// Thousands of random operations on a cache with a prefix tree, beside twins that keep nothing but
// token histories.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "cache/prefix_support.h"

namespace kvasir::cache {
namespace {

using testing::root_of;
using testing::Tokens;
using testing::Twin;

struct Scenario {
  CacheOptions options;
  int longest = 0;             ///< tokens of a sequence
  std::uint64_t budget = 0;    ///< bytes; 0: no limit
  bool keeps_nothing = false;  ///< pages are given up at random
  std::string name;

  bool has_window() const {
    return std::any_of(options.groups.begin(), options.groups.end(),
                       [](const GroupSpec& group) { return group.window > 0; });
  }
  /// Nothing is ever given up, so that what is found can be foretold.
  bool is_exact() const { return !has_window() && budget == 0 && !keeps_nothing; }
};

/// What happened how often, so that a tame run fails.
struct Seen {
  int reused_pages = 0, copied = 0, exhausted = 0, refused_truncates = 0, cut_by_window = 0;
  int evicted = 0, differences = 0;

  void add(const Seen& other) {
    reused_pages += other.reused_pages;
    copied += other.copied;
    exhausted += other.exhausted;
    refused_truncates += other.refused_truncates;
    cut_by_window += other.cut_by_window;
    evicted += other.evicted;
    differences += other.differences;
  }
};

class Machine {
 public:
  Machine(const Scenario& scenario, unsigned seed)
      : scenario_(scenario),
        budget_(scenario.budget),
        cache_(KvCache::create(scenario.options, budget_).value()),
        random_(seed) {}

  void run(int n_operations) {
    for (int i = 0; i < n_operations; ++i) {
      step();
      if (::testing::Test::HasFatalFailure()) return;
      cache_->check_invariants();
      expect_bytes();
      if (i % 20 == 0) {
        for (const auto& open : open_) expect_contents(*open);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const auto& open : open_) expect_contents(*open);
    open_.clear();
    cache_->check_invariants();
    const MemorySummary summary = cache_->memory_summary();
    EXPECT_EQ(summary.used, summary.cached);
    cache_->evict_all();
    EXPECT_EQ(cache_->memory_summary().allocated, 0u);
    EXPECT_EQ(budget_.reserved(), 0u);
  }

  Seen seen;

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }
  Twin& any_open() {
    return *open_[static_cast<std::size_t>(below(static_cast<int>(open_.size())))];
  }

  void step() {
    const int choice = below(100);
    if (open_.empty() || choice < 25) return open();
    if (choice < 60) return grow(any_open());
    if (choice < 68) return fork(any_open());
    if (choice < 82) return truncate(any_open());
    if (choice < 94) return close(any_open());
    if (scenario_.keeps_nothing && cache_->evict_one()) ++seen.evicted;
  }

  /// Begins like some earlier history, and goes on at random.
  Tokens random_prompt() {
    Tokens prompt;
    if (!known_.empty() && below(6) != 0) {
      prompt = known_[static_cast<std::size_t>(below(static_cast<int>(known_.size())))];
      if (below(3) != 0) {
        prompt.resize(static_cast<std::size_t>(below(static_cast<int>(prompt.size()) + 1)));
      }
    }
    extend(prompt, below(2) == 0 ? below(4) : below(2 * scenario_.options.page_tokens));
    if (prompt.empty()) prompt.push_back(0);
    return prompt;
  }

  /// Tokens of an alphabet of three.
  void extend(Tokens& tokens, int n) {
    for (; n > 0 && static_cast<int>(tokens.size()) < scenario_.longest; --n) {
      tokens.push_back(below(3));
    }
  }

  void open() {
    if (open_.size() >= 7) close(any_open());
    const PageKey root = root_of(below(8) == 0 ? "other" : "");
    const Tokens prompt = random_prompt();
    Match match;
    auto opened = std::make_unique<Twin>(testing::open_twin(*cache_, root, prompt, match));
    expect_match(match, root, prompt);
    expect_contents(*opened);
    open_.push_back(std::move(opened));
    if (below(4) != 0) compute(*open_.back(), prompt);
  }

  void expect_match(const Match& match, const PageKey& root, const Tokens& prompt) {
    const int page_tokens = scenario_.options.page_tokens;
    ASSERT_LT(match.position, static_cast<int>(prompt.size()));
    ASSERT_EQ(match.position, static_cast<int>(match.nodes.size()) * page_tokens + match.n_partial);
    ASSERT_EQ(match.partial.is_none(), match.n_partial == 0);
    if (match.end == MatchEnd::kFirstDifference) {
      ASSERT_EQ(match.wanted, prompt[static_cast<std::size_t>(match.position)]);
      ASSERT_NE(match.cached, match.wanted);
      ++seen.differences;
    } else {
      ASSERT_EQ(match.cached, -1);
      ASSERT_EQ(match.wanted, -1);
    }
    ASSERT_EQ(match.end == MatchEnd::kLastToken,
              match.position == static_cast<int>(prompt.size()) - 1);
    seen.reused_pages += static_cast<int>(match.nodes.size());
    if (match.n_partial > 0) ++seen.copied;
    if (match.end == MatchEnd::kEvicted && scenario_.has_window()) ++seen.cut_by_window;
    if (!scenario_.is_exact()) return;
    std::ptrdiff_t longest = 0;
    for (const auto& [published_root, tokens] : published_) {
      if (!(published_root == root)) continue;
      const auto equal = std::mismatch(tokens.begin(), tokens.end(), prompt.begin(), prompt.end());
      longest = std::max(longest, equal.first - tokens.begin());
    }
    ASSERT_EQ(match.position, std::min<std::ptrdiff_t>(longest, std::ssize(prompt) - 1));
  }

  void grow(Twin& open) {
    if (static_cast<int>(open.tokens.size()) >= scenario_.longest) return close(open);
    Tokens more = open.tokens;
    extend(more, below(3) == 0 ? 1 + below(scenario_.longest / 2) : 1 + below(20));
    compute(open, more);
  }

  void compute(Twin& open, const Tokens& target) {
    const Tokens before = open.tokens;
    const Status status = testing::compute(open, target, 0.01);
    expect_contents(open);
    if (!status) {
      ASSERT_EQ(status.error().code, ErrorCode::kExhausted) << status.error().message;
      ASSERT_NE(scenario_.budget, 0u) << status.error().message;
      ASSERT_EQ(open.tokens, before);
      ASSERT_FALSE(cache_->evict_one()) << "refused, although pages were left to give up";
      ++seen.exhausted;
      return;
    }
    known_.push_back(open.tokens);
    if (known_.size() > 12) known_[static_cast<std::size_t>(below(12))] = std::move(known_.back());
    known_.resize(std::min<std::size_t>(known_.size(), 12));
    const auto page_tokens = static_cast<std::size_t>(scenario_.options.page_tokens);
    Tokens full = open.tokens;
    full.resize(full.size() / page_tokens * page_tokens);
    if (scenario_.is_exact()) published_.emplace_back(open.root, std::move(full));
  }

  void fork(const Twin& source) {
    if (open_.size() >= 8) return;
    auto copy = std::make_unique<Twin>();
    copy->sequence = source.sequence.fork().value();
    copy->tokens = source.tokens;
    copy->root = source.root;
    open_.push_back(std::move(copy));
  }

  void truncate(Twin& open) {
    const int n_before = static_cast<int>(open.tokens.size());
    const int n =
        below(2) == 0 ? below(n_before + 1) : n_before - below(std::min(n_before, 20) + 1);
    const Status status = open.sequence.truncate(n);
    if (!status) {
      ASSERT_EQ(status.error().code, ErrorCode::kUnsupported);
      ASSERT_TRUE(scenario_.has_window());
      ++seen.refused_truncates;
    } else {
      open.tokens.resize(static_cast<std::size_t>(n));
    }
    expect_contents(open);
  }

  void close(Twin& open) {
    std::erase_if(open_, [&](const auto& entry) { return entry.get() == &open; });
  }

  void expect_contents(const Twin& open) { ASSERT_TRUE(testing::holds(scenario_.options, open)); }

  /// Pages are owned by live entries of sequences and by the tree: what is left over is the tree's.
  void expect_bytes() {
    const MemorySummary summary = cache_->memory_summary();
    std::uint64_t in_tree = 0;
    for (std::size_t g = 0; g < scenario_.options.groups.size(); ++g) {
      const auto layer = static_cast<std::size_t>(scenario_.options.groups[g].layers[0]);
      std::uint64_t n_live = 0;
      for (const auto& open : open_) {
        const PagedKvView view = open->sequence.views()[layer];
        const int n_pages = pages_for(view.n_tokens, scenario_.options.page_tokens);
        for (int i = 0; i < n_pages; ++i) n_live += view.rows.frames[i] != nullptr ? 1 : 0;
      }
      const MemorySummary::Group& group = summary.groups[g];
      ASSERT_GE(group.used + group.shared, n_live * group.frame_bytes);
      ASSERT_LE(group.cached, group.used + group.shared - n_live * group.frame_bytes);
      in_tree += group.used + group.shared - n_live * group.frame_bytes;
    }
    if (in_tree > scenario_.options.prefix_bytes) {
      ASSERT_FALSE(cache_->evict_one()) << "more than may be, and not all in use";
    }
    ASSERT_EQ(summary.used, summary.filled + summary.wasted);
    ASSERT_EQ(summary.allocated, budget_.reserved(MemoryOwner::kKv));
    if (scenario_.budget != 0) {
      ASSERT_LE(budget_.reserved(), scenario_.budget);
    }
  }

  const Scenario scenario_;
  ByteBudget budget_;
  std::unique_ptr<KvCache> cache_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Twin>> open_;
  std::vector<Tokens> known_;                          ///< beginnings of prompts to come
  std::vector<std::pair<PageKey, Tokens>> published_;  ///< by root, whole pages; is_exact only
};

enum class Shape { kOneGroup, kWindowToo, kWindowsOnly };

CacheOptions options_of(Shape shape, int page_tokens) {
  CacheOptions options{.groups = {{.layers = {0, 2}, .n_kv_heads = 2, .head_dim = 5},
                                  {.layers = {1}, .n_kv_heads = 1, .head_dim = 8}},
                       .codec_k = CodecId::kBF16,
                       .codec_v = CodecId::kF16,
                       .page_tokens = page_tokens,
                       .prefix_bytes = std::uint64_t{1} << 30};
  if (shape == Shape::kOneGroup) {
    options.groups.pop_back();
    options.groups[0].layers = {0, 1};
  }
  if (shape != Shape::kOneGroup) options.groups[1].window = 21;
  if (shape == Shape::kWindowsOnly) options.groups[0].window = 40;
  return options;
}

std::uint64_t bytes_of_pages(const CacheOptions& options, std::uint64_t n) {
  ByteBudget budget;
  const auto cache = KvCache::create(options, budget).value();
  std::uint64_t bytes = 0;
  for (const auto& group : cache->memory_summary().groups) bytes += n * group.frame_bytes;
  return bytes;
}

Seen run_all(const std::vector<Scenario>& scenarios, unsigned n_seeds, int n_operations) {
  Seen seen;
  for (const Scenario& scenario : scenarios) {
    for (unsigned seed = 1; seed <= n_seeds; ++seed) {
      SCOPED_TRACE(scenario.name + " page_tokens " + std::to_string(scenario.options.page_tokens) +
                   " seed " + std::to_string(seed));
      Machine machine(scenario, seed);
      machine.run(n_operations);
      if (::testing::Test::HasFatalFailure()) return seen;
      seen.add(machine.seen);
    }
  }
  return seen;
}

TEST(SharedPrefixProperty, FindsExactlyWhatWasPublished) {
  std::vector<Scenario> scenarios;
  for (const int page_tokens : {16, 64}) {
    scenarios.push_back({.options = options_of(Shape::kOneGroup, page_tokens),
                         .longest = 10 * page_tokens,
                         .name = "exact"});
  }
  const Seen seen = run_all(scenarios, 3, 600);
  EXPECT_GT(seen.reused_pages, 1000);
  EXPECT_GT(seen.copied, 300);
  EXPECT_GT(seen.differences, 100);
}

TEST(SharedPrefixProperty, ContentsSurviveEvictionsAndWindows) {
  std::vector<Scenario> scenarios;
  for (const Shape shape : {Shape::kOneGroup, Shape::kWindowToo, Shape::kWindowsOnly}) {
    for (const int page_tokens : {16, 64}) {
      CacheOptions options = options_of(shape, page_tokens);
      const int longest = page_tokens == 16 ? 200 : 400;
      scenarios.push_back(
          {.options = options, .longest = longest, .keeps_nothing = true, .name = "evictions"});
      options.prefix_bytes = bytes_of_pages(options, 9);
      options.eviction = EvictionPolicy::kLru;
      scenarios.push_back({.options = options, .longest = longest, .name = "small tree"});
      scenarios.back().keeps_nothing = true;
    }
  }
  const Seen seen = run_all(scenarios, 2, 500);
  EXPECT_GT(seen.reused_pages, 1000);
  EXPECT_GT(seen.copied, 300);
  EXPECT_GT(seen.evicted, 100);
  EXPECT_GT(seen.refused_truncates, 50) << "the windows were never in the way";
  EXPECT_GT(seen.cut_by_window, 20);
}

/// Large frames (many heads), so that a budget of some arenas is soon full.
TEST(SharedPrefixProperty, TightBudgetsTakeUnusedPagesFirst) {
  std::vector<Scenario> scenarios;
  for (const Shape shape : {Shape::kOneGroup, Shape::kWindowToo}) {
    for (const int page_tokens : {16, 64}) {
      CacheOptions options = options_of(shape, page_tokens);
      for (GroupSpec& group : options.groups) {
        group.n_kv_heads = 40;
        group.head_dim = 16;
      }
      scenarios.push_back({.options = options,
                           .longest = 250,
                           .budget = std::uint64_t{8} << 20,
                           .keeps_nothing = false,
                           .name = "tight"});
      options.prefix_bytes = bytes_of_pages(options, 6);
      scenarios.push_back({.options = options,
                           .longest = 250,
                           .budget = std::uint64_t{7} << 20,
                           .keeps_nothing = false,
                           .name = "tight, small tree"});
    }
  }
  const Seen seen = run_all(scenarios, 2, 150);
  EXPECT_GT(seen.reused_pages, 100);
  EXPECT_GT(seen.copied, 30);
  EXPECT_GT(seen.exhausted, 30) << "the budget was never tight";
}

}  // namespace
}  // namespace kvasir::cache
