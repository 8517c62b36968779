#include "model/architectures.h"

#include <cmath>
#include <variant>

namespace kvasir::model {
namespace {

constexpr int kWindowMax = 1 << 30;

/// Every `period`-th layer attends to everything, the others to a window.
void set_window_pattern(int period, ModelConfig& config) {
  for (int layer = 0; layer < config.n_layers; ++layer) {
    config.is_window_layer[static_cast<std::size_t>(layer)] = layer % period < period - 1;
  }
}

/// "attention.sliding_window_pattern": a period, or one bool per layer.
Status read_window_pattern(const Hyperparameters& hparams, int default_period,
                           ModelConfig& config) {
  const std::string key = hparams.key("attention.sliding_window_pattern");
  const gguf::Value* value = hparams.file().find(key);
  if (value == nullptr || !std::holds_alternative<gguf::Array>(value->data)) {
    KVASIR_ASSIGN_OR_RETURN(const int period, hparams.int_or("attention.sliding_window_pattern",
                                                             default_period, 1, 1024));
    set_window_pattern(period, config);
    return {};
  }
  const gguf::Array& array = std::get<gguf::Array>(value->data);
  if (!array.is_integer() || array.size() != static_cast<std::size_t>(config.n_layers)) {
    return Error{ErrorCode::kInvalidModel, "model: '" + key + "' has a wrong shape; got " +
                                               std::to_string(array.size()) +
                                               " elements, want one integer or bool per layer"};
  }
  for (std::size_t layer = 0; layer < array.size(); ++layer) {
    config.is_window_layer[layer] = array.int_at(layer) != 0;
  }
  return {};
}

/// Gemma scales by 1/sqrt(query_pre_attn_scalar), which GGUF does not store: it is head_dim but for
/// the 27B models, told by their depth, where it is n_embd / n_heads (as llama.cpp decides).
float gemma_attention_scale(const ModelConfig& config, int n_layers_27b) {
  const int scalar =
      config.n_layers == n_layers_27b ? config.n_embd / config.n_heads : config.head_dim;
  return 1.0f / std::sqrt(static_cast<float>(scalar));
}

Status gemma2_rule(const Hyperparameters& hparams, ModelConfig& config, RopeRule&) {
  config.embedding_scale = std::sqrt(static_cast<float>(config.n_embd));
  config.attention_scale = gemma_attention_scale(config, 46);
  KVASIR_ASSIGN_OR_RETURN(const double attention_cap,
                          hparams.double_or("attn_logit_softcapping", 50.0, 0.0));
  KVASIR_ASSIGN_OR_RETURN(const double final_cap,
                          hparams.double_or("final_logit_softcapping", 30.0, 0.0));
  config.attention_softcap = static_cast<float>(attention_cap);
  config.final_softcap = static_cast<float>(final_cap);
  KVASIR_ASSIGN_OR_RETURN(config.window,
                          hparams.int_or("attention.sliding_window", 4096, 1, kWindowMax));
  return read_window_pattern(hparams, 2, config);
}

Status gemma3_rule(const Hyperparameters& hparams, ModelConfig& config, RopeRule& rope) {
  config.embedding_scale = std::sqrt(static_cast<float>(config.n_embd));
  config.attention_scale = gemma_attention_scale(config, 62);
  KVASIR_ASSIGN_OR_RETURN(const double final_cap,
                          hparams.double_or("final_logit_softcapping", 0.0, 0.0));
  config.final_softcap = static_cast<float>(final_cap);
  KVASIR_ASSIGN_OR_RETURN(config.window,
                          hparams.int_or("attention.sliding_window", 0, 0, kWindowMax));
  if (config.window == 0) return {};
  rope.window_layers_differ = true;
  KVASIR_ASSIGN_OR_RETURN(rope.window_base, hparams.positive_or("rope.freq_base_swa", 10000.0));
  return read_window_pattern(hparams, 6, config);
}

/// The window holds for every layer, as in the model's own code. (llama.cpp leaves it out, which
/// shows only beyond `window` tokens.)
Status phi3_rule(const Hyperparameters& hparams, ModelConfig& config, RopeRule&) {
  KVASIR_ASSIGN_OR_RETURN(config.window,
                          hparams.int_or("attention.sliding_window", 0, 0, kWindowMax));
  if (config.window >= config.n_ctx_train) config.window = 0;
  config.is_window_layer.assign(static_cast<std::size_t>(config.n_layers), config.window > 0);
  return {};
}

Status smollm3_rule(const Hyperparameters&, ModelConfig& config, RopeRule&) {
  for (int layer = 3; layer < config.n_layers; layer += 4) {
    config.is_rope_layer[static_cast<std::size_t>(layer)] = false;
  }
  return {};
}

/// OLMo 3 is OLMo 2 with windows, whose layers rotate unstretched.
Status olmo2_rule(const Hyperparameters& hparams, ModelConfig& config, RopeRule& rope) {
  KVASIR_ASSIGN_OR_RETURN(config.window,
                          hparams.int_or("attention.sliding_window", 0, 0, kWindowMax));
  if (config.window == 0) return {};
  rope.window_layers_differ = true;
  KVASIR_ASSIGN_OR_RETURN(const double base, hparams.positive_or("rope.freq_base", 10000.0));
  KVASIR_ASSIGN_OR_RETURN(rope.window_base, hparams.positive_or("rope.freq_base_swa", base));
  return read_window_pattern(hparams, 4, config);
}

constexpr RopePairing kHalves = RopePairing::kHalves;

// "attention.sliding_window" in a llama header (Mistral) is not read: llama.cpp, for which such
// files are made, attends to everything there.
constexpr Architecture kArchitectures[] = {
    {.name = "llama", .partial_rope = false},
    {.name = "qwen2", .pairing = kHalves},
    {.name = "qwen3", .pairing = kHalves, .has_qk_norm = true},
    {.name = "gemma2",
     .pairing = kHalves,
     .activation = Activation::kGelu,
     .has_post_norms = true,
     .rule = gemma2_rule},
    {.name = "gemma3",
     .pairing = kHalves,
     .activation = Activation::kGelu,
     .has_post_norms = true,
     .has_qk_norm = true,
     .rule = gemma3_rule},
    {.name = "phi3",
     .pairing = kHalves,
     .fused_qkv = true,
     .fused_gate_up = true,
     .rule = phi3_rule},
    {.name = "smollm3", .rule = smollm3_rule},
    {.name = "olmo2",
     .pairing = kHalves,
     .has_pre_norms = false,
     .has_post_norms = true,
     .has_qk_norm = true,
     .qk_norm_spans_heads = true,
     .rule = olmo2_rule},
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    if (!names.empty()) names += ", ";
    names += architecture.name;
  }
  return names;
}

}  // namespace kvasir::model
