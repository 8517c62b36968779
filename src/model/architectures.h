// The architectures that can run, one table row each: what differs between them and nothing else.
//
// To add one: a row in `kArchitectures` (architectures.cc), a rule function if it has
// hyperparameters of its own, and a vector in tests/data/arch_vectors.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "model/config.h"
#include "model/hyperparameters.h"

namespace kvasir::model {

/// The base frequencies of both layer kinds, which a rule may change.
struct RopeRule {
  bool window_layers_differ = false;  ///< window layers use `window_base`, unstretched
  double window_base = 10000.0;
};

struct Architecture {
  std::string_view name;
  RopePairing pairing = RopePairing::kNeighbours;
  Activation activation = Activation::kSilu;
  bool partial_rope = true;  ///< may rotate fewer elements than a head has
  bool has_pre_norms = true;
  bool has_post_norms = false;
  bool has_qk_norm = false;
  bool qk_norm_spans_heads = false;
  bool fused_qkv = false;
  bool fused_gate_up = false;
  /// Reads what only this architecture has; the common fields are already set. May be null.
  Status (*rule)(const Hyperparameters& hparams, ModelConfig& config, RopeRule& rope) = nullptr;
};

/// Null for a name that nothing here can run.
const Architecture* find_architecture(std::string_view name);

/// "llama, qwen2, ...", for messages.
std::string architecture_names();

}  // namespace kvasir::model
