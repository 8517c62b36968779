// What a model's K and V depend on besides the tokens, as fingerprints for page keys.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "cache/prefix/page_key.h"
#include "gguf/file.h"

namespace kvasir::engine {

/// Goes up with every change of the orders of docs/numerics.md: pages that an earlier build left on
/// a disk are then not what this one computes. 2: segments of 512 positions; q of int8-g64 in parts
/// of 32 channels.
inline constexpr int kArithmeticVersion = 2;

/// Fills in model, tokenizer and rope from everything in the file that the results depend on: all
/// tensors, and all metadata but general.* (names, licences) and the chat template.
/// Cost: one pass over the file.
void fingerprint_model(const gguf::File& file, ThreadPool& pool, cache::KeyScope& scope);

/// What fingerprint_model puts into scope.tokenizer. Cost: one pass over the vocabulary.
cache::Fingerprint fingerprint_tokenizer(const gguf::File& file);

/// The text that a directory of pages keeps beside those of a scope: `name value` lines, the
/// model's name for people first.
std::string manifest_of(const cache::KeyScope& scope, std::string_view model_name);

struct Manifest {
  std::string model_name;
  cache::KeyScope scope;
};
/// Absent unless `text` is what manifest_of gives.
std::optional<Manifest> parse_manifest(std::string_view text);

}  // namespace kvasir::engine
