// Bytes and seconds as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvasir {

/// "94.4 MiB"; exact below 1 KiB ("812 B").
std::string format_bytes(std::uint64_t bytes);

/// "512M", "8G", "1048576", "1.5GiB" -> bytes; powers of 1024, at most 2^63 - 1; whole numbers are
/// exact. Errors: kInvalidArgument.
Result<std::uint64_t> parse_bytes(std::string_view text);

/// Requires: multiple > 0; the result fits.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace kvasir
