// Repacking of GGUF tensors into blocks of 16 interleaved rows.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <optional>

#include "model/matrix.h"
#include "model/packed_layout.h"
#include "model/weight_blocks.h"
#include "simd/half.h"

namespace kvasir::model {
namespace {

using gguf::TensorInfo;

// Packed bytes after which the source is let go.
constexpr std::size_t kStripeBytes = std::size_t{8} << 20;

// Where a row of the stacked matrix lies in its file.
struct SourceRow {
  gguf::TensorType type = gguf::TensorType::kF32;
  const std::uint8_t* bytes = nullptr;
};

// The stacked tensors, with the number of rows before each.
class RowSource {
 public:
  explicit RowSource(std::span<const TensorInfo* const> tensors) : tensors_(tensors) {
    for (const TensorInfo* tensor : tensors) {
      first_rows_.push_back(n_rows_);
      n_rows_ += static_cast<std::int64_t>(tensor->shape[1]);
    }
  }
  SourceRow row(std::int64_t index) const {
    const auto after = std::upper_bound(first_rows_.begin(), first_rows_.end(), index);
    const std::size_t t = static_cast<std::size_t>(after - first_rows_.begin()) - 1;
    const TensorInfo& tensor = *tensors_[t];
    const std::size_t row_bytes = tensor.data.size() / tensor.shape[1];
    return {tensor.type,
            tensor.data.data() + static_cast<std::size_t>(index - first_rows_[t]) * row_bytes};
  }

 private:
  std::span<const TensorInfo* const> tensors_;
  std::vector<std::int64_t> first_rows_;
  std::int64_t n_rows_ = 0;
};

void store_scale(const PackedFormat& format, float value, std::uint8_t* scales, int index) {
  if (format.scale_f32) {
    std::memcpy(scales + 4 * index, &value, 4);
  } else {
    const std::uint16_t half = simd::f32_to_f16(value);  // exact: it was an f16 in the file
    std::memcpy(scales + 2 * index, &half, 2);
  }
}

// Writes one row's 32 codes into a unit, four columns at a time.
void store_codes(const PackedFormat& format, const std::int8_t* codes, int row,
                 std::uint8_t* unit) {
  std::uint32_t quads[8];
  std::uint8_t stored[kUnitCols];
  for (int i = 0; i < kUnitCols; ++i) {
    stored[i] = static_cast<std::uint8_t>(codes[i] + format.zero_point);
  }
  std::memcpy(quads, stored, sizeof(quads));
  for (int j = 0; j < (format.codes == PackedCodes::kW4 ? 4 : 8); ++j) {
    const std::uint32_t word =
        format.codes == PackedCodes::kW4 ? quads[j] | quads[j + 4] << 4 : quads[j];
    std::memcpy(unit + 64 * j + 4 * row, &word, 4);
  }
}

void pack_integer_row(const PackedFormat& format, const SourceRow& source, int n_cols, int row,
                      std::uint8_t* block) {
  const BlockUnpacker unpacker = block_unpacker(source.type);
  const std::size_t source_bytes = gguf::type_traits(source.type)->block_bytes;
  const int groups_per_unit = kUnitCols / format.group_cols;
  const std::uint8_t* bytes = source.bytes;
  UnpackedBlock unpacked;
  for (int col = 0; col < n_cols; col += unpacker.block_values, bytes += source_bytes) {
    unpacker.unpack(bytes, unpacked);
    for (int first = 0; first < unpacker.block_values; first += kUnitCols) {
      std::uint8_t* unit =
          block + static_cast<std::size_t>((col + first) / kUnitCols) * unit_bytes(format);
      store_codes(format, unpacked.codes + first, row, unit);
      std::uint8_t* scales = unit + code_bytes(format);
      std::uint8_t* minima = scales + scale_bytes(format);
      for (int g = 0; g < groups_per_unit; ++g) {
        const int group = first / format.group_cols + g;
        store_scale(format, unpacked.scales[group], scales, g * kBlockRows + row);
        if (format.has_minimum) {
          store_scale(format, unpacked.minima[group], minima, g * kBlockRows + row);
        }
      }
    }
  }
}

void pack_float_row(const PackedFormat& format, const SourceRow& source, int n_cols, int row,
                    std::uint8_t* block) {
  const std::size_t size = float_bytes(format);
  for (int col = 0; col < n_cols; ++col) {
    const std::size_t c = static_cast<std::size_t>(col);
    std::memcpy(block + (c * kBlockRows + static_cast<std::size_t>(row)) * size,
                source.bytes + c * size, size);
  }
}

// Lets the memory of a tensor's rows [begin, end) go.
void drop_rows(const gguf::File& file, const TensorInfo& tensor, std::int64_t begin,
               std::int64_t end) {
  const std::size_t row_bytes = tensor.data.size() / tensor.shape[1];
  TensorInfo rows = tensor;
  rows.file_offset += static_cast<std::uint64_t>(begin) * row_bytes;
  rows.data = tensor.data.subspan(static_cast<std::size_t>(begin) * row_bytes,
                                  static_cast<std::size_t>(end - begin) * row_bytes);
  file.drop(rows);
}

Error bad_shape(const TensorInfo& tensor, std::string what) {
  return Error{ErrorCode::kInvalidModel,
               fmt::format("matrix: tensor '{}' {}", tensor.name, std::move(what))};
}

// The number of rows of all tensors, once they are known to stack.
Result<std::int64_t> check_stack(std::span<const TensorInfo* const> tensors,
                                 const PackedFormat& format) {
  std::uint64_t n_rows = 0;
  const std::uint64_t n_cols = tensors[0]->shape[0];
  for (const TensorInfo* tensor : tensors) {
    if (tensor->shape[2] != 1 || tensor->shape[3] != 1) {
      return bad_shape(*tensor,
                       fmt::format("is no matrix; got {} dimensions, want 2", tensor->n_dims));
    }
    if (tensor->shape[0] != n_cols) {
      return bad_shape(*tensor, fmt::format("does not stack on '{}'; got {} columns, want {}",
                                            tensors[0]->name, tensor->shape[0], n_cols));
    }
    KVASIR_ASSIGN_OR_RETURN(const PackedFormat own, Matrix::format_for(tensor->type));
    if (own != format) {
      return bad_shape(*tensor, fmt::format("does not stack on '{}'; got format {}, want {}",
                                            tensors[0]->name, own.name(), format.name()));
    }
    const gguf::TypeTraits& traits = *gguf::type_traits(tensor->type);
    const std::uint64_t unit = is_integer(format) ? kUnitCols : 1;
    if (n_cols % std::max<std::uint64_t>(unit, traits.block_values) != 0) {
      return bad_shape(*tensor, fmt::format("has part of a block; got {} columns, want a multiple "
                                            "of {}",
                                            n_cols, traits.block_values));
    }
    if (tensor->shape[1] > INT_MAX || n_cols > INT_MAX || tensor->n_values() == 0 ||
        tensor->data.size() != tensor->n_values() / traits.block_values * traits.block_bytes) {
      return bad_shape(*tensor, fmt::format("has {} B of data for {} x {} values",
                                            tensor->data.size(), n_cols, tensor->shape[1]));
    }
    n_rows += tensor->shape[1];
  }
  if (n_rows > INT_MAX - kBlockRows) {
    return bad_shape(*tensors[0], fmt::format("has too many rows; got {}", n_rows));
  }
  return static_cast<std::int64_t>(n_rows);
}

}  // namespace

Result<Matrix> Matrix::pack(const gguf::File& file, std::span<const TensorInfo* const> tensors,
                            ThreadPool& pool, WeightArena* arena) {
  KVASIR_CHECK(!tensors.empty());
  KVASIR_ASSIGN_OR_RETURN(const PackedFormat format, format_for(tensors[0]->type));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t n_rows, check_stack(tensors, format));

  Matrix matrix;
  matrix.n_rows_ = static_cast<int>(n_rows);
  matrix.n_cols_ = static_cast<int>(tensors[0]->shape[0]);
  matrix.format_ = format;
  matrix.block_bytes_ = model::block_bytes(format, matrix.n_cols_);
  std::optional<WeightArena> own;
  if (arena == nullptr) arena = &own.emplace(WeightArena::rounded(matrix.packed_bytes()));
  std::uint8_t* const packed = arena->take(matrix.packed_bytes());
  matrix.packed_ = packed;
  matrix.memory_ = arena->memory();

  const RowSource source(tensors);
  const auto pack_block = [&](std::int64_t b) {
    std::uint8_t* block = packed + static_cast<std::size_t>(b) * matrix.block_bytes_;
    for (std::int64_t row = b * kBlockRows; row < std::min(n_rows, (b + 1) * kBlockRows); ++row) {
      const int lane = static_cast<int>(row % kBlockRows);
      if (is_integer(format)) {
        pack_integer_row(format, source.row(row), matrix.n_cols_, lane, block);
      } else {
        pack_float_row(format, source.row(row), matrix.n_cols_, lane, block);
      }
    }
  };
  // Stripe by stripe, so that of a large tensor (an embedding) little is resident twice.
  const std::int64_t n_blocks = matrix.n_blocks();
  const auto stripe = static_cast<std::int64_t>(kStripeBytes / matrix.block_bytes_ + 1);
  for (std::int64_t first = 0; first < n_blocks; first += stripe) {
    const std::int64_t n = std::min(stripe, n_blocks - first);
    pool.parallel_for(n, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) pack_block(first + b);
    });
    if (tensors.size() == 1) {
      drop_rows(file, *tensors[0], first * kBlockRows, std::min(n_rows, (first + n) * kBlockRows));
    }
  }
  for (const TensorInfo* tensor : tensors) file.drop(*tensor);
  return matrix;
}

}  // namespace kvasir::model
