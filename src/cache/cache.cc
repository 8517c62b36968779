#include "cache/cache.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cache/codec/key_basis.h"
#include "cache/impl.h"

namespace kvasir::cache {

namespace {

Error invalid(std::string message) {
  return Error{ErrorCode::kInvalidArgument, "cache: " + std::move(message)};
}

/// Gives every layer number its place. Errors: a number twice, missing or out of order.
Status place_layers(const std::vector<GroupSpec>& groups,
                    std::vector<KvCache::Impl::LayerPlace>& layers) {
  std::size_t n_layers = 0;
  for (const GroupSpec& group : groups) n_layers += group.layers.size();
  layers.assign(n_layers, {});
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<int>& numbers = groups[g].layers;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] < 0 || static_cast<std::size_t>(numbers[i]) >= n_layers) {
        return invalid(fmt::format("layer numbers have a gap; got layer {} in group {}, want 0..{}",
                                   numbers[i], g, n_layers - 1));
      }
      if (i > 0 && numbers[i] <= numbers[i - 1]) {
        return invalid(fmt::format("layers of group {} are not ascending; got {} after {}", g,
                                   numbers[i], numbers[i - 1]));
      }
      auto& place = layers[static_cast<std::size_t>(numbers[i])];
      if (place.group_idx >= 0) {
        return invalid(fmt::format("layer {} in two groups; got {} and {}, want one", numbers[i],
                                   place.group_idx, g));
      }
      place = {.group_idx = static_cast<int>(g), .layer_in_group = static_cast<int>(i)};
    }
  }
  return {};
}

Status check_shape(const KeyBases::Shape& bases, const GroupSpec& group) {
  if (bases.n_kv_heads == group.n_kv_heads && bases.head_dim == group.head_dim &&
      bases.n_layers > group.layers.back()) {
    return {};
  }
  return invalid(
      fmt::format("K bases; got {} layers x {} kv heads x {} dims, want {} x {} for "
                  "layer {}",
                  bases.n_layers, bases.n_kv_heads, bases.head_dim, group.n_kv_heads,
                  group.head_dim, group.layers.back()));
}

}  // namespace

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvCache::~KvCache() {
  KVASIR_CHECK(impl_->open.empty());
  evict_all();
}

Result<std::unique_ptr<KvCache>> KvCache::create(const CacheOptions& options, ByteBudget& budget) {
  if (options.groups.empty()) return invalid("no cache group; got 0, want at least 1");
  auto impl = std::make_unique<Impl>(options, budget);
  KVASIR_RETURN_IF_ERROR(place_layers(options.groups, impl->layers));
  for (const GroupSpec& group : options.groups) {
    if (options.key_bases != nullptr) {
      KVASIR_RETURN_IF_ERROR(check_shape(options.key_bases->shape(), group));
    }
    if (group.window < 0) {
      return invalid(fmt::format("window; got {} tokens, want 0 (all) or more", group.window));
    }
    KVASIR_RETURN_IF_ERROR(impl->add_groups(group));
  }
  return std::unique_ptr<KvCache>(new KvCache(std::move(impl)));
}

Status KvCache::Impl::add_groups(const GroupSpec& spec) {
  PageGeometry::Options wanted{.shape = {.n_layers = static_cast<int>(spec.layers.size()),
                                         .n_kv_heads = spec.n_kv_heads,
                                         .head_dim = spec.head_dim},
                               .codec_k = options.codec_k,
                               .codec_v = options.codec_v,
                               .layer_codecs = {},
                               .page_tokens = options.page_tokens,
                               .head_order = options.head_order};
  std::vector<LayerCodecs> codecs, rows;
  bool has_tiles = false;
  for (const int layer : spec.layers) {
    codecs.push_back(options.layer_codecs.empty()
                         ? LayerCodecs{options.codec_k, options.codec_v}
                         : options.layer_codecs[static_cast<std::size_t>(layer)]);
    rows.push_back({row_codec_of(codecs.back().k), row_codec_of(codecs.back().v)});
    has_tiles = has_tiles || codecs.back() != rows.back();
  }
  wanted.layer_codecs = codecs;
  KVASIR_ASSIGN_OR_RETURN(const PageGeometry geometry, PageGeometry::create(wanted));
  if (!has_tiles) {
    for (const int layer : spec.layers) {
      layers[static_cast<std::size_t>(layer)].group_idx = static_cast<int>(groups.size());
    }
    groups.push_back(std::make_unique<Group>(spec, geometry, options.is_contiguous, budget));
    return {};
  }
  wanted.layer_codecs = rows;
  KVASIR_ASSIGN_OR_RETURN(const PageGeometry row_geometry, PageGeometry::create(wanted));
  groups.push_back(std::make_unique<Group>(spec, row_geometry, options.is_contiguous, budget));
  Group& tail = *groups.back();
  tail.has_tail = true;
  tail.n_tail_tiles = options.n_tail_tiles;
  // A window passes the first tokens by as others.
  if (spec.window == 0) {
    tail.n_pinned = pages_for(options.n_sink_tiles * kTileTokens, options.page_tokens);
  }
  groups.push_back(std::make_unique<Group>(spec, geometry, options.is_contiguous, budget));
  const auto n_groups = static_cast<int>(groups.size());
  for (const int layer : spec.layers) {
    LayerPlace& place = layers[static_cast<std::size_t>(layer)];
    place.group_idx = n_groups - 2;
    place.tile_group_idx = n_groups - 1;
  }
  return {};
}

Sequence KvCache::open() {
  auto state = std::make_unique<Sequence::State>(*impl_);
  state->tables.reserve(impl_->groups.size());
  for (auto& group : impl_->groups) {
    state->tables.emplace_back(group->pool, group->geometry, group->n_pinned);
  }
  return Sequence(std::move(state));
}

const CacheOptions& KvCache::options() const { return impl_->options; }

MemorySummary KvCache::memory_summary() const {
  MemorySummary summary;
  summary.n_sequences = impl_->open.size();
  for (std::size_t g = 0; g < impl_->groups.size(); ++g) {
    const Impl::Group& group = *impl_->groups[g];
    const int page_tokens = group.geometry.page_tokens();
    // Owners of one page may have come to different lengths in it: the longest counts.
    std::vector<int> n_filled(group.pool.page_id_limit(), 0);
    std::uint64_t n_cached = 0;
    for (std::size_t page = 0; page < group.in_tree.size(); ++page) {
      if (!group.in_tree[page]) continue;
      n_filled[page] = page_tokens;
      if (group.pool.n_owners(static_cast<PageId>(page)) == 1) ++n_cached;
    }
    for (const Sequence::State* state : impl_->open) {
      const PageTable& table = state->tables[g];
      for (int i = 0; i < table.n_pages(); ++i) {
        if (!table.is_live(i)) continue;
        int& filled = n_filled[table.page(i)];
        filled = std::max(filled, std::min(page_tokens, state->n_tokens - i * page_tokens));
      }
    }
    std::uint64_t n_slots = 0;
    for (const int filled : n_filled) n_slots += static_cast<std::uint64_t>(filled);

    MemorySummary::Group line;
    line.page_tokens = page_tokens;
    line.frame_bytes = group.pool.frame_bytes();
    line.n_pages_used = group.pool.n_used();
    line.n_pages_free = group.pool.n_free();
    line.allocated = group.pool.allocated_bytes();
    line.used = group.pool.used_bytes();
    line.cached = n_cached * line.frame_bytes;
    line.filled = n_slots * group.geometry.token_bytes();
    line.shared = group.pool.n_shared() * line.frame_bytes;
    line.wasted = line.used - line.filled;
    summary.allocated += line.allocated;
    summary.used += line.used;
    summary.cached += line.cached;
    summary.filled += line.filled;
    summary.shared += line.shared;
    summary.wasted += line.wasted;
    summary.groups.push_back(line);
  }
  summary.reserved_kv = impl_->budget.reserved(MemoryOwner::kKv);
  summary.reserved_weights = impl_->budget.reserved(MemoryOwner::kWeights);
  summary.reserved_scratch = impl_->budget.reserved(MemoryOwner::kScratch);
  summary.budget = impl_->budget.limit();
  return summary;
}

void KvCache::check_invariants() const {
  if (impl_->tree != nullptr) impl_->tree->check_invariants();
  for (std::size_t i = 0; i < impl_->open.size(); ++i) {
    const Sequence::State& state = *impl_->open[i];
    KVASIR_CHECK(state.open_idx == i);
    KVASIR_CHECK(state.tables.size() == impl_->groups.size());
  }
  for (std::size_t g = 0; g < impl_->groups.size(); ++g) {
    const Impl::Group& group = *impl_->groups[g];
    const int page_tokens = group.geometry.page_tokens();
    std::vector<std::uint32_t> owners(group.pool.page_id_limit(), 0);
    for (const Sequence::State* state : impl_->open) {
      const PageTable& table = state->tables[g];
      KVASIR_CHECK(table.n_pages() == pages_for(state->n_tokens, page_tokens));
      // I4; a query that sees none of the history needs no page of it.
      const int first = group.first_read(state->n_tokens);
      KVASIR_CHECK(first / page_tokens >= table.first_live() || first == state->n_tokens);
      for (int i = 0; i < table.n_pages(); ++i) {
        const bool live = table.is_live(i);
        KVASIR_CHECK(live == (table.page(i) != kNoPage));
        KVASIR_CHECK(table.frames()[i] == (live ? group.pool.frame(table.page(i)) : nullptr));
        if (live) ++owners[table.page(i)];
      }
    }
    for (std::size_t page = 0; page < group.in_tree.size(); ++page) {
      if (group.in_tree[page]) ++owners[page];
    }
    group.pool.check_invariants(owners);  // I1, I3
  }
}

}  // namespace kvasir::cache
