// Thousands of random operations on a prefix tree beside a twin that keeps nothing but whole token
// histories in a list: no tree, no hash, no order, everything found by looking at all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/prefix/tree.h"

namespace kvasir::cache {
namespace {

using Tokens = std::vector<TokenId>;
constexpr std::size_t kPage = 3;
constexpr std::uint64_t kPinBudget = 900;

/// A root's number and all tokens from the beginning to the end of a page.
using History = std::pair<int, Tokens>;

struct Entry {
  NodeId node;
  PageId page = 0;
  NodeStats stats;
  double ttl = 0;
  int n_locks = 0;
  bool is_pinned = false;
};

bool begins_with(const Tokens& tokens, const Tokens& start) {
  return tokens.size() >= start.size() && std::equal(start.begin(), start.end(), tokens.begin());
}

Tokens first(const Tokens& tokens, std::size_t n) {
  return {tokens.begin(), tokens.begin() + static_cast<int>(n)};
}

PageKey root_of(int number) {
  KeyScope scope;
  scope.salt = std::to_string(number);
  return root_key(scope);
}

class Machine {
 public:
  /// Seeds 1 to 3 keep to one policy, others take another one every time.
  explicit Machine(unsigned seed)
      : tree_({.page_tokens = static_cast<int>(kPage), .pin_budget_bytes = kPinBudget}),
        random_(seed),
        seed_(seed) {}

  void run(int n_steps) {
    for (int i = 0; i < n_steps && !testing::Test::HasFatalFailure(); ++i) {
      now_ += below(3);  // often the same second, so that ties occur
      step();
      tree_.check_invariants();
      expect_sums();
    }
    if (testing::Test::HasFatalFailure()) return;
    for (const NodeId node : locks_) tree_.unlock(node);
    clear();
    tree_.check_invariants();
    expect_sums();
  }

  /// What happened how often, so that a tame run fails.
  std::map<std::string, int> seen;

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }

  void step() {
    const int choice = below(100);
    if (choice < 30) return match_and_insert();
    if (choice < 55) return match_only();
    if (choice < 75) return evict(1 + below(4));
    if (choice < 83) return unlock();
    if (twin_.empty()) return;
    if (choice < 90) return lock();
    if (choice < 93) return pin();
    if (choice < 96) return unpin();
    if (choice < 98) return set_retention();
    if (choice < 99 || below(10) != 0) return erase();
    clear();
  }

  /// Two kinds of token, so that histories share much, and rarely a third.
  Tokens prompt() {
    Tokens tokens(static_cast<std::size_t>(below(16)));
    for (TokenId& token : tokens) token = below(12) == 0 ? 2 : below(4) == 0 ? 1 : 0;
    return tokens;
  }

  Match match(int root, const Tokens& prompt) {
    const Match found = tree_.match(root_of(root), prompt);
    expect_match(found, root, prompt);
    ++seen[std::string(match_end_name(found.end))];
    if (found.n_partial > 0) ++seen["partial"];
    return found;
  }

  void match_only() {
    const int root = below(2);
    const Tokens tokens = prompt();
    const Match found = match(root, tokens);
    tree_.touch(found.nodes, now_);
    n_hits_ += found.nodes.size();
    for (std::size_t i = 1; i <= found.nodes.size(); ++i) {
      Entry& entry = twin_.at({root, first(tokens, i * kPage)});
      note_gap(now_ - entry.stats.last_use_seconds);
      use(entry);
    }
  }

  void match_and_insert() {
    const int root = below(2);
    const Tokens tokens = prompt();
    const Match found = match(root, tokens);
    // Now and then as a sequence that did not look: pages that are there are computed again.
    std::size_t n = below(4) == 0 ? 0 : found.nodes.size();
    NodeId parent = n == 0 ? NodeId{} : found.nodes.back();
    for (; (n + 1) * kPage <= tokens.size(); ++n) {
      parent = insert(root, parent, first(tokens, (n + 1) * kPage));
    }
  }

  NodeId insert(int root, NodeId parent, const Tokens& history) {
    const std::vector<PageId> pages = {next_page_++};
    const SealedPage page{.tokens = std::span(history).last(kPage),
                          .pages = pages,
                          .bytes = static_cast<std::uint64_t>(100 + 50 * below(3)),
                          .compute_seconds = 1.0 + below(4),
                          .retention = retention()};
    const auto inserted = parent.is_none() ? tree_.insert(root_of(root), page, now_)
                                           : tree_.insert(parent, page, now_);
    const auto [place, is_new] = twin_.try_emplace({root, history});
    EXPECT_EQ(inserted.is_new, is_new);
    Entry& entry = place->second;
    if (is_new) {
      entry.node = inserted.node;
      entry.page = pages[0];
      entry.stats.bytes = page.bytes;
      entry.stats.compute_seconds = page.compute_seconds;
      retain(entry, page.retention);
      if (const auto old = evicted_.find({root, history}); old != evicted_.end()) {
        note_gap(now_ - old->second);
        evicted_.erase(old);
      }
    } else {
      ++seen["computed twice"];
      const bool is_endless = entry.ttl == 0 || page.retention.ttl_seconds == 0;
      retain(entry, {std::max(entry.stats.priority, page.retention.priority),
                     is_endless ? 0 : std::max(entry.ttl, page.retention.ttl_seconds)});
    }
    use(entry);
    EXPECT_EQ(inserted.node, entry.node);
    return inserted.node;
  }

  Retention retention() {
    return {.priority = below(3) == 0 ? 50 : 35,
            .ttl_seconds = below(5) == 0 ? 5.0 + below(50) : 0};
  }

  void retain(Entry& entry, const Retention& retention) const {
    entry.stats.priority = retention.priority;
    entry.ttl = retention.ttl_seconds;
  }

  void note_gap(double seconds) {
    ++n_gaps_;
    gap_seconds_ += (seconds - gap_seconds_) / n_gaps_;
  }

  void use(Entry& entry) const {
    entry.stats.last_use_seconds = now_;
    ++entry.stats.n_uses;
  }

  History any_history() {
    auto place = twin_.begin();
    std::advance(place, below(static_cast<int>(twin_.size())));
    return place->first;
  }

  void lock() {
    Entry& entry = twin_.at(any_history());
    ++entry.n_locks;
    tree_.lock(entry.node);
    locks_.push_back(entry.node);
  }

  void unlock() {
    if (locks_.empty()) return;
    std::swap(locks_[static_cast<std::size_t>(below(static_cast<int>(locks_.size())))],
              locks_.back());
    const NodeId node = locks_.back();
    locks_.pop_back();
    const auto entry = std::find_if(twin_.begin(), twin_.end(),
                                    [&](const auto& pair) { return pair.second.node == node; });
    EXPECT_EQ(tree_.is_in_tree(node), entry != twin_.end());
    if (entry == twin_.end()) ++seen["unlocked out of the tree"];
    if (entry != twin_.end()) --entry->second.n_locks;
    tree_.unlock(node);
  }

  void pin() {
    const History history = any_history();
    Entry& entry = twin_.at(history);
    const bool was_pinned = std::exchange(entry.is_pinned, true);
    const bool fits = pinned_bytes() <= kPinBudget;
    if (!fits) entry.is_pinned = was_pinned;
    ASSERT_EQ(tree_.pin(entry.node).has_value(), fits);
    ++seen[fits ? "pinned" : "pin refused"];
  }

  void unpin() {
    Entry& entry = twin_.at(any_history());
    entry.is_pinned = false;
    tree_.unpin(entry.node);
  }

  void set_retention() {
    Entry& entry = twin_.at(any_history());
    retain(entry, retention());
    ASSERT_TRUE(tree_.set_retention(entry.node, {entry.stats.priority, entry.ttl}));
  }

  void evict(int n) {
    for (int i = 0; i < n; ++i) {
      const EvictionPolicy policy = kAllPolicies[seed_ < 4 ? seed_ - 1 : random_() % 3];
      // Ranks are made anew by another policy, or when the stretch has moved by more than 1.25.
      const double stretch = policy == EvictionPolicy::kCost ? kStretch * gap_seconds_ : 0;
      const bool has_moved = stretch > 1.25 * stretch_ || stretch_ > 1.25 * stretch;
      if (policy != std::exchange(policy_, policy) || has_moved) stretch_ = stretch;
      const auto want = first_to_leave(policy);
      const auto evicted = tree_.evict_one(now_, policy);
      ASSERT_EQ(evicted.has_value(), want.has_value());
      if (!want) return;
      const Entry& entry = twin_.at(*want);
      const bool is_expired = expiry(entry) <= now_;
      ASSERT_EQ(evicted->pages, std::vector<PageId>{entry.page});
      ASSERT_EQ(evicted->is_expired, is_expired);
      ++seen[is_expired ? "expired" : "evicted in order"];
      evicted_[*want] = entry.stats.last_use_seconds;
      twin_.erase(*want);
    }
  }

  void erase() {
    const History top = any_history();
    std::set<PageId> want, got;
    const NodeId node = twin_.at(top).node;
    std::erase_if(twin_, [&](const auto& pair) {
      const auto& [number, tokens] = pair.first;
      const bool is_gone = number == top.first && begins_with(tokens, top.second);
      if (is_gone) want.insert(pair.second.page);
      return is_gone;
    });
    for (const Evicted& erased : tree_.erase_subtree(node)) got.insert(erased.pages[0]);
    ASSERT_EQ(got, want);
    ++seen["erased"];
  }

  void clear() {
    ASSERT_EQ(tree_.clear().size(), twin_.size());
    twin_.clear();
    evicted_.clear();
  }

  static double expiry(const Entry& entry) {
    return entry.ttl > 0 ? entry.stats.last_use_seconds + entry.ttl
                         : std::numeric_limits<double>::infinity();
  }

  /// A page lies `n_more` tokens or more after `start`.
  bool goes_on(const History& start, std::size_t n_more) const {
    return std::any_of(twin_.begin(), twin_.end(), [&](const auto& pair) {
      const auto& [number, tokens] = pair.first;
      return number == start.first && tokens.size() >= start.second.size() + n_more &&
             begins_with(tokens, start.second);
    });
  }

  std::optional<History> first_to_leave(EvictionPolicy policy) const {
    using Rank = std::vector<double>;
    std::optional<History> best;
    Rank best_rank;
    for (const auto& [history, entry] : twin_) {
      if (entry.n_locks > 0 || entry.is_pinned || goes_on(history, 1)) continue;
      const double last_use = entry.stats.last_use_seconds;
      const bool is_expired = expiry(entry) <= now_;
      Rank rank = {1, static_cast<double>(entry.stats.priority),
                   eviction_score(policy, entry.stats, stretch_), last_use};
      if (is_expired) rank = {0, expiry(entry), last_use};
      rank.push_back(entry.node.index);
      if (!best || rank < best_rank) {
        best = history;
        best_rank = rank;
      }
    }
    return best;
  }

  void expect_match(const Match& found, int root, const Tokens& prompt) {
    const std::size_t reusable = prompt.empty() ? 0 : prompt.size() - 1;
    std::size_t longest = 0;
    for (const auto& [history, entry] : twin_) {
      if (history.first != root) continue;
      std::size_t n = 0;
      while (n < reusable && n < history.second.size() && history.second[n] == prompt[n]) ++n;
      longest = std::max(longest, n);
    }
    const std::size_t n_whole = longest / kPage;
    ASSERT_EQ(found.position, static_cast<Position>(longest));
    ASSERT_EQ(found.nodes.size(), n_whole);
    ASSERT_EQ(found.n_partial, static_cast<int>(longest % kPage));
    for (std::size_t i = 0; i < n_whole; ++i) {
      ASSERT_EQ(found.nodes[i], twin_.at({root, first(prompt, (i + 1) * kPage)}).node);
    }
    ASSERT_EQ(found.partial.is_none(), longest % kPage == 0);
    if (!found.partial.is_none()) {
      const auto tokens = tree_.tokens(found.partial);
      Tokens start = first(prompt, n_whole * kPage);
      start.insert(start.end(), tokens.begin(), tokens.end());
      ASSERT_EQ(twin_.at({root, start}).node, found.partial);
      ASSERT_EQ(first(start, longest), first(prompt, longest));
    }
    const std::size_t next_end = (n_whole + 1) * kPage;
    MatchEnd end = goes_on({root, first(prompt, n_whole * kPage)}, 1) ? MatchEnd::kFirstDifference
                                                                      : MatchEnd::kEndOfCache;
    if (next_end <= prompt.size() && evicted_.contains({root, first(prompt, next_end)})) {
      end = MatchEnd::kEvicted;
    }
    if (longest == reusable) end = MatchEnd::kLastToken;
    ASSERT_EQ(match_end_name(found.end), match_end_name(end));
    if (end != MatchEnd::kFirstDifference) return;
    ASSERT_EQ(found.wanted, prompt[longest]);
    ASSERT_NE(found.cached, found.wanted);
    Tokens cached = first(prompt, longest);
    cached.push_back(found.cached);
    ASSERT_TRUE(goes_on({root, cached}, 0));
  }

  std::uint64_t pinned_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [history, entry] : twin_) {
      const bool is_kept =
          std::any_of(twin_.begin(), twin_.end(), [&, &h = history](const auto& p) {
            return p.second.is_pinned && p.first.first == h.first &&
                   begins_with(p.first.second, h.second);
          });
      if (is_kept) bytes += entry.stats.bytes;
    }
    return bytes;
  }

  void expect_sums() {
    const PrefixTree::Counts counts = tree_.counts();
    std::uint64_t bytes = 0;
    std::set<int> roots;
    for (const auto& [history, entry] : twin_) {
      bytes += entry.stats.bytes;
      roots.insert(history.first);
    }
    ASSERT_EQ(counts.n_nodes, twin_.size());
    ASSERT_EQ(counts.n_roots, roots.size());
    ASSERT_EQ(counts.bytes, bytes);
    ASSERT_EQ(counts.pinned_bytes, pinned_bytes());
    ASSERT_EQ(counts.n_evicted_keys, evicted_.size());
    ASSERT_EQ(counts.n_hits, n_hits_);
  }

  PrefixTree tree_;
  std::mt19937 random_;
  const unsigned seed_;
  double now_ = 100;
  double gap_seconds_ = 0, n_gaps_ = 0;  ///< the mean of all: the tree forgets none so soon
  double stretch_ = 0;
  EvictionPolicy policy_ = EvictionPolicy::kLru;
  PageId next_page_ = 1;
  std::uint64_t n_hits_ = 0;
  std::map<History, Entry> twin_;
  std::map<History, double> evicted_;  ///< when they were used last
  std::vector<NodeId> locks_;          ///< one entry a lock
};

TEST(PrefixProperty, RandomOperationsAgreeWithTheTwin) {
  std::map<std::string, int> seen;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Machine machine(seed);
    machine.run(2000);
    if (HasFatalFailure()) return;
    for (const auto& [what, n] : machine.seen) seen[what] += n;
  }
  for (const char* what : {"end_of_cache", "first_difference", "evicted", "last_token", "partial",
                           "computed twice", "unlocked out of the tree", "pinned", "pin refused",
                           "expired", "evicted in order", "erased"}) {
    EXPECT_GT(seen[what], 20) << what << ": the test is too tame";
  }
}

}  // namespace
}  // namespace kvasir::cache
