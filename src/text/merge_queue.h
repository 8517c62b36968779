// Merges neighbouring symbols, lowest rank first and leftmost among equals, until no pair merges:
// the core of BPE and SPM.
//
// Invariants
// I1 A live symbol holds the rank of the pair it forms with its right neighbour. A queued pair is
//    stale exactly when its left symbol is dead or holds another rank by now.
// Cost: O(n log n) for n symbols; every merge queues at most two pairs. No recursion.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/types.h"
#include "text/hash_index.h"

namespace kvasir::text {

/// A run of bytes of a word.
struct Symbol {
  std::uint32_t begin = 0;
  std::uint32_t size = 0;  ///< bytes; 0 once its left neighbour has taken it
  TokenId id = -1;         ///< -1: no token
};

/// Reusable memory of merges; one for each thread.
class MergeQueue {
 public:
  /// Merges `symbols` in place; those that are left have size > 0, in the same order.
  /// `merge_of(left, right)` says what two neighbours become; rank Merge::kNever: nothing.
  /// Requires: fewer than 2^32 - 1 symbols, all of size > 0.
  template <class MergeOf>
  void run(std::vector<Symbol>* symbols, MergeOf&& merge_of) {
    if (symbols->size() <= kShort) {
      run_short(symbols, merge_of);
    } else {
      run_long(symbols, merge_of);
    }
  }

  /// Up to this many symbols, scanning for the lowest rank beats a heap.
  static constexpr std::size_t kShort = 32;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Link {
    std::uint32_t prev = kNone;
    std::uint32_t next = kNone;
    Merge merge;  // with `next`
  };

  template <class MergeOf>
  void run_short(std::vector<Symbol>* symbols, MergeOf&& merge_of);
  template <class MergeOf>
  void run_long(std::vector<Symbol>* symbols, MergeOf&& merge_of);
  bool pop(std::uint64_t* pair);

  std::vector<Link> links_;
  // Pairs as rank, then index of the left symbol: those of the beginning in order, and a heap of
  // those that merges made.
  std::vector<std::uint64_t> first_;
  std::size_t first_pos_ = 0;
  std::vector<std::uint64_t> heap_;
};

template <class MergeOf>
void MergeQueue::run_short(std::vector<Symbol>* symbols, MergeOf&& merge_of) {
  std::vector<Symbol>& list = *symbols;
  Merge merges[kShort];  // [i]: of symbols i and i + 1
  std::size_t n = list.size();
  for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = merge_of(list[i], list[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == Merge::kNever) break;
    list[best].size += list[best + 1].size;
    list[best].id = merges[best].id;
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      list[i] = list[i + 1];
      merges[i - 1] = merges[i];
    }
    --n;
    if (best > 0) merges[best - 1] = merge_of(list[best - 1], list[best]);
    if (best + 1 < n) merges[best] = merge_of(list[best], list[best + 1]);
  }
  list.resize(n);
}

template <class MergeOf>
void MergeQueue::run_long(std::vector<Symbol>* symbols, MergeOf&& merge_of) {
  std::vector<Symbol>& list = *symbols;
  const auto n = static_cast<std::uint32_t>(list.size());
  links_.assign(n, {});
  first_.clear();
  first_pos_ = 0;
  heap_.clear();
  for (std::uint32_t i = 0; i < n; ++i) {
    if (i > 0) links_[i].prev = i - 1;
    if (i + 1 == n) break;
    links_[i].next = i + 1;
    links_[i].merge = merge_of(list[i], list[i + 1]);
    const std::uint32_t rank = links_[i].merge.rank;
    if (rank != Merge::kNever) first_.push_back(std::uint64_t{rank} << 32 | i);
  }
  std::sort(first_.begin(), first_.end());
  const auto queue = [&](std::uint32_t left) {
    Link& link = links_[left];
    link.merge = link.next == kNone ? Merge{} : merge_of(list[left], list[link.next]);
    if (link.merge.rank == Merge::kNever) return;
    heap_.push_back(std::uint64_t{link.merge.rank} << 32 | left);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  for (std::uint64_t pair; pop(&pair);) {
    const auto left = static_cast<std::uint32_t>(pair);
    Link& link = links_[left];
    if (list[left].size == 0 || link.merge.rank != pair >> 32) continue;  // I1
    const std::uint32_t right = link.next;
    list[left].size += list[right].size;
    list[left].id = link.merge.id;
    list[right].size = 0;
    link.next = links_[right].next;
    if (link.next != kNone) links_[link.next].prev = left;
    queue(left);
    if (link.prev != kNone) queue(link.prev);
  }
}

inline bool MergeQueue::pop(std::uint64_t* pair) {
  const bool has_first = first_pos_ < first_.size();
  if (has_first && (heap_.empty() || first_[first_pos_] < heap_.front())) {
    *pair = first_[first_pos_++];
    return true;
  }
  if (heap_.empty()) return false;
  *pair = heap_.front();
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  heap_.pop_back();
  return true;
}

}  // namespace kvasir::text
