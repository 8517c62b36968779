// Words every room shares.
#pragma once

#include <cstdint>

namespace kvasir {

/// Index into the vocabulary.
using TokenId = std::int32_t;

/// Absolute 0-based index of a token in its sequence.
using Position = std::int32_t;

}  // namespace kvasir
