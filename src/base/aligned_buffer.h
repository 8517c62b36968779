// Memory from the operating system for weights, pages and scratch: aligned, zeroed, on 2 MiB pages
// where it is large, and given back at once when it goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvasir {

/// Move-only owner of `size()` bytes. Alignment: 2 MiB from 2 MiB up (with MADV_HUGEPAGE), a 4 KiB
/// page below. Contents start as zero; a page of memory is resident only after its first write.
/// Throws std::bad_alloc when the system refuses or `bytes` is no size a process can have: callers
/// ask a ByteBudget first.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  /// What this buffer owned goes back to the system now, not when `other` dies.
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    if (this == &other) return *this;
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    map_ = std::exchange(other.map_, nullptr);
    map_bytes_ = std::exchange(other.map_bytes_, 0);
    return *this;
  }
  ~AlignedBuffer() { release(); }

  std::uint8_t* data() { return data_; }
  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void release() noexcept;

  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0;
};

}  // namespace kvasir
