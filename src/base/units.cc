#include "base/units.h"

#include <fmt/core.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <system_error>

namespace kvasir {

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  int unit_idx = 0;
  // From 1023.95 on "{:.1f}" would print 1024.0.
  while (value >= 1023.95 && unit_idx < 5) {
    value /= 1024.0;
    ++unit_idx;
  }
  return fmt::format("{:.1f} {}", value, units[unit_idx]);
}

namespace {

/// The power of 1024 that a suffix stands for: "" and "B" 0, "K", "kB", "KiB" 1, ...
std::optional<int> suffix_power(std::string_view suffix) {
  std::string upper;
  for (const char c : suffix) {
    upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  if (upper.empty() || upper == "B") return 0;
  constexpr std::string_view kPrefixes = "KMGT";
  const auto prefix_idx = kPrefixes.find(upper[0]);
  const std::string_view rest = std::string_view(upper).substr(1);
  if (prefix_idx == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "IB")) {
    return std::nullopt;
  }
  return static_cast<int>(prefix_idx) + 1;
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) {
  const auto fail = [&] {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("size: got '{}', want a number with an optional K, M, G or T", text)};
  };
  const auto too_large = [&] {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("size: got '{}', want at most 8388607T", text)};
  };
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  if (text.empty() || text[0] == '-') return fail();  // from_chars reads a sign

  std::uint64_t whole = 0;
  const auto [whole_end, whole_error] = std::from_chars(begin, end, whole);
  const bool overflows = whole_error == std::errc::result_out_of_range;
  const bool is_whole =
      (overflows || whole_error == std::errc()) && (whole_end == end || *whole_end != '.');
  if (is_whole) {
    const auto power = suffix_power({whole_end, static_cast<std::size_t>(end - whole_end)});
    if (!power) return fail();
    if (overflows || whole > (kMax >> (10 * *power))) return too_large();
    return whole << (10 * *power);
  }

  double number = 0.0;  // "infinity" and "nan" are numbers to from_chars
  const auto [number_end, number_error] =
      std::from_chars(begin, end, number, std::chars_format::fixed);
  if (number_error != std::errc() || !std::isfinite(number)) return fail();
  const auto power = suffix_power({number_end, static_cast<std::size_t>(end - number_end)});
  if (!power) return fail();
  const double bytes = std::ldexp(number, 10 * *power);
  if (bytes >= 0x1p63) return too_large();
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace kvasir
