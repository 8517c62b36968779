// The one place where bytes of a GGUF file are read by position: a bounds-checked cursor.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace kvasir::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie");

/// One little-endian number from unaligned memory. Requires: sizeof(T) readable bytes.
template <class T>
T load(const std::uint8_t* bytes) {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

/// a * b; false on overflow.
inline bool checked_mul(std::uint64_t a, std::uint64_t b, std::uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

/// a + b; false on overflow.
inline bool checked_add(std::uint64_t a, std::uint64_t b, std::uint64_t* sum) {
  return !__builtin_add_overflow(a, b, sum);
}

/// Reads forward. A read that does not fit in what remains returns false and moves nothing.
class Cursor {
 public:
  explicit Cursor(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint64_t offset() const { return offset_; }
  std::uint64_t remaining() const { return bytes_.size() - offset_; }

  bool take(std::uint64_t size, std::span<const std::uint8_t>* taken) {
    if (size > remaining()) return false;
    *taken = bytes_.subspan(offset_, size);
    offset_ += size;
    return true;
  }

  template <class T>
  bool read(T* value) {
    if (sizeof(T) > remaining()) return false;
    *value = load<T>(bytes_.data() + offset_);
    offset_ += sizeof(T);
    return true;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::uint64_t offset_ = 0;  // <= bytes_.size()
};

}  // namespace kvasir::gguf
