// Small pages for tests of the prefix tree: every page carries its name as its only page id.
#pragma once

#include <vector>

#include "cache/prefix/tree.h"

namespace kvasir::cache {

using Tokens = std::vector<TokenId>;

/// A tree of pages of four tokens whose eviction tells names.
class NamedPages {
 public:
  /// What a test says about a page, over the values that are of no matter to it.
  struct Traits {
    double compute_seconds = 1;
    std::uint64_t bytes = 100;
    Retention retention = {};
  };

  explicit NamedPages(PrefixTree::Options options = {}) : tree(with_small_pages(options)) {}

  static PageKey root(const char* salt = "") {
    KeyScope scope;
    scope.salt = salt;
    return root_key(scope);
  }

  /// Four tokens that no page of another name begins with.
  static Tokens page_of(PageId name) {
    const auto first = static_cast<TokenId>(10 * name);
    return {first, first + 1, first + 2, first + 3};
  }

  NodeId add(PageId name, double now) { return add(name, now, Traits{}); }
  NodeId add(PageId name, double now, const Traits& traits) {
    return tree.insert(root(), page(page_of(name), name, traits), now).node;
  }
  NodeId add_after(NodeId parent, PageId name, double now) {
    return add_after(parent, name, now, Traits{});
  }
  NodeId add_after(NodeId parent, PageId name, double now, const Traits& traits) {
    return tree.insert(parent, page(page_of(name), name, traits), now).node;
  }

  /// Valid until the next call.
  SealedPage page(Tokens tokens, PageId name, const Traits& traits) {
    tokens_ = std::move(tokens);
    pages_ = {name};
    return {.tokens = tokens_,
            .pages = pages_,
            .bytes = traits.bytes,
            .compute_seconds = traits.compute_seconds,
            .retention = traits.retention};
  }

  void touch(NodeId node, double now) { tree.touch({&node, 1}, now); }

  /// Names of the next `n` pages to leave; fewer when nothing more may.
  std::vector<PageId> evict(std::size_t n, double now, EvictionPolicy policy) {
    std::vector<PageId> names;
    while (names.size() < n) {
      const auto evicted = tree.evict_one(now, policy);
      tree.check_invariants();
      if (!evicted) break;
      names.push_back(evicted->pages.at(0));
    }
    return names;
  }
  std::vector<PageId> evict_all(double now, EvictionPolicy policy) {
    return evict(1'000'000, now, policy);
  }

  PrefixTree tree;

 private:
  static PrefixTree::Options with_small_pages(PrefixTree::Options options) {
    options.page_tokens = 4;
    return options;
  }
  Tokens tokens_;
  std::vector<PageId> pages_;
};

}  // namespace kvasir::cache
