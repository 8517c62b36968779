#include "base/units.h"

#include <fmt/core.h>

#include <cctype>
#include <cmath>
#include <cstdlib>

namespace kvasir {

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  int unit_idx = 0;
  while (value >= 1024.0 && unit_idx < 5) {
    value /= 1024.0;
    ++unit_idx;
  }
  return fmt::format("{:.1f} {}", value, units[unit_idx]);
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  const auto fail = [&] {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("size: got '{}', want a number with an optional K, M, G or T", text)};
  };
  const std::string copy(text);
  if (copy.empty() || !(std::isdigit(static_cast<unsigned char>(copy[0])) || copy[0] == '.')) {
    return fail();
  }
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  std::string suffix;
  for (; *end != '\0'; ++end) {
    suffix += static_cast<char>(std::toupper(static_cast<unsigned char>(*end)));
  }
  double factor = 1.0;
  if (!suffix.empty() && suffix != "B") {
    constexpr std::string_view kPrefixes = "KMGT";
    const auto prefix_idx = kPrefixes.find(suffix[0]);
    const std::string rest = suffix.substr(1);
    if (prefix_idx == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "IB")) {
      return fail();
    }
    factor = std::pow(1024.0, static_cast<double>(prefix_idx) + 1.0);
  }
  const double bytes = number * factor;
  if (!std::isfinite(bytes) || bytes < 0 || bytes >= 9.0e18) return fail();
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace kvasir
