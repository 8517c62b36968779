#include "cache/tier/checksum.h"

#define XXH_INLINE_ALL  // header-only: no library to link, and one that cannot differ from it
#include <xxhash.h>

namespace kvasir::cache {

std::uint64_t xxh3_64(std::span<const std::uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t xxh3_64(std::span<const std::uint8_t> first, std::span<const std::uint8_t> second) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, first.data(), first.size());
  XXH3_64bits_update(&state, second.data(), second.size());
  return XXH3_64bits_digest(&state);
}

}  // namespace kvasir::cache
