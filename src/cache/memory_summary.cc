#include <fmt/core.h>

#include <iterator>

#include "base/units.h"
#include "cache/cache.h"

namespace kvasir::cache {

namespace {

void add_owner_line(std::string& out, std::string_view owner, std::uint64_t bytes) {
  fmt::format_to(std::back_inserter(out), "  {:<10}{:>12}{:>16} B\n", owner, format_bytes(bytes),
                 bytes);
}

}  // namespace

std::string MemorySummary::to_string() const {
  std::string out;
  const auto line = std::back_inserter(out);
  const std::uint64_t reserved = reserved_weights + reserved_kv + reserved_scratch;
  fmt::format_to(line, "reserved\n");
  add_owner_line(out, "weights", reserved_weights);
  add_owner_line(out, "kv", reserved_kv);
  add_owner_line(out, "scratch", reserved_scratch);
  add_owner_line(out, "sum", reserved);
  if (budget == 0) {
    fmt::format_to(line, "  {:<10}{:>12}\n", "budget", "no limit");
  } else {
    add_owner_line(out, "budget", budget);
  }
  fmt::format_to(line, "kv cache, {} sequence{}\n", n_sequences, n_sequences == 1 ? "" : "s");
  fmt::format_to(line, "  {:<6}{:>12}{:>12}{:>7}{:>7}{:>11}{:>11}{:>11}{:>11}{:>11}\n", "group",
                 "page tokens", "page bytes", "used", "free", "allocated", "used", "filled",
                 "wasted", "shared");
  const auto bytes_columns = [&](const auto& item) {
    fmt::format_to(line, "{:>11}{:>11}{:>11}{:>11}{:>11}\n", format_bytes(item.allocated),
                   format_bytes(item.used), format_bytes(item.filled), format_bytes(item.wasted),
                   format_bytes(item.shared));
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    fmt::format_to(line, "  {:<6}{:>12}{:>12}{:>7}{:>7}", g, group.page_tokens, group.frame_bytes,
                   group.n_pages_used, group.n_pages_free);
    bytes_columns(group);
  }
  fmt::format_to(line, "  {:<44}", "sum");
  bytes_columns(*this);
  return out;
}

}  // namespace kvasir::cache
