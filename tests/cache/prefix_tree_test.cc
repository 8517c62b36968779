// What the tree holds: where a match ends and why, sharing, erasing, stale names.
#include "cache/prefix/tree.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/prefix_pages.h"

namespace kvasir::cache {
namespace {

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<PageId> names_of(const PrefixTree& tree, const std::vector<NodeId>& nodes) {
  std::vector<PageId> names;
  for (const NodeId node : nodes) names.push_back(tree.pages(node)[0]);
  return names;
}

/// 1 -> 2 -> 3 and 1 -> 4; page 5 came after 4 and page 6 after nothing, both evicted since.
class Matches : public testing::Test {
 protected:
  Matches() {
    node_1 = pages.add(1, 10);
    node_2 = pages.add_after(node_1, 2, 10);
    pages.add_after(node_2, 3, 10);
    const NodeId node_4 = pages.add_after(node_1, 4, 10);
    pages.add_after(node_4, 5, 1);
    pages.add(6, 2);
    EXPECT_EQ(pages.evict(2, 10, EvictionPolicy::kLru), (std::vector<PageId>{5, 6}));
  }

  static Tokens page(PageId name) { return NamedPages::page_of(name); }
  Match match(const Tokens& tokens) const { return pages.tree.match(NamedPages::root(), tokens); }

  NamedPages pages;
  NodeId node_1, node_2;
};

TEST_F(Matches, EndWhereAndWhyTheTableSays) {
  struct Case {
    const char* what;
    Tokens prompt;
    std::vector<PageId> whole;
    PageId partial;  ///< 0: none
    Position position;
    MatchEnd end;
    TokenId cached = -1, wanted = -1;
  };
  const Case cases[] = {
      {"nothing asked", {}, {}, 0, 0, MatchEnd::kLastToken},
      {"one token is the last one", {10}, {}, 0, 0, MatchEnd::kLastToken},
      {"the end of the cache",
       page(1) + page(2) + page(3) + Tokens{7, 8},
       {1, 2, 3},
       0,
       12,
       MatchEnd::kEndOfCache},
      {"the last token cuts a page", page(1) + page(2), {1}, 2, 7, MatchEnd::kLastToken},
      {"the last token is all that is left",
       page(1) + page(2) + Tokens{30},
       {1, 2},
       0,
       8,
       MatchEnd::kLastToken},
      {"the last token differs", page(1) + Tokens{20, 21, 99}, {1}, 2, 6, MatchEnd::kLastToken},
      {"the prompt ends in a page", page(1) + Tokens{20, 21, 22}, {1}, 2, 6, MatchEnd::kLastToken},
      {"another token in a page",
       page(1) + Tokens{20, 21, 99, 23, 1},
       {1},
       2,
       6,
       MatchEnd::kFirstDifference,
       22,
       99},
      {"another token soon before the end",
       page(1) + Tokens{20, 99, 1},
       {1},
       2,
       5,
       MatchEnd::kFirstDifference,
       21,
       99},
      {"another first token above all",
       page(1) + Tokens{99, 21, 22, 23, 1},
       {1},
       0,
       4,
       MatchEnd::kFirstDifference,
       40,
       99},
      {"another first token below all",
       page(1) + Tokens{0, 21, 22, 23, 1},
       {1},
       0,
       4,
       MatchEnd::kFirstDifference,
       20,
       0},
      {"another first token between",
       page(1) + Tokens{30, 31, 32, 33, 1},
       {1},
       0,
       4,
       MatchEnd::kFirstDifference,
       20,
       30},
      {"the very first token", {99, 11, 12, 13, 1}, {}, 0, 0, MatchEnd::kFirstDifference, 10, 99},
      {"an evicted page",
       page(1) + page(4) + page(5) + Tokens{1},
       {1, 4},
       0,
       8,
       MatchEnd::kEvicted},
      {"an evicted page that ends the prompt",
       page(1) + page(4) + page(5),
       {1, 4},
       0,
       8,
       MatchEnd::kEvicted},
      {"an evicted page cut by the end is no page",
       page(1) + page(4) + Tokens{50, 51, 52},
       {1, 4},
       0,
       8,
       MatchEnd::kEndOfCache},
      {"an evicted first page, siblings or not", page(6) + Tokens{1}, {}, 0, 0, MatchEnd::kEvicted},
      {"the page after an evicted one",
       page(1) + page(4) + page(7),
       {1, 4},
       0,
       8,
       MatchEnd::kEndOfCache},
  };
  for (const Case& c : cases) {
    const Match found = match(c.prompt);
    EXPECT_EQ(names_of(pages.tree, found.nodes), c.whole) << c.what;
    EXPECT_EQ(found.partial.is_none(), c.partial == 0) << c.what;
    if (!found.partial.is_none()) {
      EXPECT_EQ(pages.tree.pages(found.partial)[0], c.partial) << c.what;
    }
    EXPECT_EQ(found.position, c.position) << c.what;
    EXPECT_EQ(found.n_partial, c.position - 4 * static_cast<int>(c.whole.size())) << c.what;
    EXPECT_EQ(match_end_name(found.end), match_end_name(c.end)) << c.what;
    EXPECT_EQ(found.cached, c.cached) << c.what;
    EXPECT_EQ(found.wanted, c.wanted) << c.what;
  }
}

TEST_F(Matches, PartialPagesOfEveryLength) {
  const Tokens cached = page(1) + page(2);
  for (int n = 0; n < 8; ++n) {
    Tokens prompt(cached.begin(), cached.begin() + n);
    prompt = prompt + Tokens{77, 78, 79, 80, 81};
    const Match found = match(prompt);
    EXPECT_EQ(found.position, n);
    EXPECT_EQ(found.nodes.size(), static_cast<std::size_t>(n / 4));
    EXPECT_EQ(found.n_partial, n % 4);
    EXPECT_EQ(found.partial, n % 4 == 0 ? NodeId{} : n < 4 ? node_1 : node_2) << n;
    EXPECT_EQ(found.end, MatchEnd::kFirstDifference);
    EXPECT_EQ(found.wanted, 77);
  }
  for (std::size_t n = 1; n <= cached.size(); ++n) {
    const Match found = match(Tokens(cached.begin(), cached.begin() + static_cast<int>(n)));
    EXPECT_EQ(found.position, static_cast<Position>(n - 1)) << "one token is left to compute";
    EXPECT_EQ(found.end, MatchEnd::kLastToken);
  }
}

TEST_F(Matches, ThePartialPageIsTheOneThatAgreesLongest) {
  const Tokens siblings[] = {{20, 21, 30, 1}, {20, 21, 50, 1}, {20, 30, 0, 0}, {20, 21, 50, 9}};
  PageId name = 100;
  for (const Tokens& tokens : siblings) {
    pages.tree.insert(node_1, pages.page(tokens, name++, {}), 10);
  }
  pages.tree.check_invariants();
  const auto partial = [&](const Tokens& tail) {
    const Match found = match(page(1) + tail + Tokens{5, 5, 5, 5});
    return std::pair{pages.tree.pages(found.partial)[0], found.n_partial};
  };
  EXPECT_EQ(partial({20, 21, 50, 4}), (std::pair{101u, 3})) << "before it, where two agree as far";
  EXPECT_EQ(partial({20, 21, 50, 0}), (std::pair{101u, 3}));
  EXPECT_EQ(partial({20, 21, 50, 10}), (std::pair{103u, 3}));
  EXPECT_EQ(partial({20, 21, 22, 0}), (std::pair{2u, 3}));
  EXPECT_EQ(partial({20, 21, 0, 0}), (std::pair{2u, 2}));
  EXPECT_EQ(partial({20, 30, 1, 0}), (std::pair{102u, 2}));
  EXPECT_EQ(partial({20, 0, 0, 0}).second, 1);
}

TEST_F(Matches, AnotherRootSharesNothing) {
  const Match found = pages.tree.match(NamedPages::root("other"), page(1) + page(2));
  EXPECT_TRUE(found.nodes.empty());
  EXPECT_EQ(found.end, MatchEnd::kEndOfCache);
  EXPECT_EQ(found.position, 0);
  EXPECT_NE(match(page(1) + page(2)).position, 0);
}

TEST(MatchEnd, HasTheNamesThatUsersSee) {
  const std::pair<MatchEnd, const char*> names[] = {
      {MatchEnd::kEndOfCache, "end_of_cache"},
      {MatchEnd::kFirstDifference, "first_difference"},
      {MatchEnd::kEvicted, "evicted"},
      {MatchEnd::kOtherModel, "other_model"},
      {MatchEnd::kOtherCodec, "other_codec"},
      {MatchEnd::kNamespace, "namespace"},
      {MatchEnd::kLastToken, "last_token"},
      {MatchEnd::kLoadSlowerThanRecompute, "load_slower_than_recompute"},
      {MatchEnd::kCorrupt, "corrupt"},
      {MatchEnd::kTierDown, "tier_down"}};
  for (const auto& [end, name] : names) EXPECT_EQ(match_end_name(end), name);
}

TEST(PrefixTree, TwoSequencesThatComputedOnePageShareTheFirst) {
  NamedPages pages;
  PrefixTree& tree = pages.tree;
  const NodeId first = pages.add(1, 10);
  const auto again = tree.insert(NamedPages::root(), pages.page({10, 11, 12, 13}, 77, {}), 20);
  EXPECT_FALSE(again.is_new);
  EXPECT_EQ(again.node, first);
  EXPECT_EQ(tree.pages(first)[0], 1u) << "the payload stays";
  EXPECT_EQ(tree.stats(first).n_uses, 2u);
  EXPECT_EQ(tree.stats(first).last_use_seconds, 20);
  const auto after = tree.insert(first, pages.page({1, 2, 3, 4}, 2, {}), 30);
  EXPECT_TRUE(after.is_new);
  EXPECT_EQ(tree.insert(first, pages.page({1, 2, 3, 4}, 78, {}), 30).node, after.node);
  EXPECT_EQ(tree.counts().n_nodes, 2u);
  EXPECT_EQ(tree.counts().bytes, 200u);
  // The same tokens elsewhere are another page.
  EXPECT_TRUE(tree.insert(after.node, pages.page({1, 2, 3, 4}, 3, {}), 30).is_new);
  EXPECT_TRUE(tree.insert(NamedPages::root("b"), pages.page({10, 11, 12, 13}, 4, {}), 30).is_new);
  EXPECT_EQ(tree.counts().n_roots, 2u);
  tree.check_invariants();
}

TEST(PrefixTree, EvictedIsForgottenInBoundedMemory) {
  NamedPages pages({.n_evicted_keys = 2});
  for (PageId name = 1; name <= 3; ++name) pages.add(name, name);
  EXPECT_EQ(pages.evict_all(9, EvictionPolicy::kLru), (std::vector<PageId>{1, 2, 3}));
  EXPECT_EQ(pages.tree.counts().n_evicted_keys, 2u);
  const auto end = [&](PageId name) {
    return pages.tree.match(NamedPages::root(), NamedPages::page_of(name)).end;
  };
  EXPECT_EQ(end(1), MatchEnd::kEndOfCache) << "the oldest is forgotten";
  EXPECT_EQ(end(2), MatchEnd::kEvicted);
  EXPECT_EQ(end(3), MatchEnd::kEvicted);
  // A page that came back is not evicted any more, even when it then goes for another reason.
  const NodeId back = pages.add(2, 10);
  EXPECT_EQ(pages.tree.counts().n_evicted_keys, 1u);
  EXPECT_EQ(pages.tree.erase_subtree(back).size(), 1u);
  EXPECT_EQ(end(2), MatchEnd::kEndOfCache);
  // Its old place in the queue takes nothing along that was remembered later.
  pages.add(2, 11);
  EXPECT_EQ(pages.evict_all(12, EvictionPolicy::kLru), std::vector<PageId>{2});
  EXPECT_EQ(end(2), MatchEnd::kEvicted);
  EXPECT_EQ(end(3), MatchEnd::kEvicted);
  pages.tree.check_invariants();
}

TEST(PrefixTree, NothingIsRememberedWhereTheLimitIsZero) {
  NamedPages pages({.n_evicted_keys = 0});
  pages.add(1, 1);
  EXPECT_EQ(pages.evict_all(2, EvictionPolicy::kLru), std::vector<PageId>{1});
  EXPECT_EQ(pages.tree.counts().n_evicted_keys, 0u);
  EXPECT_EQ(pages.tree.match(NamedPages::root(), NamedPages::page_of(1)).end,
            MatchEnd::kEndOfCache);
}

TEST(PrefixTree, WhatLeavesComesWithAllThatALowerTierStores) {
  NamedPages pages;
  const NodeId first = pages.add(1, 10);
  pages.add_after(first, 2, 20, {.compute_seconds = 3, .bytes = 500, .retention = {.priority = 7}});
  const auto evicted = pages.tree.evict_one(30, EvictionPolicy::kLru);
  ASSERT_TRUE(evicted);
  const PageKey previous = next_key(NamedPages::root(), NamedPages::page_of(1));
  EXPECT_EQ(evicted->previous, previous);
  EXPECT_EQ(evicted->key, next_key(previous, NamedPages::page_of(2)));
  EXPECT_EQ(evicted->tokens, NamedPages::page_of(2));
  EXPECT_EQ(evicted->pages, std::vector<PageId>{2});
  EXPECT_EQ(evicted->stats.bytes, 500u);
  EXPECT_EQ(evicted->stats.compute_seconds, 3);
  EXPECT_EQ(evicted->stats.priority, 7);
  EXPECT_FALSE(evicted->is_expired);
  EXPECT_EQ(pages.tree.counts().bytes, 100u);
}

TEST(PrefixTree, EraseTakesAPageAndAllAfterItLastOnesFirst) {
  NamedPages pages({.pin_budget_bytes = 1000});
  PrefixTree& tree = pages.tree;
  const NodeId node_1 = pages.add(1, 10);
  const NodeId node_2 = pages.add_after(node_1, 2, 10);
  const NodeId node_3 = pages.add_after(node_2, 3, 10);
  pages.add_after(node_2, 4, 10);
  pages.add_after(node_1, 5, 10);
  ASSERT_TRUE(tree.pin(node_3));
  tree.lock(node_2);
  std::vector<PageId> names;
  for (const Evicted& erased : tree.erase_subtree(node_2)) names.push_back(erased.pages[0]);
  EXPECT_EQ(names, (std::vector<PageId>{4, 3, 2}));
  tree.check_invariants();
  EXPECT_EQ(tree.counts().pinned_bytes, 0u);
  EXPECT_EQ(tree.counts().n_nodes, 2u);
  EXPECT_EQ(tree.match(NamedPages::root(), NamedPages::page_of(1) + NamedPages::page_of(2)).end,
            MatchEnd::kFirstDifference)
      << "erased, not evicted";

  // Whoever had locked the page still knows its name: nothing goes on after it.
  EXPECT_FALSE(tree.is_in_tree(node_2));
  EXPECT_TRUE(tree.insert(node_2, pages.page({1, 2, 3, 4}, 6, {}), 20).node.is_none());
  EXPECT_EQ(tree.pin(node_2).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(tree.set_retention(node_2, {}).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(tree.erase_subtree(node_2).empty());
  tree.touch({&node_2, 1}, 20);
  EXPECT_EQ(tree.counts().n_hits, 0u);
  tree.lock(node_2);
  tree.unlock(node_2);
  EXPECT_FALSE(tree.is_in_tree(node_2)) << "one lock is left";
  tree.unlock(node_2);
  tree.check_invariants();
}

TEST(PrefixTree, ClearGivesEveryPageBack) {
  NamedPages pages({.pin_budget_bytes = 1000});
  PrefixTree& tree = pages.tree;
  const NodeId node_1 = pages.add(1, 10);
  const NodeId node_2 = pages.add_after(node_1, 2, 10);
  pages.add(3, 10);
  tree.insert(NamedPages::root("b"), pages.page({1, 2, 3, 4}, 4, {}), 10);
  pages.add(5, 1);
  EXPECT_EQ(pages.evict(1, 10, EvictionPolicy::kLru), std::vector<PageId>{5});
  ASSERT_TRUE(tree.pin(node_1));
  tree.lock(node_2);
  std::vector<PageId> names;
  for (const Evicted& erased : tree.clear()) names.push_back(erased.pages[0]);
  EXPECT_EQ(names, (std::vector<PageId>{3, 2, 1, 4}));
  const PrefixTree::Counts counts = tree.counts();
  EXPECT_EQ(counts.n_nodes + counts.n_roots + counts.bytes + counts.pinned_bytes, 0u);
  EXPECT_EQ(counts.n_evicted_keys, 0u);
  EXPECT_EQ(tree.match(NamedPages::root(), NamedPages::page_of(5)).end, MatchEnd::kEndOfCache);
  tree.check_invariants();
  tree.unlock(node_2);
  EXPECT_TRUE(tree.insert(NamedPages::root(), pages.page({1, 2, 3, 4}, 6, {}), 20).is_new);
  tree.check_invariants();
}

TEST(PrefixTreeDeathTest, StaleNamesAreCaught) {
  NamedPages pages;
  const NodeId gone = pages.add(1, 10);
  EXPECT_EQ(pages.evict_all(20, EvictionPolicy::kLru), std::vector<PageId>{1});
  EXPECT_DEATH(pages.tree.lock(gone), "generation");
  pages.add(2, 30);  // takes the slots again
  EXPECT_DEATH(pages.tree.lock(gone), "generation");
  EXPECT_DEATH(pages.tree.key(NodeId{}), "nodes_.size");
  const NodeId free = pages.add(3, 30);
  EXPECT_DEATH(pages.tree.unlock(free), "n_locks > 0");
}

TEST(PrefixTreeDeathTest, PagesOfAnotherSizeAreCaught) {
  NamedPages pages;
  EXPECT_DEATH(pages.tree.insert(NamedPages::root(), pages.page({1, 2, 3}, 1, {}), 1),
               "page_tokens");
}

}  // namespace
}  // namespace kvasir::cache
