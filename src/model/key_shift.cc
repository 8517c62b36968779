#include "model/key_shift.h"

namespace kvasir::model {

KeyShift::KeyShift(const ModelConfig& config, int shift) : config_(config) {
  for (std::size_t i = 0; i < rotations_.size(); ++i) {
    Rotation& rotation = rotations_[i];
    rotation.table = config.rope[i];
    rotation.table.magnitude = 1.0f;
    rotation.cos.resize(rotation.table.inverse_frequency.size());
    rotation.sin.resize(rotation.cos.size());
    rope_angles(rotation.table, shift, rotation.cos.data(), rotation.sin.data());
  }
}

void KeyShift::apply(int layer, int n_rows, float* keys) const {
  const auto layer_idx = static_cast<std::size_t>(layer);
  if (!config_.is_rope_layer[layer_idx]) return;
  const Rotation& rotation = rotations_[config_.is_window_layer[layer_idx] ? 1 : 0];
  rope(rotation.table, rotation.cos.data(), rotation.sin.data(), n_rows * config_.n_kv_heads,
       config_.head_dim, keys);
}

}  // namespace kvasir::model
