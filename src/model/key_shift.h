// Moves cached keys to other positions: K is stored after rope, and turning it once more by the
// rope of a distance gives the key as if its token stood that far away.
#pragma once

#include <array>
#include <vector>

#include "base/types.h"
#include "model/config.h"

namespace kvasir::model {

/// The rotation by one distance, for every layer of a model. Only rope is corrected: what a token
/// saw of others stays what it was at the old place.
/// Thread safety: immutable.
class KeyShift {
 public:
  /// `shift`: new position - old position, of any sign. `config` must outlive this.
  KeyShift(const ModelConfig& config, int shift);

  /// Turns keys in place; nothing happens in layers without rope. YaRN's magnitude, which the keys
  /// have already, is not applied again.
  /// Shapes: keys [n_rows][n_kv_heads][head_dim], rows side by side.
  void apply(int layer, int n_rows, float* keys) const;

 private:
  /// Of one of ModelConfig::rope.
  struct Rotation {
    RopeTable table;
    std::vector<float> cos, sin;
  };
  const ModelConfig& config_;
  std::array<Rotation, 2> rotations_;
};

}  // namespace kvasir::model
