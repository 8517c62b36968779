// What stands behind the facade of cache.h; included by this room's own files only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cache.h"
#include "cache/page/geometry.h"
#include "cache/page/pool.h"
#include "cache/page/table.h"
#include "cache/prefix/tree.h"
#include "cache/tier/disk_tier.h"
#include "cache/tier/write_behind.h"

namespace kvasir::cache {

class KvCache::Impl {
 public:
  /// Layers with one page table per sequence, and the frames of those tables.
  /// Layers with tile codecs have two: one of their rows, and one of their tiles.
  struct Group {
    Group(GroupSpec group_spec, const PageGeometry& group_geometry, bool is_contiguous,
          ByteBudget& budget)
        : spec(std::move(group_spec)),
          geometry(group_geometry),
          pool(group_geometry.frame_bytes(), budget,
               is_contiguous ? 1 : PagePool::arena_frames(group_geometry.frame_bytes())) {}
    /// The first token that a query at position `n_tokens` reads, but for pinned pages.
    int first_read(int n_tokens) const {
      if (has_tail) return std::max(0, (n_tokens / kTileTokens - n_tail_tiles) * kTileTokens);
      return spec.window == 0 || n_tokens < spec.window ? 0 : n_tokens - spec.window + 1;
    }
    GroupSpec spec;
    bool has_tail = false;  ///< rows, of which only those beside tiles are read
    int n_tail_tiles = 0;
    int n_pinned = 0;  ///< pages that are always read
    PageGeometry geometry;
    PagePool pool;
    std::vector<bool> in_tree;  ///< by page id: the prefix tree is one of its owners
  };
  /// Where a layer of the model lives.
  struct LayerPlace {
    int group_idx = -1;
    int layer_in_group = 0;
    int tile_group_idx = -1;  ///< of its tiles; -1: it has none
  };

  Impl(CacheOptions cache_options, ByteBudget& byte_budget)
      : options(std::move(cache_options)),
        budget(byte_budget),
        clock(options.clock != nullptr ? *options.clock : steady_clock) {
    if (options.prefix_bytes == 0) return;
    PrefixTree::Options tree_options;
    tree_options.page_tokens = options.page_tokens;
    tree = std::make_unique<PrefixTree>(tree_options);
    if (options.disk == nullptr) return;
    writer = std::make_unique<WriteBehind>(
        [disk = options.disk](const PageRecord& record) { return put_after_parent(*disk, record); },
        WriteBehindOptions(), steady_clock);
  }

  /// The group, or groups, of `spec`. Errors: those of PageGeometry::create.
  Status add_groups(const GroupSpec& spec);
  /// `n` pages of a group, for which unused pages of the prefix tree are given up if need be.
  /// Errors: kExhausted; nothing is allocated.
  Status allocate(std::size_t group_idx, int n, std::vector<PageId>& pages);
  bool evict_one();
  /// Gives up unused pages beyond what the prefix tree may take.
  void trim();
  double now() const { return clock.now_seconds(); }
  void add_tree_owner(std::span<const PageId> pages);
  void drop_tree_owner(std::span<const PageId> pages);
  /// The most whole pages of `match` after which every group has what a query sees.
  std::size_t usable_pages(const Match& match, int n_partial) const;

  /// What the tree and the disk have of `tokens`; locks it by `state`'s path.
  Match find(const PageKey& root, std::span<const TokenId> tokens, double seconds_per_token,
             Sequence::State& state);

  // The disk tier below the tree (disk_prefix.cc).
  /// Errors: kExhausted, the page before it had no room, so that nobody would find this one; and
  /// those of DiskTier::put.
  static Status put_after_parent(DiskTier& disk, const PageRecord& record);
  /// Hands a sealed page to the writer.
  void write_behind(const PageKey& root, const PageKey& parent, NodeId node, std::size_t page_idx);
  /// Brings the pages that follow `state.path` into the tree, and extends the path by them. Returns
  /// why it stopped, when it was the disk's fault.
  std::optional<MatchEnd> load_pages(const PageKey& root, std::span<const TokenId> tokens,
                                     double seconds_per_token, Sequence::State& state);
  /// Brings into the tree the page after `state.path` that shares the most of its first tokens with
  /// `rest`, if more than `n_equal`, so many that computing them takes longer than reading it.
  /// `n_prompt` is what all of the prompt has. Returns why not, when there is such a page.
  std::optional<MatchEnd> load_partial(const PageKey& root, std::span<const TokenId> rest,
                                       int n_equal, int n_prompt, double seconds_per_token,
                                       const Sequence::State& state);
  /// One page on its way from the disk.
  struct PageLoad {
    PageKey key;
    std::span<const TokenId> tokens;
    std::vector<PageId> pages;          ///< one per group; kNoPage: the file lacks it
    std::vector<std::uint8_t> payload;  ///< of several groups; one is read into its frame
    GetOutcome outcome = GetOutcome::kMiss;
    bool is_damaged = false;  ///< so says its header
  };
  /// Those of the pages after `state.path` that the disk seems to have, without a gap.
  std::vector<PageKey> keys_on_disk(const PageKey& root, std::span<const TokenId> tokens,
                                    const Sequence::State& state);
  /// kTierDown or nothing.
  std::optional<MatchEnd> disk_end() const;
  bool prepare(PageLoad& load, std::span<const TokenId> tokens);
  GetRequest request_of(PageLoad& load);
  void read(std::span<PageLoad> loads, double deadline_seconds);
  NodeId adopt(PageLoad& load, const PageKey& root, double compute_seconds,
               const Sequence::State& state);
  void drop(PageLoad& load);

  const CacheOptions options;
  ByteBudget& budget;
  SteadyClock steady_clock;
  const Clock& clock;
  std::unique_ptr<PrefixTree> tree;     ///< null: nothing is kept
  std::unique_ptr<WriteBehind> writer;  ///< null: no disk
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
  /// The nodes of the first pages in the prefix tree; the last one is locked.
  std::vector<NodeId> path;

  void set_path(std::span<const NodeId> nodes);
  void extend_path(NodeId node);
};

}  // namespace kvasir::cache
