// The KV cache: sequences of tokens over shared pages, inside a hard byte budget.
//
// Pages of ended sequences stay for later prompts that begin with the same tokens, in a prefix tree
// (prefix/tree.h), until their bytes are wanted.
//
// Invariants (check_invariants walks them; tests cite the numbers)
// I1 Every frame is free or owned by at least one page table or the prefix tree; reference counts
//    equal the entries that name the page.
// I2 A page that more than one sequence names is never written: append copies a shared filling page
//    first (copy-on-write).
// I3 Bytes reserved in the budget = bytes of arenas; used = frames named by a table or the tree.
// I4 A table of a full-attention group covers all its tokens; a window group's covers at least the
//    last `window` of them.
// Thread safety: one engine thread; views may be read by kernel threads while a step runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/types.h"
#include "cache/page/byte_budget.h"
#include "cache/page/geometry.h"
#include "cache/page/paged_kv_view.h"
#include "cache/policy/eviction.h"
#include "cache/prefix/match.h"
#include "cache/prefix/page_key.h"

namespace kvasir::cache {

class DiskTier;
class LoadBehind;

/// Layers that share their page tables: same shape, same window.
struct GroupSpec {
  std::vector<int> layers;  ///< the model's layer numbers, ascending
  int n_kv_heads = 0;
  int head_dim = 0;
  int window = 0;  ///< tokens a query sees, itself included; 0: all
};

struct CacheOptions {
  std::vector<GroupSpec> groups;  ///< every layer of the model in exactly one group
  CodecId codec_k = CodecId::kF16;
  CodecId codec_v = CodecId::kF16;
  std::vector<LayerCodecs> layer_codecs = {};  ///< by layer number; empty: these two for all
  /// Of layers with a tile codec, the tiles of 64 tokens that a query reads as int8 rows: the first
  /// ones of its history, and the last ones before its own.
  int n_sink_tiles = 1, n_tail_tiles = 1;
  /// The calibrated bases of K, of layers where it has a tile codec; null: none.
  std::shared_ptr<const KeyBases> key_bases = nullptr;
  int page_tokens = 32;
  HeadOrder head_order = HeadOrder::kSplit;
  /// A page holds a whole sequence: frames are then obtained one at a time, not an arena of them.
  bool is_contiguous = false;
  /// The most that pages of the prefix tree may take, those that open sequences use as well
  /// included: beyond it only pages stay that are in use. 0: nothing is kept. Beside it the budget
  /// holds: what it lacks, unused pages give.
  std::uint64_t prefix_bytes = 0;
  EvictionPolicy eviction = EvictionPolicy::kCost;
  /// Below the prefix tree, which must not be off: published pages are written to it behind the
  /// caller's back, and `open` brings back what the tree lacks. Must outlive the cache.
  DiskTier* disk = nullptr;
  const Clock* clock = nullptr;  ///< must outlive the cache; null: the system's
};

/// Bytes, exact. For every group and in sum:
///   allocated >= used; used = filled + wasted; shared counts each page's bytes beyond its first
///   owner
struct MemorySummary {
  struct Group {
    int page_tokens = 0;
    std::uint64_t frame_bytes = 0;
    std::uint64_t n_pages_used = 0, n_pages_free = 0;
    std::uint64_t allocated = 0;  ///< arenas obtained from the system
    std::uint64_t used = 0;       ///< frames some sequence or the prefix tree names
    std::uint64_t cached = 0;     ///< of those, frames that only the prefix tree names
    std::uint64_t filled = 0;     ///< of those, bytes of slots that hold a token
    std::uint64_t shared = 0;  ///< bytes saved by sharing: sum over pages of (owners - 1) * frame
    std::uint64_t wasted = 0;  ///< used - filled: empty slots of filling pages, and padding
  };
  std::vector<Group> groups;
  std::uint64_t n_sequences = 0;
  std::uint64_t allocated = 0, used = 0, cached = 0, filled = 0, shared = 0, wasted = 0;
  std::uint64_t reserved_kv = 0, reserved_weights = 0, reserved_scratch = 0, budget = 0;
  /// A table for people, one line per owner and group.
  std::string to_string() const;
};

class KvCache;

/// One growing token history. Move-only; closes (gives its pages back) on destruction. Must not
/// outlive its cache.
class Sequence {
 public:
  Sequence();  ///< not open
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  bool is_open() const { return state_ != nullptr; }
  int n_tokens() const;

  /// Makes `n` more slots writable: takes pages and copies a shared filling page. All or nothing.
  /// Errors: kExhausted with the numbers (the sequence is unchanged).
  Status append(int n);

  /// Another sequence with the same history, sharing every page.
  Result<Sequence> fork() const;

  /// Forgets the tokens from `n_tokens` on. Requires: 0 <= n_tokens <= n_tokens().
  /// Errors: kUnsupported when a window group has already freed pages that a query at `n_tokens`
  /// would see; the sequence is unchanged, and the caller recomputes from 0.
  Status truncate(int n_tokens);

  /// Keeps the full pages for later prompts: `tokens` are the sequence's, from the first on, under
  /// the scope that `root` names, always the same one. A page that an other sequence has published
  /// meanwhile takes the place of ours: they are equal. `seconds_per_token` is what computing took.
  /// Call when the pages' bytes are complete. Cost: one SHA-256 per new page.
  void publish(const PageKey& root, std::span<const TokenId> tokens, double seconds_per_token);

  /// Frees the pages of window groups that no later query can see. Call before a step, and after
  /// publish: what is published then has all its groups.
  void free_below_windows();

  /// One view per model layer, by layer number. Valid until the next non-const call.
  std::vector<PagedKvView> views() const;

  void close();

 private:
  friend class KvCache;
  friend class LoadBehind;
  struct State;
  explicit Sequence(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class KvCache {
 public:
  /// `budget` must outlive the cache. Errors: kInvalidArgument.
  static Result<std::unique_ptr<KvCache>> create(const CacheOptions& options, ByteBudget& budget);
  ~KvCache();  ///< Requires: no open sequence.

  Sequence open();
  /// A sequence that begins with what is kept of `tokens` under `root`: whole pages shared, the
  /// equal first slots of one more page copied. At least the last token is left to compute.
  /// `match.position` is its length; the rest of `match` says why it ends there.
  /// Pages on the disk are loaded as long as that is faster than `seconds_per_token`, what
  /// computing them takes (0: not known): it never costs much more than a twentieth of computing
  /// all.
  Sequence open(const PageKey& root, std::span<const TokenId> tokens, Match& match,
                double seconds_per_token = 0);

  /// For a disk that was found slower than computing: reads what it has of `tokens` from the end
  /// (load_behind.h), which must outlive it. Null: it has nothing.
  std::unique_ptr<LoadBehind> load_behind(const PageKey& root, std::span<const TokenId> tokens,
                                          double seconds_per_token);

  /// Gives up the page of the prefix tree that is worth the least. False: there is none that no
  /// sequence uses.
  bool evict_one();
  /// Gives up every page that no sequence uses.
  void evict_all();
  /// Waits until what was published is on the disk. False: it is not, after so long.
  bool flush(double deadline_seconds);

  const CacheOptions& options() const;
  MemorySummary memory_summary() const;
  /// Aborts with a message if I1..I4 do not hold. Requires: no LoadBehind, whose pages nobody names
  /// yet. Cost: O(pages).
  void check_invariants() const;

  class Impl;

 private:
  friend class Sequence;
  explicit KvCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::cache
