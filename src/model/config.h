// Hyperparameters of a model, read from GGUF metadata and validated once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/file.h"
#include "model/ops.h"

namespace kvasir::model {

enum class Activation : std::uint8_t { kSilu, kGelu };

struct ModelConfig {
  std::string architecture;  ///< "llama", "qwen3", "gemma3", ...
  std::string name;          ///< general.name, may be empty
  int n_layers = 0;
  int n_embd = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int n_ff = 0;
  int vocab_size = 0;
  int n_ctx_train = 0;
  float rms_eps = 1e-5f;

  Activation activation = Activation::kSilu;
  float embedding_scale = 1.0f;      ///< gemma: sqrt(n_embd)
  float attention_scale = 0.0f;      ///< multiplies q . k
  float attention_softcap = 0.0f;    ///< 0: none (gemma2: 50)
  float final_softcap = 0.0f;        ///< 0: none (gemma2: 30)
  bool has_pre_norms = true;         ///< norms before attention and feed-forward (all but olmo2)
  bool has_qk_norm = false;          ///< RMS norm of each q and k head (qwen3, gemma3)
  bool qk_norm_spans_heads = false;  ///< ... of all heads of a row together (olmo2)
  bool has_post_norms = false;       ///< norms after attention and feed-forward (gemma2, gemma3)
  bool fused_qkv = false;            ///< one attn_qkv tensor (phi3)
  bool fused_gate_up = false;        ///< one ffn_up tensor holding gate then up (phi3)

  int window = 0;                     ///< of the sliding-window layers; 0: none
  std::vector<bool> is_window_layer;  ///< [n_layers]
  std::vector<bool> is_rope_layer;    ///< [n_layers]; false: positions are not encoded (smollm3)
  /// Rope per layer kind: [0] full attention, [1] sliding window (gemma3's local base).
  RopeTable rope[2];

  /// `n_ctx` is the longest context that will be run (0: n_ctx_train); only LongRoPE depends on it.
  /// Errors: kInvalidModel, kUnsupported naming the architecture or the feature.
  static Result<ModelConfig> from_gguf(const gguf::File& file, int n_ctx = 0);
};

}  // namespace kvasir::model
