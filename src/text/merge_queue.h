// Merges neighbouring symbols, lowest rank first and leftmost among equals, until no pair merges:
// the core of BPE and SPM.
//
// Invariants
// I1 A queued pair is stale exactly when the sizes of its two symbols no longer add up to what they
//    did: a symbol only ever grows, by taking its right neighbour, or dies at size 0.
// Cost: O(n log n) for n symbols; every merge queues at most two pairs. No recursion.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/types.h"
#include "text/hash_index.h"

namespace kvasir::text {

/// A run of bytes of a word; symbols form a list in text order.
struct Symbol {
  static constexpr std::uint32_t kNone = UINT32_MAX;
  std::uint32_t begin = 0;
  std::uint32_t size = 0;  ///< bytes; 0 once its left neighbour has taken it
  TokenId id = -1;         ///< -1: no token
  std::uint32_t prev = kNone;
  std::uint32_t next = kNone;
};

class MergeQueue {
 public:
  /// Merges `symbols` (their prev and next are set here) in place; the survivors have size > 0.
  /// `merge_of(left, right)` says what two neighbours become: std::optional<Merge>.
  /// Requires: symbols.size() < Symbol::kNone.
  template <class MergeOf>
  void run(std::vector<Symbol>* symbols, MergeOf&& merge_of);

 private:
  struct Pair {
    std::uint64_t order = 0;  // rank, then index of the left symbol
    std::uint32_t size = 0;
    TokenId id = -1;
    bool operator>(const Pair& other) const { return order > other.order; }
  };
  std::vector<Pair> heap_;  // kept between runs for its memory
};

template <class MergeOf>
void MergeQueue::run(std::vector<Symbol>* symbols, MergeOf&& merge_of) {
  std::vector<Symbol>& list = *symbols;
  const auto n = static_cast<std::uint32_t>(list.size());
  heap_.clear();
  const auto queue = [&](std::uint32_t left, std::uint32_t right) {
    const std::optional<Merge> merge = merge_of(list[left], list[right]);
    if (!merge) return false;
    heap_.push_back(
        {std::uint64_t{merge->rank} << 32 | left, list[left].size + list[right].size, merge->id});
    return true;
  };
  for (std::uint32_t i = 0; i < n; ++i) {
    list[i].prev = i == 0 ? Symbol::kNone : i - 1;
    list[i].next = i + 1 == n ? Symbol::kNone : i + 1;
    if (i > 0) queue(i - 1, i);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Pair pair = heap_.back();
    heap_.pop_back();
    const auto left = static_cast<std::uint32_t>(pair.order);
    const std::uint32_t right = list[left].next;
    if (list[left].size == 0 || right == Symbol::kNone) continue;
    if (list[left].size + list[right].size != pair.size) continue;  // I1
    list[left].size = pair.size;
    list[left].id = pair.id;
    list[left].next = list[right].next;
    list[right].size = 0;
    if (list[left].next != Symbol::kNone) list[list[left].next].prev = left;
    if (list[left].prev != Symbol::kNone && queue(list[left].prev, left)) {
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    if (list[left].next != Symbol::kNone && queue(left, list[left].next)) {
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  }
}

}  // namespace kvasir::text
