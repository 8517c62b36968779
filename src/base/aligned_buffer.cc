#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <limits>
#include <new>

#include "base/check.h"
#include "base/units.h"

namespace kvasir {

namespace {
constexpr std::size_t kSmallPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t bytes) {
  if (bytes == 0) return;
  // Rounding up below must not wrap round to a small mapping.
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
  const bool huge = bytes >= kHugePage;
  // mmap aligns to 4 KiB only: ask for one huge page more and start at the first 2 MiB boundary.
  const std::size_t wanted = round_up(bytes, kSmallPage);
  map_bytes_ = huge ? wanted + kHugePage : wanted;
  map_ = ::mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    throw std::bad_alloc();
  }
  auto address = reinterpret_cast<std::uintptr_t>(map_);
  if (huge) {
    address = round_up(address, kHugePage);
    // Advice only: without transparent huge pages the buffer works on 4 KiB pages.
    (void)::madvise(reinterpret_cast<void*>(address), wanted, MADV_HUGEPAGE);
  }
  data_ = reinterpret_cast<std::uint8_t*>(address);
  size_ = bytes;
}

void AlignedBuffer::release() noexcept {
  if (map_ != nullptr) KVASIR_CHECK(::munmap(map_, map_bytes_) == 0);
}

}  // namespace kvasir
