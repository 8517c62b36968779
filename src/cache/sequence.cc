// The verbs of a sequence. Each one checks or obtains everything it needs in all groups before it
// changes any of them, so a refused call leaves the sequence as it was.
#include <fmt/core.h>

#include <iterator>
#include <limits>
#include <utility>

#include "cache/cache.h"
#include "cache/codec/key_basis.h"
#include "cache/impl.h"

namespace kvasir::cache {

Sequence::State::State(KvCache::Impl& cache_impl)
    : cache(cache_impl), open_idx(cache_impl.open.size()) {
  cache.open.push_back(this);
}

Sequence::State::~State() {
  set_path({});
  cache.trim();
  cache.open[open_idx] = cache.open.back();
  cache.open[open_idx]->open_idx = open_idx;
  cache.open.pop_back();
}

Sequence::Sequence(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sequence::Sequence() = default;
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;

int Sequence::n_tokens() const {
  KVASIR_CHECK(is_open());
  return state_->n_tokens;
}

Status Sequence::append(int n) {
  KVASIR_CHECK(is_open() && n >= 0);
  State& state = *state_;
  auto& groups = state.cache.groups;
  const int longest = std::numeric_limits<int>::max() - state.cache.options.page_tokens;
  if (n > longest - state.n_tokens) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("cache: sequence too long; got {} + {} tokens, want at most {}",
                             state.n_tokens, n, longest)};
  }

  std::vector<std::vector<PageId>> fresh(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    int n_pages = 0;
    Status status;
    do {  // asked again each time: the page given up may be the filling one, then ours alone
      n_pages = state.tables[g].pages_needed(state.n_tokens, n);
      status = groups[g]->pool.allocate(n_pages, fresh[g]);
    } while (!status && status.error().code == ErrorCode::kExhausted && state.cache.evict_one());
    if (status) continue;
    for (std::size_t done = g; done > 0; --done) {
      auto& pages = fresh[done - 1];
      for (; !pages.empty(); pages.pop_back()) groups[done - 1]->pool.drop_owner(pages.back());
    }
    return Error{
        status.error().code,
        fmt::format("cache: cannot append {} tokens to {}: group {} needs {} pages of {} B; {}", n,
                    state.n_tokens, g, n_pages, groups[g]->pool.frame_bytes(),
                    status.error().message)};
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    // What a later group gave up may have spared this one its copy.
    const int n_pages = state.tables[g].pages_needed(state.n_tokens, n);
    for (; std::ssize(fresh[g]) > n_pages; fresh[g].pop_back()) {
      groups[g]->pool.drop_owner(fresh[g].back());
    }
    state.tables[g].grow(state.n_tokens, fresh[g]);
  }
  state.n_tokens += n;
  return {};
}

Result<Sequence> Sequence::fork() const {
  KVASIR_CHECK(is_open());
  auto copy = std::make_unique<State>(state_->cache);
  copy->n_tokens = state_->n_tokens;
  copy->tables.reserve(state_->tables.size());
  for (const PageTable& table : state_->tables) copy->tables.push_back(table.share());
  copy->set_path(state_->path);
  return Sequence(std::move(copy));
}

Status Sequence::truncate(int n_tokens) {
  KVASIR_CHECK(is_open());
  State& state = *state_;
  KVASIR_CHECK(0 <= n_tokens && n_tokens <= state.n_tokens);
  const int page_tokens = state.cache.options.page_tokens;
  for (std::size_t g = 0; g < state.tables.size(); ++g) {
    const KvCache::Impl::Group& group = *state.cache.groups[g];
    const int first = group.first_read(n_tokens);
    // Nothing of the history is visible and no slot of an old page will be written: no page is
    // used.
    if (first == n_tokens && n_tokens % page_tokens == 0) continue;
    if (first / page_tokens < state.tables[g].first_live()) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("cache: cannot go back to {} tokens: group {} (window {}) has freed "
                               "what they see; got tokens from {} on, want from {}",
                               n_tokens, g, group.spec.window,
                               state.tables[g].first_live() * page_tokens, first)};
    }
  }
  for (PageTable& table : state.tables) table.truncate(n_tokens);
  state.n_tokens = n_tokens;
  const std::size_t n_full = static_cast<std::size_t>(n_tokens / page_tokens);
  if (state.path.size() > n_full) {
    const std::vector<NodeId> path = state.path;
    state.set_path(std::span(path).first(n_full));
    state.cache.trim();
  }
  return {};
}

void Sequence::free_below_windows() {
  KVASIR_CHECK(is_open());
  State& state = *state_;
  for (std::size_t g = 0; g < state.tables.size(); ++g) {
    const KvCache::Impl::Group& group = *state.cache.groups[g];
    state.tables[g].free_below(group.first_read(state.n_tokens));
  }
}

std::vector<PagedKvView> Sequence::views() const {
  KVASIR_CHECK(is_open());
  const KvCache::Impl& cache = state_->cache;
  std::vector<PagedKvView> views;
  views.reserve(cache.layers.size());
  for (std::size_t layer = 0; layer < cache.layers.size(); ++layer) {
    const KvCache::Impl::LayerPlace& place = cache.layers[layer];
    const auto group_idx = static_cast<std::size_t>(place.group_idx);
    const KvCache::Impl::Group& group = *cache.groups[group_idx];
    PagedKvView view = view_of(group.geometry, place.layer_in_group);
    view.rows.frames = state_->tables[group_idx].frames();
    view.n_tokens = state_->n_tokens;
    if (place.tile_group_idx >= 0) {
      const auto tile_idx = static_cast<std::size_t>(place.tile_group_idx);
      const PageGeometry& tiles = cache.groups[tile_idx]->geometry;
      view.tiles = {state_->tables[tile_idx].frames(), tiles.k(place.layer_in_group),
                    tiles.v(place.layer_in_group)};
      view.n_sink_tiles = group.n_pinned > 0 ? cache.options.n_sink_tiles : 0;
      view.n_tail_tiles = group.n_tail_tiles;
      if (cache.options.key_bases != nullptr && is_tile_codec(view.tiles.k.codec)) {
        view.basis = cache.options.key_bases->of_layer(static_cast<int>(layer));
      }
    }
    views.push_back(view);
  }
  return views;
}

void Sequence::close() { state_.reset(); }

}  // namespace kvasir::cache
