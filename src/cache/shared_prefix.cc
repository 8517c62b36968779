// Pages that outlive their sequence: published to the prefix tree, found again by later prompts,
// given up when their bytes are wanted.
#include <algorithm>
#include <utility>

#include "cache/cache.h"
#include "cache/impl.h"
#include "cache/page/copy.h"

namespace kvasir::cache {

void KvCache::Impl::add_tree_owner(std::span<const PageId> pages) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (pages[g] == kNoPage) continue;
    groups[g]->pool.add_owner(pages[g]);
    std::vector<bool>& in_tree = groups[g]->in_tree;
    if (pages[g] >= in_tree.size()) in_tree.resize(pages[g] + std::size_t{1});
    in_tree[pages[g]] = true;
  }
}

void KvCache::Impl::drop_tree_owner(std::span<const PageId> pages) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (pages[g] == kNoPage) continue;
    groups[g]->in_tree[pages[g]] = false;
    groups[g]->pool.drop_owner(pages[g]);
  }
}

bool KvCache::Impl::evict_one() {
  if (tree == nullptr) return false;
  const std::optional<Evicted> evicted = tree->evict_one(now(), options.eviction);
  if (evicted) drop_tree_owner(evicted->pages);
  return evicted.has_value();
}

Status KvCache::Impl::allocate(std::size_t group_idx, int n, std::vector<PageId>& pages) {
  while (true) {
    Status status = groups[group_idx]->pool.allocate(n, pages);
    if (status || status.error().code != ErrorCode::kExhausted || !evict_one()) return status;
  }
}

void KvCache::Impl::trim() {
  if (tree == nullptr) return;
  while (tree->counts().bytes > options.prefix_bytes && evict_one()) {
  }
}

bool KvCache::evict_one() { return impl_->evict_one(); }

void KvCache::evict_all() {
  while (impl_->evict_one()) {
  }
}

void Sequence::State::set_path(std::span<const NodeId> nodes) {
  if (cache.tree == nullptr) return;
  const NodeId old = path.empty() ? NodeId{} : path.back();
  if (!nodes.empty()) cache.tree->lock(nodes.back());
  path.assign(nodes.begin(), nodes.end());
  if (!old.is_none()) cache.tree->unlock(old);
}

void Sequence::State::extend_path(NodeId node) {
  cache.tree->lock(node);
  if (!path.empty()) cache.tree->unlock(path.back());
  path.push_back(node);
}

std::size_t KvCache::Impl::usable_pages(const Match& match, int n_partial) const {
  for (std::size_t n_pages = match.nodes.size(); n_pages > 0; --n_pages) {
    const int n_slots = n_pages == match.nodes.size() ? n_partial : 0;
    const int n_tokens = static_cast<int>(n_pages) * options.page_tokens + n_slots;
    const auto has_all = [&](std::size_t g) {
      const int first = groups[g]->first_read(n_tokens) / options.page_tokens;
      for (std::size_t i = 0; i < n_pages; ++i) {
        const int page = static_cast<int>(i);
        if (page < first && page >= groups[g]->n_pinned) continue;
        if (tree->pages(match.nodes[i])[g] == kNoPage) return false;
      }
      return true;
    };
    bool is_usable = true;
    for (std::size_t g = 0; g < groups.size(); ++g) is_usable = is_usable && has_all(g);
    if (is_usable) return n_pages;
  }
  return 0;
}

namespace {

/// Fresh pages, one per group, with the first slots of the tree's page; empty when there is no room
/// or a group no longer has the page.
std::vector<PageId> copy_partial(KvCache::Impl& cache, NodeId node, int n_slots) {
  std::vector<PageId> copies;
  const std::span<const PageId> pages = cache.tree->pages(node);
  if (std::find(pages.begin(), pages.end(), kNoPage) != pages.end()) return copies;
  cache.tree->lock(node);  // room must not be made from what is to be copied
  for (std::size_t g = 0; g < cache.groups.size(); ++g) {
    KvCache::Impl::Group& group = *cache.groups[g];
    if (!cache.allocate(g, 1, copies)) break;
    copy_slots(group.geometry, n_slots, group.pool.frame(cache.tree->pages(node)[g]),
               group.pool.frame(copies.back()));
  }
  cache.tree->unlock(node);
  if (copies.size() == cache.groups.size()) return copies;
  for (std::size_t g = 0; g < copies.size(); ++g) cache.groups[g]->pool.drop_owner(copies[g]);
  return {};
}

/// Ends the match after `n_pages` whole pages: what followed is not to be had.
void cut(Match& match, std::size_t n_pages) {
  match.nodes.resize(n_pages);
  match.partial = {};
  match.n_partial = 0;
  if (match.end != MatchEnd::kCorrupt) match.end = MatchEnd::kEvicted;
  match.cached = match.wanted = -1;
}

}  // namespace

Match KvCache::Impl::find(const PageKey& root, std::span<const TokenId> tokens,
                          double seconds_per_token, Sequence::State& state) {
  Match match = tree->match(root, tokens);
  state.set_path(match.nodes);
  if (writer == nullptr || match.end == MatchEnd::kLastToken) return match;
  const std::size_t n_before = state.path.size();
  std::optional<MatchEnd> end = load_pages(root, tokens, seconds_per_token, state);
  match = tree->match(root, tokens);  // loading may have evicted what was found before
  const int n_partial = match.n_partial;
  const int n_whole = static_cast<int>(match.nodes.size()) * options.page_tokens;
  // The last token is never reused, nor looked for.
  const int n_wanted = std::min(static_cast<int>(tokens.size()) - 1 - n_whole, options.page_tokens);
  if (!end && n_wanted > n_partial) {
    const auto rest =
        tokens.subspan(static_cast<std::size_t>(n_whole), static_cast<std::size_t>(n_wanted));
    end = load_partial(root, rest, n_partial, static_cast<int>(tokens.size()), seconds_per_token,
                       state);
    match = tree->match(root, tokens);
  }
  match.n_loaded = static_cast<int>(match.nodes.size() - n_before) * options.page_tokens;
  if (match.n_partial > n_partial) match.n_loaded += match.n_partial;
  if (end && match.end != MatchEnd::kLastToken) {
    match.end = *end;
    match.cached = match.wanted = -1;
  }
  return match;
}

Sequence KvCache::open(const PageKey& root, std::span<const TokenId> tokens, Match& match,
                       double seconds_per_token) {
  Sequence sequence = open();
  match = {};
  Impl& cache = *impl_;
  if (cache.tree == nullptr) return sequence;
  Sequence::State& state = *sequence.state_;
  match = cache.find(root, tokens, seconds_per_token, state);
  // Pages that came from the disk were used by that: a second use now would tell a gap of nothing.
  const std::size_t n_here =
      match.nodes.size() - static_cast<std::size_t>(match.n_loaded / cache.options.page_tokens);
  std::size_t n_usable = cache.usable_pages(match, match.n_partial);
  if (n_usable < match.nodes.size()) cut(match, n_usable);  // a window has passed
  state.set_path(match.nodes);
  std::vector<PageId> copies;
  if (match.n_partial > 0) {
    copies = copy_partial(cache, match.partial, match.n_partial);
    if (copies.empty()) {  // earlier queries see more of a window
      n_usable = cache.usable_pages(match, 0);
      cut(match, n_usable);
      state.set_path(match.nodes);
    }
  }
  match.position = static_cast<int>(n_usable) * cache.options.page_tokens + match.n_partial;
  match.n_loaded = std::min(match.n_loaded, match.position);

  for (std::size_t g = 0; g < cache.groups.size(); ++g) {
    std::vector<PageId> pages;
    for (const NodeId node : match.nodes) pages.push_back(cache.tree->pages(node)[g]);
    if (!copies.empty()) pages.push_back(copies[g]);
    const int first = cache.groups[g]->first_read(match.position);
    const int n_pages = static_cast<int>(pages.size());
    state.tables[g].begin_with(pages, std::min(first / cache.options.page_tokens, n_pages));
    if (!copies.empty()) cache.groups[g]->pool.drop_owner(copies[g]);  // the table's now
  }
  state.n_tokens = match.position;
  const std::span<const NodeId> nodes = match.nodes;
  cache.tree->touch(nodes.first(std::min(n_here, nodes.size())), cache.now());
  return sequence;
}

void Sequence::publish(const PageKey& root, std::span<const TokenId> tokens,
                       double seconds_per_token) {
  KVASIR_CHECK(is_open());
  State& state = *state_;
  KvCache::Impl& cache = state.cache;
  if (cache.tree == nullptr) return;
  const auto page_tokens = static_cast<std::size_t>(cache.options.page_tokens);
  const std::size_t n_tokens = std::min(tokens.size(), static_cast<std::size_t>(state.n_tokens));
  while ((state.path.size() + 1) * page_tokens <= n_tokens) {
    const std::size_t page_idx = state.path.size();
    std::vector<PageId> pages;
    SealedPage page;
    for (std::size_t g = 0; g < cache.groups.size(); ++g) {
      pages.push_back(state.tables[g].page(static_cast<int>(page_idx)));
      if (pages.back() != kNoPage) page.bytes += cache.groups[g]->pool.frame_bytes();
    }
    if (page.bytes == 0) return;  // all groups have windows, and all have passed
    page.tokens = tokens.subspan(page_idx * page_tokens, page_tokens);
    page.pages = pages;
    page.compute_seconds = seconds_per_token * static_cast<double>(page_tokens);
    const PrefixTree::Insert insert =
        page_idx == 0 ? cache.tree->insert(root, page, cache.now())
                      : cache.tree->insert(state.path.back(), page, cache.now());
    if (insert.node.is_none()) return;  // the page before was found damaged meanwhile
    if (insert.is_new) {
      cache.add_tree_owner(pages);
      if (cache.writer != nullptr) {
        const PageKey parent = page_idx == 0 ? root : cache.tree->key(state.path.back());
        cache.write_behind(root, parent, insert.node, page_idx);
      }
    } else {
      const std::span<const PageId> theirs = cache.tree->pages(insert.node);
      for (std::size_t g = 0; g < pages.size(); ++g) {
        if (pages[g] == kNoPage || theirs[g] == kNoPage || pages[g] == theirs[g]) continue;
        state.tables[g].replace(static_cast<int>(page_idx), theirs[g]);
      }
    }
    state.extend_path(insert.node);
  }
  cache.trim();
}

}  // namespace kvasir::cache
