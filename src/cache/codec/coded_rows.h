// Rows of int8 codes, written in place: int8 and int8-g64 (codec.h).
//
//   int8      the row's Hadamard transform (of K beside tiles, of its product with a calibrated
//             basis, key_basis.h); scale = f16(max |x| / 127), code = x / scale
//   int8-g64  the row; per 64 channels of least lo and greatest hi: scale = f16((hi - lo) / 254),
//             centre = f16((lo + hi) / 2), code = (x - centre) / scale
//
// Codes are rounded to nearest even and stay within -127..127; K's are stored + 128. A row, or
// group, that holds a value that is not finite, or too large for its scale, has the scale NaN and
// codes 0: whatever reads it gets NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/codec/codec.h"

namespace kvasir::cache {

/// Writes `n_tokens` rows of one kv head into lanes [lane, lane + n_tokens) of a strip.
///
/// Shapes    rows: row i at `rows + i * row_stride`, [head_dim]
///           basis: null, or what an int8 row is multiplied by first, [head_dim][head_dim]
/// Requires  a coded row codec; lane + n_tokens <= 16
void write_coded_strip(CodecId codec, bool is_v, int head_dim, const float* rows,
                       std::size_t row_stride, int lane, int n_tokens, std::uint8_t* codes,
                       std::uint8_t* meta, const float* basis = nullptr);

/// The row of one lane, in the basis that the model computes in, or the calibrated one. Shape: row
/// [head_dim].
void read_coded_row(CodecId codec, bool is_v, int head_dim, const std::uint8_t* codes,
                    const std::uint8_t* meta, int lane, float* row);

/// The same as it is stored: of a Hadamard codec, in that basis.
void read_stored_row(CodecId codec, bool is_v, int head_dim, const std::uint8_t* codes,
                     const std::uint8_t* meta, int lane, float* row);

}  // namespace kvasir::cache
