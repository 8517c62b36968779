// What stands behind the facade of cache.h; included by this room's own files only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cache.h"
#include "cache/page/geometry.h"
#include "cache/page/pool.h"
#include "cache/page/table.h"

namespace kvasir::cache {

class KvCache::Impl {
 public:
  /// Layers with one page table per sequence, and the frames of those tables.
  struct Group {
    Group(GroupSpec group_spec, const PageGeometry& group_geometry, ByteBudget& budget)
        : spec(std::move(group_spec)),
          geometry(group_geometry),
          pool(group_geometry.frame_bytes(), budget) {}
    GroupSpec spec;
    PageGeometry geometry;
    PagePool pool;
  };
  /// Where a layer of the model lives.
  struct LayerPlace {
    int group_idx = -1;
    int layer_in_group = 0;
  };

  Impl(CacheOptions cache_options, ByteBudget& byte_budget)
      : options(std::move(cache_options)), budget(byte_budget) {}

  const CacheOptions options;
  ByteBudget& budget;
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<LayerPlace> layers;  ///< by model layer number
  /// Open sequences, for the walks of check_invariants and memory_summary. Order is of no meaning.
  std::vector<Sequence::State*> open;
};

struct Sequence::State {
  explicit State(KvCache::Impl& cache_impl);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  KvCache::Impl& cache;
  std::size_t open_idx;  ///< of this state in cache.open
  int n_tokens = 0;
  std::vector<PageTable> tables;  ///< one per group
};

/// The first token that a query at position `n_tokens`, the next one, sees: 0 without a window.
inline int first_visible(int n_tokens, int window) {
  return window == 0 || n_tokens < window ? 0 : n_tokens - window + 1;
}

}  // namespace kvasir::cache
