// What the subcommands of `kvasir cache` share: their flags, and the pages of the directory.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/tier/disk_tier.h"
#include "command.h"
#include "engine/key_scope.h"

namespace kvasir::cli {

struct CacheFlags {
  ModelFlags model;  ///< its tokenizer, for --show-text
  std::string kv_dir, key, size;
  bool json = false, show_text = false, pages = false, all = false;
  // Of export and import.
  std::string file, model_name, kv_disk = "8G";
  std::vector<std::string> keys;
  bool force = false;
};

/// The directory as it is: nothing is evicted on opening. Errors: kCorruption.
Result<std::unique_ptr<cache::DiskTier>> open_tier(const CacheFlags& flags);

/// Pages of a root side by side, those nearer to its beginning first.
std::vector<cache::PageInfo> pages_in_order(const cache::DiskTier& tier);

/// Pages whose key begins with `prefix`: one is wanted. Errors: kNotFound, kInvalidArgument.
Result<cache::PageInfo> find_page(const cache::DiskTier& tier, const std::string& prefix);

/// What a directory says of its roots, each read once.
class Manifests {
 public:
  explicit Manifests(const cache::DiskTier& tier) : tier_(tier) {}
  /// Absent where the directory does not know.
  const std::optional<engine::Manifest>& of(const cache::PageKey& root);
  /// "unknown model" where the directory does not know.
  std::string model_name(const cache::PageKey& root);

 private:
  const cache::DiskTier& tier_;
  std::map<std::string, std::optional<engine::Manifest>> known_;  // by the root's digits
};

Status export_cache(const CacheFlags& flags);
Status import_cache(const CacheFlags& flags);

}  // namespace kvasir::cli
