#include "cache/page/byte_budget.h"

#include <fmt/core.h>

#include <limits>
#include <numeric>

#include "base/units.h"

namespace kvasir::cache {

namespace {

constexpr std::size_t index_of(MemoryOwner owner) { return static_cast<std::size_t>(owner); }

std::uint64_t sum(const std::array<std::uint64_t, index_of(MemoryOwner::kCount)>& by_owner) {
  return std::accumulate(by_owner.begin(), by_owner.end(), std::uint64_t{0});
}

}  // namespace

std::string_view owner_name(MemoryOwner owner) {
  switch (owner) {
    case MemoryOwner::kWeights:
      return "weights";
    case MemoryOwner::kKv:
      return "kv";
    case MemoryOwner::kScratch:
      return "scratch";
    case MemoryOwner::kCount:
      break;
  }
  return "?";
}

Status ByteBudget::reserve(MemoryOwner owner, std::uint64_t bytes) {
  KVASIR_CHECK(owner < MemoryOwner::kCount);
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t total = sum(by_owner_);
  const std::uint64_t ceiling = limit_ == 0 ? std::numeric_limits<std::uint64_t>::max() : limit_;
  // total <= ceiling always holds (I1), so the difference cannot wrap.
  if (bytes > ceiling - total) {
    return Error{
        ErrorCode::kExhausted,
        fmt::format("memory budget: no room for {}; got {} ({} B) free of {} "
                    "(weights {}, kv {}, scratch {}), want {} ({} B)",
                    owner_name(owner), format_bytes(ceiling - total), ceiling - total,
                    format_bytes(ceiling), format_bytes(by_owner_[index_of(MemoryOwner::kWeights)]),
                    format_bytes(by_owner_[index_of(MemoryOwner::kKv)]),
                    format_bytes(by_owner_[index_of(MemoryOwner::kScratch)]), format_bytes(bytes),
                    bytes)};
  }
  by_owner_[index_of(owner)] += bytes;
  return {};
}

void ByteBudget::release(MemoryOwner owner, std::uint64_t bytes) {
  KVASIR_CHECK(owner < MemoryOwner::kCount);
  const std::lock_guard<std::mutex> lock(mutex_);
  KVASIR_CHECK(bytes <= by_owner_[index_of(owner)]);  // I2
  by_owner_[index_of(owner)] -= bytes;
}

std::uint64_t ByteBudget::reserved(MemoryOwner owner) const {
  KVASIR_CHECK(owner < MemoryOwner::kCount);
  const std::lock_guard<std::mutex> lock(mutex_);
  return by_owner_[index_of(owner)];
}

std::uint64_t ByteBudget::reserved() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sum(by_owner_);
}

}  // namespace kvasir::cache
