// What a direct block of coded K and V fetches while it computes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/kernel.h"
#include "hwy/cache_control.h"

namespace kvasir::attention {

struct Part;  // segment.h

/// The lines that a block reads of a segment, in its order: of each stretch of K the scales, then
/// the codes, head by head; V's scales, then its codes; the beginning of the next segment's K. They
/// are fetched a constant number of lines before they are read.
///
/// A core reads at its full rate only with some hundred lines under way, and what is fetched must
/// still lie in L1 when it is read: lines under way leave loads that miss it nothing to wait in
/// (measured: docs/benchmarks.md, "Quantized K and V").
class FetchAhead {
 public:
  /// Starts over with segment `index` of the block, whose first kLead lines are under way.
  void begin(const Block& block, int index);

  /// Fetches the next lines; to be called as often as lines are read.
  template <int kLines>
  void lines() {
    if (at_ == nullptr) return;
#pragma GCC unroll 8
    for (int line = 0; line < kLines; ++line) hwy::Prefetch(at_ + kLineBytes * line);
    at_ += kLineBytes * kLines;
    if (at_ >= end_) next_run();
  }
  /// The same for what `bytes` bytes take.
  void bytes(std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += kLineBytes) lines<1>();
  }

 private:
  static constexpr std::size_t kLineBytes = 64;
  /// Measured: from 96 to 256 within 7 %, the best of int8 below and of tiles above this.
  static constexpr std::size_t kLead = 128;
  /// A page smaller than a stretch has one for each kv head and side, and one of scales; more than
  /// these are not fetched.
  static constexpr int kMostRuns = 640;
  struct Run {
    const std::uint8_t *begin, *end;
    std::size_t n_lines() const {
      return (static_cast<std::size_t>(end - begin) + kLineBytes - 1) / kLineBytes;
    }
  };

  void add_keys(const Block& block, std::span<const Part> parts);
  void add_values(const Block& block, std::span<const Part> parts);
  /// What kPieceOf(part, is_v, kv_head) finds in parts of one stretch, head by head.
  template <auto kPieceOf>
  void add(const Block& block, std::span<const Part> parts, bool is_v);
  void add(const std::uint8_t* from, std::size_t bytes) {
    if (bytes > 0 && n_ < kMostRuns) runs_[n_++] = {from, from + bytes};
  }
  /// Leaves out the first kLead lines of all runs; keeps no more than these of runs from `first`.
  void skip_lead();
  void keep_lead(int first);
  void next_run() {
    at_ = next_ < n_ ? runs_[next_].begin : nullptr;
    if (at_ != nullptr) end_ = runs_[next_++].end;
  }

  const std::uint8_t *at_ = nullptr, *end_ = nullptr;
  int n_ = 0, next_ = 0;
  Run runs_[kMostRuns];
};

}  // namespace kvasir::attention
