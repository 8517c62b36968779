// Where a packed block of 16 weight rows keeps its codes, scales and minima.
//
// Integer formats: one unit per 32 columns, units in column order.
//
//   W4  4 x 64 B: byte 4r + i of line j holds, for row r, column 4j + i in its low nibble and
//   column
//       16 + 4j + i in its high nibble
//   W8  8 x 64 B: byte 4r + i of line j holds, for row r, column 4j + i
//   then [groups of the unit][16 rows] scales, then as many minima if the format has them
//
// W4 in groups of 32 with f16 scales and minima: 256 + 32 + 32 = 320 B, five cache lines.
// Float formats: [n_cols][16 rows].
#pragma once

#include <cstddef>

#include "model/matrix.h"

namespace kvasir::model {

inline constexpr int kUnitCols = 32;

constexpr bool is_integer(const PackedFormat& format) {
  return format.codes == PackedCodes::kW4 || format.codes == PackedCodes::kW8;
}

constexpr std::size_t code_bytes(const PackedFormat& format) {
  return format.codes == PackedCodes::kW4 ? 256 : 512;
}
/// Of all scales of a unit; minima take as much again.
constexpr std::size_t scale_bytes(const PackedFormat& format) {
  return static_cast<std::size_t>(kUnitCols / format.group_cols) * kBlockRows *
         (format.scale_f32 ? 4 : 2);
}
constexpr std::size_t unit_bytes(const PackedFormat& format) {
  return code_bytes(format) + scale_bytes(format) * (format.has_minimum ? 2 : 1);
}
constexpr std::size_t float_bytes(const PackedFormat& format) {
  return format.codes == PackedCodes::kF32 ? 4 : 2;
}
constexpr std::size_t block_bytes(const PackedFormat& format, int n_cols) {
  const std::size_t cols = static_cast<std::size_t>(n_cols);
  return is_integer(format) ? cols / kUnitCols * unit_bytes(format)
                            : cols * kBlockRows * float_bytes(format);
}

}  // namespace kvasir::model
