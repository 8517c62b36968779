// Random weight tensors of every GGUF type, with scales of ordinary size.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gguf/file.h"
#include "gguf/types.h"
#include "simd/half.h"

namespace kvasir {

inline constexpr std::array kWeightTypes = {
    gguf::TensorType::kF32,  gguf::TensorType::kF16,    gguf::TensorType::kBF16,
    gguf::TensorType::kQ4_0, gguf::TensorType::kQ4_1,   gguf::TensorType::kQ5_0,
    gguf::TensorType::kQ5_1, gguf::TensorType::kQ8_0,   gguf::TensorType::kQ2_K,
    gguf::TensorType::kQ3_K, gguf::TensorType::kQ4_K,   gguf::TensorType::kQ5_K,
    gguf::TensorType::kQ6_K, gguf::TensorType::kIQ4_NL, gguf::TensorType::kIQ4_XS};

/// Offsets of the f16 fields in a block of an integer type.
inline std::vector<int> f16_fields(gguf::TensorType type) {
  using enum gguf::TensorType;
  switch (type) {
    case kQ4_1:
    case kQ5_1:
    case kQ4_K:
    case kQ5_K:
      return {0, 2};
    case kQ2_K:
      return {80, 82};
    case kQ3_K:
      return {108};
    case kQ6_K:
      return {208};
    default:
      return {0};
  }
}

/// A tensor and the bytes it views.
struct OwnedTensor {
  gguf::TensorInfo info;
  std::vector<std::uint8_t> bytes;
};

/// `fill` >= 0 sets every byte but the scales to it, to reach the extremes of codes.
inline OwnedTensor random_weights(gguf::TensorType type, int n_rows, int n_cols, unsigned seed,
                                  int fill = -1) {
  const gguf::TypeTraits& traits = *gguf::type_traits(type);
  const std::size_t n_blocks =
      static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(n_cols) / traits.block_values;
  OwnedTensor tensor;
  tensor.bytes.resize(n_blocks * traits.block_bytes);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  for (std::size_t b = 0; b < n_blocks; ++b) {
    std::uint8_t* block = tensor.bytes.data() + b * traits.block_bytes;
    const float value = normal(random);
    if (type == gguf::TensorType::kF32) {
      std::memcpy(block, &value, 4);
    } else if (traits.block_values == 1) {
      const std::uint16_t bits =
          type == gguf::TensorType::kF16 ? simd::f32_to_f16(value) : simd::f32_to_bf16(value);
      std::memcpy(block, &bits, 2);
    } else {
      for (std::uint32_t i = 0; i < traits.block_bytes; ++i) {
        block[i] = static_cast<std::uint8_t>(fill >= 0 ? fill : static_cast<int>(random() >> 9));
      }
      for (const int field : f16_fields(type)) {
        const std::uint16_t bits = simd::f32_to_f16(normal(random));
        std::memcpy(block + field, &bits, 2);
      }
    }
  }
  tensor.info.name = "weights";
  tensor.info.type = type;
  tensor.info.n_dims = 2;
  tensor.info.shape = {static_cast<std::uint64_t>(n_cols), static_cast<std::uint64_t>(n_rows), 1,
                       1};
  tensor.info.data = tensor.bytes;
  return tensor;
}

}  // namespace kvasir
