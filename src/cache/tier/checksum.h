// XXH3-64: finds damage, not forgery.
#pragma once

#include <cstdint>
#include <span>

namespace kvasir::cache {

/// Of `bytes`; the same number on every machine. Source: xxHash 0.8, XXH3_64bits, seed 0.
std::uint64_t xxh3_64(std::span<const std::uint8_t> bytes);

/// Of `first` and `second` as if they lay side by side.
std::uint64_t xxh3_64(std::span<const std::uint8_t> first, std::span<const std::uint8_t> second);

}  // namespace kvasir::cache
