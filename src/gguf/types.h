// The tensor and value types of the GGUF file format.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvasir::gguf {

/// Numbers are the file format's. Types it has retired (4, 5, 31..33, 36..38) have no name here.
enum class TensorType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
};

/// A weight block: `block_values` values in `block_bytes` bytes.
struct TypeTraits {
  std::string_view name;  ///< "Q4_K"
  std::uint32_t block_values;
  std::uint32_t block_bytes;
};

/// Null for a number that names no type.
const TypeTraits* type_traits(TensorType type);

/// "Q4_2" for a number the format has retired, "" for any other.
std::string_view retired_type_name(std::uint32_t number);

enum class ValueType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

/// "uint32", "array", ...; "unknown" for a number that names no type.
std::string_view value_type_name(ValueType type);

/// Bytes of one value; 0 for strings, arrays and numbers that name no type.
std::uint32_t value_type_bytes(ValueType type);

}  // namespace kvasir::gguf
