// q and K of a chunk as if it had been read all over a model's context.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/types.h"
#include "model/config.h"

namespace kvasir::eval {

/// Turns q and K by rope, each tile of 64 tokens to a place of its own: moments of a chunk's first
/// positions alone say little of those that rope has turned further. (A basis of K from chunks of
/// 2048 tokens was worse than none at 8192: docs/kv-quantization.md.)
class ScatteredRows {
 public:
  /// `config` must outlive this.
  explicit ScatteredRows(const model::ModelConfig& config);

  /// Before each chunk, which has so many tokens at most.
  void next_chunk(int n_tokens);

  /// A layer's rows of the chunk's tokens [first, first + n), turned: valid until the next call.
  /// Shapes: rows [n] of q heads, then K's, `stride` floats apart, rotated; result [n] of the same
  /// side by side
  std::span<const float> turn(int layer, Position first, int n, const float* rows,
                              std::size_t stride);

  /// Where in the context tile `tile` of the chunk is moved, in tiles. Van der Corput's sequence:
  /// whatever their number, places are spread evenly.
  int place_of(int tile) const;

 private:
  const model::ModelConfig& config_;
  int n_places_;
  int first_tile_ = 0, n_chunk_tiles_ = 0;  ///< of all chunks together
  std::vector<float> turned_;
};

}  // namespace kvasir::eval
