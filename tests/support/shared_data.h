// Data of others, which the repository does not carry.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace kvasir::testing {

/// In $KVASIR_TEST_DATA, else beside the checkout; may be absent.
inline std::filesystem::path shared_data(std::string_view name) {
  const char* root = std::getenv("KVASIR_TEST_DATA");
  const std::filesystem::path base =
      root != nullptr ? std::filesystem::path(root)
                      : std::filesystem::path(KVASIR_SOURCE_DIR) / ".." / "shared" / "data";
  return base / name;
}

}  // namespace kvasir::testing
