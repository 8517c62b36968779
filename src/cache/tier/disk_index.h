// What a disk tier knows of its files: sizes, and who goes first; no payload, no I/O; internal.
//
// Invariants
// I1 bytes() is the sum of the entries' file sizes.
// I2 Eviction takes a page that no indexed page follows before one that has followers, so that no
//    page outlives the ones it needs; among those, the one that was used longest ago.
// Thread safety: none; the tier's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "cache/prefix/page_key.h"

namespace kvasir::cache {

class DiskIndex {
 public:
  struct KeyLess {
    bool operator()(const PageKey& a, const PageKey& b) const { return a.bytes < b.bytes; }
  };
  struct Entry {
    PageKey parent;
    PageKey root;
    Position first_token = 0;
    std::vector<TokenId> tokens = {};
    std::string description = {};  ///< the writer's
    std::uint64_t file_bytes = 0;
    std::int64_t created_seconds = 0;
    std::int64_t last_used_ns = 0;  ///< since 1970
    std::uint64_t n_hits = 0;
    std::uint64_t generation = 0;  ///< number of the insertion; set by `put`
    std::uint64_t use = 0;         ///< number of the newest use; set by `put` and `touch`
  };

  /// Adds or replaces; the newest use then. Cost of all below: O(log n).
  void put(const PageKey& key, Entry entry);
  /// Null when unknown; valid until the next change.
  const Entry* find(const PageKey& key) const;
  /// 0 when unknown.
  std::uint64_t generation(const PageKey& key) const;
  /// Makes it the newest use. Requires: known.
  void touch(const PageKey& key, std::int64_t now_ns);
  void count_hit(const PageKey& key);
  /// Forgets `key` if it still is the entry of that generation; false otherwise.
  bool erase(const PageKey& key, std::uint64_t generation);
  void clear();
  /// The page to evict next, but not `keep` (unless null), which a page that comes will follow.
  /// Null when there is none, or only `keep` and pages before it. Valid until the next change.
  const PageKey* victim(const PageKey* keep) const;

  /// Takes on a later use that another process made; `reorder` makes it count.
  void raise_last_use(const PageKey& key, std::int64_t last_used_ns);
  /// Sorts the uses by their times; equal times keep their order. Cost: O(n log n).
  void reorder();
  /// By use, the oldest first. Cost: O(n log n).
  std::vector<PageKey> by_use() const;
  /// Of the pages that follow `parent` the one that agrees longest with `tokens`, by at least one.
  /// Null when there is none; valid until the next change. Cost: O(followers (tokens + log n)).
  const PageKey* nearest_follower(const PageKey& parent, std::span<const TokenId> tokens) const;

  std::size_t size() const { return entries_.size(); }
  std::uint64_t bytes() const { return bytes_; }
  /// Every generation so far is below.
  std::uint64_t next_generation() const { return next_generation_; }

 private:
  /// Has followers, use: the first in this order is the victim.
  using Rank = std::pair<bool, std::uint64_t>;
  Rank rank(const PageKey& key, const Entry& entry) const;
  void add_follower(const PageKey& parent, const PageKey& key);
  void drop_follower(const PageKey& parent, const PageKey& key);

  // Trees, not hash tables: keys come from files' names, which somebody may have chosen to collide.
  std::map<PageKey, Entry, KeyLess> entries_;
  std::map<Rank, PageKey> order_;
  std::map<PageKey, std::set<PageKey, KeyLess>, KeyLess>
      followers_;  ///< of parents, indexed or not
  std::uint64_t bytes_ = 0;
  std::uint64_t next_generation_ = 1;
  std::uint64_t next_use_ = 1;
};

}  // namespace kvasir::cache
