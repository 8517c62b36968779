// GGUF weight blocks taken apart into codes, scales and minima: what packing and dequantization
// read.
#pragma once

#include <cstdint>

#include "gguf/types.h"

namespace kvasir::model {

/// One block of an integer GGUF type: value[i] = scale[g] * code[i] + minimum[g], g = i / group.
/// The product is exact in f32 for every type (at most 24 significant bits), so the value is
/// rounded once and equals the format's own dequantization, fused or not.
struct UnpackedBlock {
  alignas(64) std::int8_t codes[256];
  float scales[16];
  float minima[16];  ///< zero for types without a minimum
};

/// How a type's blocks come apart; `unpack` reads one block of
/// gguf::type_traits(type)->block_bytes.
struct BlockUnpacker {
  void (*unpack)(const std::uint8_t* block, UnpackedBlock& out) = nullptr;
  int block_values = 0;  ///< 32 or 256
  int group_cols = 0;    ///< 16 or 32
};

/// `unpack` is null for a type that has no integer codes or is not supported.
BlockUnpacker block_unpacker(gguf::TensorType type);

}  // namespace kvasir::model
