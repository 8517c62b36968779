// What a block of many rows needs beside its register tiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/work.h"
#include "hwy/cache_control.h"

namespace kvasir::attention {

/// What is fetched while register tiles compute, in even shares: memory would have nothing to do
/// meanwhile, and the copies would wait for it afterwards.
class FetchedMeanwhile {
 public:
  /// Strips of 16 parts each (rows of V, equal shares of K), `n_steps` tiles in all.
  FetchedMeanwhile(const std::uint8_t* const* strips, int n_strips, std::size_t part_stride,
                   std::size_t part_bytes, int n_steps)
      : strips_(strips),
        n_parts_(n_strips * 16),
        part_stride_(part_stride),
        part_bytes_(part_bytes),
        n_steps_(n_steps) {}

  /// To be called once per tile; more calls do nothing.
  void step() {
    ++step_;
    const int end = std::min(n_parts_, n_parts_ * step_ / n_steps_);
    for (; part_ < end; ++part_) {
      const std::uint8_t* part =
          strips_[part_ / 16] + static_cast<std::size_t>(part_ % 16) * part_stride_;
      for (std::size_t byte = 0; byte < part_bytes_; byte += 64) hwy::Prefetch(part + byte);
    }
  }

 private:
  const std::uint8_t* const* strips_;
  int n_parts_;
  std::size_t part_stride_, part_bytes_;
  int n_steps_;
  int step_ = 0, part_ = 0;
};

/// Whether some row of the tile sees a token of [begin, end).
inline bool sees_any(const Row* rows, int n_rows, int begin, int end) {
  for (int r = 0; r < n_rows; ++r) {
    if (rows[r].begin < end && begin < rows[r].end) return true;
  }
  return false;
}

}  // namespace kvasir::attention
