// Memory from the operating system for weights, pages and scratch: aligned, zeroed, on 2 MiB pages
// where it is large, and given back at once when it goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvasir {

/// Move-only owner of `size()` bytes. Alignment: 2 MiB from 2 MiB up (with MADV_HUGEPAGE), a 4 KiB
/// page below. Contents start as zero; a page of memory is resident only after its first write.
/// Requires: the process may abort on exhaustion of the address space (bad_alloc is thrown).
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(map_, other.map_);
    std::swap(map_bytes_, other.map_bytes_);
    return *this;
  }
  ~AlignedBuffer();

  std::uint8_t* data() { return data_; }
  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0;
};

}  // namespace kvasir
