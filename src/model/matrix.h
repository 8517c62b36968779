// A weight matrix as kernels read it: repacked once at load, exact for every GGUF type.
//
// Rows are taken in blocks of 16, one row to a vector lane. Integer formats (architecture.md D6):
//
//   value = scale * code + minimum        scale, minimum per group of 16 or 32 columns
//   W4  code in 4 bits   Q4_0 Q4_1 Q4_K (groups of 32), Q2_K Q3_K (groups of 16)
//   W8  code in 8 bits   Q5_0 Q5_1 Q8_0 Q5_K IQ4_NL IQ4_XS (32), Q6_K (16)
//   float   F32, F16, BF16 as they are
//
// Scales are f16 where the GGUF type stores f16 scales, f32 where it stores products (K types).
// Byte layout of a block: model/packed_layout.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "gguf/file.h"

namespace kvasir::model {

inline constexpr int kBlockRows = 16;

enum class PackedCodes : std::uint8_t { kW4, kW8, kF32, kF16, kBF16 };

/// How a block of 16 rows is laid out; the kernels have one instance per value in use.
struct PackedFormat {
  PackedCodes codes = PackedCodes::kF32;
  int group_cols = 32;     ///< 16 or 32; integer formats only
  bool scale_f32 = false;  ///< else f16
  bool has_minimum = false;
  /// Codes are stored as code + zero_point, so that the stored byte is never negative: 128 in W8, 8
  /// in Q4_0, 4 in Q3_K, else 0.
  int zero_point = 0;
  bool operator==(const PackedFormat&) const = default;
  std::string name() const;  ///< "w4 g32 f16 min"
};

/// One stretch of memory for many matrices, in the order in which a pass reads them: huge pages
/// also for small matrices, and a fetch ahead that runs into the next one (measured at 553 KB a
/// matrix: 1.2x the GEMV on 4 KiB pages).
class WeightArena {
 public:
  explicit WeightArena(std::uint64_t bytes);
  /// Bytes that a matrix of `packed_bytes` takes.
  static std::uint64_t rounded(std::uint64_t packed_bytes);
  /// The next `bytes`, zeroed, 64-byte aligned. Requires: the arena has as many left.
  std::uint8_t* take(std::uint64_t bytes);
  const std::shared_ptr<AlignedBuffer>& memory() const { return memory_; }

 private:
  std::shared_ptr<AlignedBuffer> memory_;
  std::uint64_t n_taken_ = 0;
};

class Matrix {
 public:
  Matrix() = default;
  /// The format this GGUF type is packed into. Errors: kUnsupported naming the type.
  static Result<PackedFormat> format_for(gguf::TensorType type);

  /// Stacks the rows of `tensors` (all [n_cols, n_rows_i] in GGUF order, one packed format) into
  /// one matrix in `arena` (null: one of its own), in parallel, and lets each source's memory go.
  /// Errors: kUnsupported (type), kInvalidModel (shape; columns not a multiple of the group).
  static Result<Matrix> pack(const gguf::File& file,
                             std::span<const gguf::TensorInfo* const> tensors, ThreadPool& pool,
                             WeightArena* arena = nullptr);

  int n_rows() const { return n_rows_; }
  int n_cols() const { return n_cols_; }
  const PackedFormat& format() const { return format_; }
  std::uint64_t packed_bytes() const {
    return static_cast<std::uint64_t>(n_blocks()) * block_bytes_;
  }

  /// Bytes of one block of 16 rows, and its start. Rows beyond n_rows() are zero.
  std::size_t block_bytes() const { return block_bytes_; }
  int n_blocks() const { return (n_rows_ + kBlockRows - 1) / kBlockRows; }
  const std::uint8_t* block(int block_idx) const {
    return packed_ + static_cast<std::size_t>(block_idx) * block_bytes_;
  }

  /// One row as floats: exactly the GGUF type's own dequantization. Shape: out [n_cols].
  void dequantize_row(int row, float* out) const;

 private:
  int n_rows_ = 0, n_cols_ = 0;
  PackedFormat format_;
  std::size_t block_bytes_ = 0;
  const std::uint8_t* packed_ = nullptr;
  std::shared_ptr<const AlignedBuffer> memory_;  ///< keeps `packed_` alive
};

/// Bytes `pack` will allocate for these shapes: what `plan` and the budget use.
std::uint64_t packed_bytes(const PackedFormat& format, int n_rows, int n_cols);

/// Plain dequantization of GGUF weight blocks to floats, type by type; the oracle of the packing.
/// Requires: data.size() is n_values' worth of whole blocks. Errors: kUnsupported naming the type.
Status dequantize(gguf::TensorType type, std::span<const std::uint8_t> data, std::uint64_t n_values,
                  float* out);

}  // namespace kvasir::model
