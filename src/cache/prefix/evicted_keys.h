// Keys of pages that were evicted, so that a miss can say so: the last few, in bounded memory.
//
// Thread safety: engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>

#include "cache/prefix/page_key.h"

namespace kvasir::cache {

class EvictedKeys {
 public:
  /// Keeps what the last `limit` calls of remember named.
  explicit EvictedKeys(std::size_t limit) : limit_(limit) {}

  /// Cost: O(1), as the two below.
  void remember(const PageKey& key);
  /// The page is cached again.
  void forget(const PageKey& key) { last_.erase(key); }
  bool contains(const PageKey& key) const { return last_.contains(key); }
  std::size_t size() const { return last_.size(); }
  void clear();

 private:
  const std::size_t limit_;
  std::uint64_t n_remembered_ = 0;
  /// Calls of remember, oldest first. A call whose key was forgotten since is of no meaning, and
  /// leaves in its turn.
  std::deque<std::pair<PageKey, std::uint64_t>> calls_;
  std::unordered_map<PageKey, std::uint64_t> last_;  ///< the number of the call that counts
};

}  // namespace kvasir::cache
