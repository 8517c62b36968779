// One hard budget for everything the process keeps: reserve first, then own.
//
// Invariants
// I1 The sum over owners never exceeds the limit; a reservation that would is refused whole.
// I2 What an owner releases it had reserved.
// Thread safety: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "base/result.h"

namespace kvasir::cache {

enum class MemoryOwner : std::uint8_t { kWeights, kKv, kScratch, kCount };
std::string_view owner_name(MemoryOwner owner);

class ByteBudget {
 public:
  /// `limit_bytes` 0: no limit.
  explicit ByteBudget(std::uint64_t limit_bytes = 0) : limit_(limit_bytes) {}
  /// Errors: kExhausted with the numbers; nothing is then reserved.
  Status reserve(MemoryOwner owner, std::uint64_t bytes);
  void release(MemoryOwner owner, std::uint64_t bytes);
  std::uint64_t limit() const { return limit_; }
  std::uint64_t reserved(MemoryOwner owner) const;
  std::uint64_t reserved() const;  ///< by all owners

 private:
  const std::uint64_t limit_;
  mutable std::mutex mutex_;
  std::array<std::uint64_t, static_cast<std::size_t>(MemoryOwner::kCount)> by_owner_{};
};

}  // namespace kvasir::cache
