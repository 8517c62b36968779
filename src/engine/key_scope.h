// What a model's K and V depend on besides the tokens, as fingerprints for page keys.
#pragma once

#include "base/thread_pool.h"
#include "cache/prefix/page_key.h"
#include "gguf/file.h"

namespace kvasir::engine {

/// Fills in model, tokenizer and rope from everything in the file that the results depend on: all
/// tensors, and all metadata but general.* (names, licences) and the chat template.
/// Cost: one pass over the file.
void fingerprint_model(const gguf::File& file, ThreadPool& pool, cache::KeyScope& scope);

}  // namespace kvasir::engine
