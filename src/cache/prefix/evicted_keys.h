// Keys of pages that were evicted, so that a miss can say so, and a page that comes back for how
// long nobody wanted it: the last few, in bounded memory.
//
// Thread safety: engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include "cache/prefix/page_key.h"

namespace kvasir::cache {

class EvictedKeys {
 public:
  /// Keeps what the last `limit` calls of remember named.
  explicit EvictedKeys(std::size_t limit) : limit_(limit) {}

  /// Cost: O(1), as the two below.
  void remember(const PageKey& key, double last_use_seconds);
  /// The page is cached again: when it was used last, if it was remembered.
  std::optional<double> forget(const PageKey& key);
  bool contains(const PageKey& key) const { return last_.contains(key); }
  std::size_t size() const { return last_.size(); }
  void clear();

 private:
  const std::size_t limit_;
  std::uint64_t n_remembered_ = 0;
  /// Calls of remember, oldest first. A call whose key was forgotten since is of no meaning, and
  /// leaves in its turn.
  std::deque<std::pair<PageKey, std::uint64_t>> calls_;
  struct Last {
    std::uint64_t number = 0;  ///< of the call that counts
    double last_use_seconds = 0;
  };
  std::unordered_map<PageKey, Last> last_;
};

}  // namespace kvasir::cache
