#include "gguf/types.h"

namespace kvasir::gguf {
namespace {

struct NamedTraits {
  TensorType type;
  TypeTraits traits;
};

// Block sizes: ggml's block_* structs, ggml-common.h; blocks of 1 are plain element types.
constexpr NamedTraits kTraits[] = {
    {TensorType::kF32, {"F32", 1, 4}},
    {TensorType::kF16, {"F16", 1, 2}},
    {TensorType::kQ4_0, {"Q4_0", 32, 18}},
    {TensorType::kQ4_1, {"Q4_1", 32, 20}},
    {TensorType::kQ5_0, {"Q5_0", 32, 22}},
    {TensorType::kQ5_1, {"Q5_1", 32, 24}},
    {TensorType::kQ8_0, {"Q8_0", 32, 34}},
    {TensorType::kQ8_1, {"Q8_1", 32, 36}},
    {TensorType::kQ2_K, {"Q2_K", 256, 84}},
    {TensorType::kQ3_K, {"Q3_K", 256, 110}},
    {TensorType::kQ4_K, {"Q4_K", 256, 144}},
    {TensorType::kQ5_K, {"Q5_K", 256, 176}},
    {TensorType::kQ6_K, {"Q6_K", 256, 210}},
    {TensorType::kQ8_K, {"Q8_K", 256, 292}},
    {TensorType::kIQ2_XXS, {"IQ2_XXS", 256, 66}},
    {TensorType::kIQ2_XS, {"IQ2_XS", 256, 74}},
    {TensorType::kIQ3_XXS, {"IQ3_XXS", 256, 98}},
    {TensorType::kIQ1_S, {"IQ1_S", 256, 50}},
    {TensorType::kIQ4_NL, {"IQ4_NL", 32, 18}},
    {TensorType::kIQ3_S, {"IQ3_S", 256, 110}},
    {TensorType::kIQ2_S, {"IQ2_S", 256, 82}},
    {TensorType::kIQ4_XS, {"IQ4_XS", 256, 136}},
    {TensorType::kI8, {"I8", 1, 1}},
    {TensorType::kI16, {"I16", 1, 2}},
    {TensorType::kI32, {"I32", 1, 4}},
    {TensorType::kI64, {"I64", 1, 8}},
    {TensorType::kF64, {"F64", 1, 8}},
    {TensorType::kIQ1_M, {"IQ1_M", 256, 56}},
    {TensorType::kBF16, {"BF16", 1, 2}},
    {TensorType::kTQ1_0, {"TQ1_0", 256, 54}},
    {TensorType::kTQ2_0, {"TQ2_0", 256, 66}},
    {TensorType::kMXFP4, {"MXFP4", 32, 17}},
};

}  // namespace

const TypeTraits* type_traits(TensorType type) {
  for (const NamedTraits& entry : kTraits) {
    if (entry.type == type) return &entry.traits;
  }
  return nullptr;
}

std::string_view retired_type_name(std::uint32_t number) {
  switch (number) {
    case 4:
      return "Q4_2";
    case 5:
      return "Q4_3";
    case 31:
      return "Q4_0_4_4";
    case 32:
      return "Q4_0_4_8";
    case 33:
      return "Q4_0_8_8";
    case 36:
      return "IQ4_NL_4_4";
    case 37:
      return "IQ4_NL_4_8";
    case 38:
      return "IQ4_NL_8_8";
    default:
      return "";
  }
}

std::string_view value_type_name(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
      return "uint8";
    case ValueType::kInt8:
      return "int8";
    case ValueType::kUint16:
      return "uint16";
    case ValueType::kInt16:
      return "int16";
    case ValueType::kUint32:
      return "uint32";
    case ValueType::kInt32:
      return "int32";
    case ValueType::kFloat32:
      return "float32";
    case ValueType::kBool:
      return "bool";
    case ValueType::kString:
      return "string";
    case ValueType::kArray:
      return "array";
    case ValueType::kUint64:
      return "uint64";
    case ValueType::kInt64:
      return "int64";
    case ValueType::kFloat64:
      return "float64";
  }
  return "unknown";
}

std::uint32_t value_type_bytes(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
      return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32:
      return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64:
      return 8;
    case ValueType::kString:
    case ValueType::kArray:
      return 0;
  }
  return 0;
}

}  // namespace kvasir::gguf
