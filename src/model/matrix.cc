#include "model/matrix.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"
#include "base/units.h"
#include "model/packed_layout.h"
#include "model/weight_blocks.h"
#include "simd/half.h"

namespace kvasir::model {

using gguf::TensorType;

namespace {

std::string type_name(TensorType type) {
  const gguf::TypeTraits* traits = gguf::type_traits(type);
  return traits != nullptr ? std::string(traits->name)
                           : fmt::format("type {}", static_cast<std::uint32_t>(type));
}

Error unsupported(TensorType type) {
  return Error{ErrorCode::kUnsupported,
               fmt::format("matrix: no kernel for weights of type {}", type_name(type))};
}

template <class T>
T load(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float load_scale(const PackedFormat& format, const std::uint8_t* scales, int index) {
  return format.scale_f32 ? load<float>(scales + 4 * index)
                          : simd::f16_to_f32(load<std::uint16_t>(scales + 2 * index));
}

// Stored code of column `col` (0..31) of a unit, still with its zero point.
int stored_code(const PackedFormat& format, const std::uint8_t* unit, int row, int col) {
  if (format.codes == PackedCodes::kW8) return unit[col / 4 * 64 + row * 4 + col % 4];
  const int byte = unit[col % 16 / 4 * 64 + row * 4 + col % 4];
  return col < 16 ? byte & 15 : byte >> 4;
}

void dequantize_unit(const PackedFormat& format, const std::uint8_t* unit, int row, float* out) {
  const std::uint8_t* scales = unit + code_bytes(format);
  const std::uint8_t* minima = scales + scale_bytes(format);
  for (int col = 0; col < kUnitCols; ++col) {
    const int lane = col / format.group_cols * kBlockRows + row;
    const float code = static_cast<float>(stored_code(format, unit, row, col) - format.zero_point);
    const float product = load_scale(format, scales, lane) * code;
    out[col] = format.has_minimum ? product + load_scale(format, minima, lane) : product;
  }
}

}  // namespace

std::string PackedFormat::name() const {
  switch (codes) {
    case PackedCodes::kF32:
      return "f32";
    case PackedCodes::kF16:
      return "f16";
    case PackedCodes::kBF16:
      return "bf16";
    default:
      break;
  }
  std::string name = fmt::format("{} g{} {}", codes == PackedCodes::kW4 ? "w4" : "w8", group_cols,
                                 scale_f32 ? "f32" : "f16");
  if (has_minimum) name += " min";
  return name;
}

Result<PackedFormat> Matrix::format_for(TensorType type) {
  constexpr auto kW4 = PackedCodes::kW4;
  constexpr auto kW8 = PackedCodes::kW8;
  switch (type) {
    case TensorType::kF32:
      return PackedFormat{.codes = PackedCodes::kF32};
    case TensorType::kF16:
      return PackedFormat{.codes = PackedCodes::kF16};
    case TensorType::kBF16:
      return PackedFormat{.codes = PackedCodes::kBF16};
    case TensorType::kQ4_0:
      return PackedFormat{kW4, 32, false, false, 8};
    case TensorType::kQ4_1:
      return PackedFormat{kW4, 32, false, true, 0};
    case TensorType::kQ4_K:
      return PackedFormat{kW4, 32, true, true, 0};
    case TensorType::kQ2_K:
      return PackedFormat{kW4, 16, true, true, 0};
    case TensorType::kQ3_K:
      return PackedFormat{kW4, 16, true, false, 4};
    case TensorType::kQ5_0:
    case TensorType::kQ8_0:
    case TensorType::kIQ4_NL:
      return PackedFormat{kW8, 32, false, false, 128};
    case TensorType::kQ5_1:
      return PackedFormat{kW8, 32, false, true, 128};
    case TensorType::kQ5_K:
      return PackedFormat{kW8, 32, true, true, 128};
    case TensorType::kIQ4_XS:
      return PackedFormat{kW8, 32, true, false, 128};
    case TensorType::kQ6_K:
      return PackedFormat{kW8, 16, true, false, 128};
    default:
      return unsupported(type);
  }
}

std::uint64_t packed_bytes(const PackedFormat& format, int n_rows, int n_cols) {
  const std::uint64_t n_blocks = (static_cast<std::uint64_t>(n_rows) + kBlockRows - 1) / kBlockRows;
  return n_blocks * block_bytes(format, n_cols);
}

namespace {
constexpr std::uint64_t kLineBytes = 64;  // a unit begins at a cache line
}  // namespace

WeightArena::WeightArena(std::uint64_t bytes)
    : memory_(std::make_shared<AlignedBuffer>(static_cast<std::size_t>(bytes))) {}

std::uint64_t WeightArena::rounded(std::uint64_t packed_bytes) {
  return round_up(packed_bytes, kLineBytes);
}

std::uint8_t* WeightArena::take(std::uint64_t bytes) {
  KVASIR_CHECK(bytes <= memory_->size() - n_taken_);
  std::uint8_t* at = memory_->data() + n_taken_;
  n_taken_ += rounded(bytes);
  return at;
}

void Matrix::dequantize_row(int row, float* out) const {
  KVASIR_CHECK(row >= 0 && row < n_rows_);
  const std::uint8_t* bytes = block(row / kBlockRows);
  const int lane = row % kBlockRows;
  if (is_integer(format_)) {
    for (int col = 0; col < n_cols_; col += kUnitCols, bytes += unit_bytes(format_)) {
      dequantize_unit(format_, bytes, lane, out + col);
    }
    return;
  }
  bytes += static_cast<std::size_t>(lane) * float_bytes(format_);
  const std::size_t step = kBlockRows * float_bytes(format_);
  for (int col = 0; col < n_cols_; ++col, bytes += step) {
    if (format_.codes == PackedCodes::kF32) {
      out[col] = load<float>(bytes);
    } else if (format_.codes == PackedCodes::kF16) {
      out[col] = simd::f16_to_f32(load<std::uint16_t>(bytes));
    } else {
      out[col] = simd::bf16_to_f32(load<std::uint16_t>(bytes));
    }
  }
}

Status dequantize(TensorType type, std::span<const std::uint8_t> data, std::uint64_t n_values,
                  float* out) {
  KVASIR_ASSIGN_OR_RETURN(const PackedFormat format, Matrix::format_for(type));
  const gguf::TypeTraits& traits = *gguf::type_traits(type);
  KVASIR_CHECK(n_values % traits.block_values == 0 &&
               data.size() == n_values / traits.block_values * traits.block_bytes);
  if (!is_integer(format)) {
    for (std::uint64_t i = 0; i < n_values; ++i) {
      const std::uint8_t* bytes = data.data() + i * traits.block_bytes;
      if (type == TensorType::kF32) {
        out[i] = load<float>(bytes);
      } else if (type == TensorType::kF16) {
        out[i] = simd::f16_to_f32(load<std::uint16_t>(bytes));
      } else {
        out[i] = simd::bf16_to_f32(load<std::uint16_t>(bytes));
      }
    }
    return {};
  }
  const BlockUnpacker unpacker = block_unpacker(type);
  UnpackedBlock block;
  const std::uint8_t* bytes = data.data();
  for (std::uint64_t first = 0; first < n_values; first += traits.block_values) {
    unpacker.unpack(bytes, block);
    for (int i = 0; i < unpacker.block_values; ++i) {
      const int g = i / unpacker.group_cols;
      const float product = block.scales[g] * static_cast<float>(block.codes[i]);
      out[first + static_cast<std::uint64_t>(i)] =
          format.has_minimum ? product + block.minima[g] : product;
    }
    bytes += traits.block_bytes;
  }
  return {};
}

}  // namespace kvasir::model
