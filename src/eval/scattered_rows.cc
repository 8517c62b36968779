#include "eval/scattered_rows.h"

#include <algorithm>

#include "cache/codec/codec.h"
#include "model/key_shift.h"

namespace kvasir::eval {

using cache::kTileTokens;

ScatteredRows::ScatteredRows(const model::ModelConfig& config)
    : config_(config), n_places_(std::max(1, config.n_ctx_train / kTileTokens)) {}

void ScatteredRows::next_chunk(int n_tokens) {
  first_tile_ += n_chunk_tiles_;
  n_chunk_tiles_ = (n_tokens + kTileTokens - 1) / kTileTokens;
}

int ScatteredRows::place_of(int tile) const {
  double place = 0, digit = 0.5;
  for (int i = first_tile_ + tile; i > 0; i /= 2, digit /= 2) place += i % 2 * digit;
  return static_cast<int>(place * n_places_);
}

std::span<const float> ScatteredRows::turn(int layer, Position first, int n, const float* rows,
                                           std::size_t stride) {
  const int n_heads = config_.n_heads + config_.n_kv_heads;
  const auto row_floats = static_cast<std::size_t>(n_heads * config_.head_dim);
  turned_.resize(static_cast<std::size_t>(n) * row_floats);
  float* to = turned_.data();
  for (Position pos = first; pos < first + n;) {
    const int tile = pos / kTileTokens;
    const model::KeyShift shift(config_, (place_of(tile) - tile) * kTileTokens);
    for (const Position end = std::min(first + n, (tile + 1) * kTileTokens); pos < end; ++pos) {
      std::copy(rows, rows + row_floats, to);
      // A row of q and K has as many heads as K alone of so many tokens.
      shift.apply(layer, n_heads / config_.n_kv_heads, to);
      rows += stride;
      to += row_floats;
    }
  }
  return turned_;
}

}  // namespace kvasir::eval
