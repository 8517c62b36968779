#include "cache_pages.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "base/clock.h"

namespace kvasir::cli {

using cache::DiskTier;
using cache::PageInfo;
using cache::PageKey;

Result<std::unique_ptr<DiskTier>> open_tier(const CacheFlags& flags) {
  static const SteadyClock clock;
  cache::DiskTierOptions options;
  options.directory = flags.kv_dir.empty() ? default_kv_directory() : flags.kv_dir;
  options.capacity_bytes = std::uint64_t{1} << 62;
  auto tier = DiskTier::open(options, cache::FileSystem::posix(), clock);
  if (tier) return tier;
  return Error{ErrorCode::kCorruption, "--kv-dir: " + tier.error().message};
}

std::vector<PageInfo> pages_in_order(const DiskTier& tier) {
  std::vector<PageInfo> pages = tier.list();
  std::sort(pages.begin(), pages.end(), [](const PageInfo& a, const PageInfo& b) {
    return std::tie(a.root.bytes, a.first_token, a.key.bytes) <
           std::tie(b.root.bytes, b.first_token, b.key.bytes);
  });
  return pages;
}

Result<PageInfo> find_page(const DiskTier& tier, const std::string& prefix) {
  std::vector<PageInfo> found;
  for (const PageInfo& page : tier.list()) {
    if (page.key.to_hex().starts_with(prefix)) found.push_back(page);
  }
  if (found.size() == 1) return found.front();
  return Error{found.empty() ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument,
               fmt::format("key: got '{}', {} pages begin so, want 1", prefix, found.size())};
}

const std::optional<engine::Manifest>& Manifests::of(const PageKey& root) {
  const auto [at, is_new] = known_.try_emplace(root.to_hex());
  if (is_new) {
    const auto text = tier_.read_manifest(root);
    if (text) at->second = engine::parse_manifest(*text);
  }
  return at->second;
}

std::string Manifests::model_name(const PageKey& root) {
  const auto& manifest = of(root);
  return manifest ? printable(manifest->model_name) : "unknown model";
}

}  // namespace kvasir::cli
