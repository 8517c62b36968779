// Fuzz target: any bytes as the manifest that a directory of pages keeps of a scope.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/key_scope.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kvasir::engine::Manifest;
  using kvasir::engine::manifest_of;
  using kvasir::engine::parse_manifest;
  const auto manifest = parse_manifest({reinterpret_cast<const char*>(data), size});
  if (!manifest) return 0;
  const auto again = parse_manifest(manifest_of(manifest->scope, manifest->model_name));
  require(again.has_value() && again->model_name == manifest->model_name);
  require(kvasir::cache::first_difference(again->scope, manifest->scope).empty());
  require(kvasir::cache::root_key(again->scope) == kvasir::cache::root_key(manifest->scope));
  return 0;
}
