#include "model/config.h"

#include <fmt/format.h>

#include <cmath>

#include "gguf/printable.h"
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/rope_scaling.h"

namespace kvasir::model {
namespace {

// What a header may ask for (ux_reliability.md 3d); far above any model, far below overflow.
constexpr int kLayersMax = 1024;
constexpr int kEmbdMax = 1 << 16;
constexpr int kHeadsMax = 1 << 12;
constexpr int kFeedForwardMax = 1 << 20;
constexpr int kVocabMax = 4 << 20;
constexpr int kContextMax = 1 << 30;
// What the attention kernels take.
constexpr int kHeadDimMin = 8, kHeadDimMax = 512, kHeadDimMultiple = 8;

Error invalid(std::string message) { return {ErrorCode::kInvalidModel, std::move(message)}; }
Error unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }

Status read_sizes(const Hyperparameters& hparams, ModelConfig& config) {
  KVASIR_ASSIGN_OR_RETURN(config.n_layers, hparams.required_int("block_count", 1, kLayersMax));
  KVASIR_ASSIGN_OR_RETURN(config.n_embd, hparams.required_int("embedding_length", 1, kEmbdMax));
  KVASIR_ASSIGN_OR_RETURN(config.n_ff,
                          hparams.required_int("feed_forward_length", 1, kFeedForwardMax));
  KVASIR_ASSIGN_OR_RETURN(config.n_ctx_train,
                          hparams.required_int("context_length", 1, kContextMax));
  KVASIR_ASSIGN_OR_RETURN(const double eps,
                          hparams.positive_or("attention.layer_norm_rms_epsilon", 0.0));
  if (eps < 1e-30 || eps > 1.0) {
    return invalid(fmt::format("model: '{}' is missing or out of range; got {}, want 1e-30..1",
                               hparams.key("attention.layer_norm_rms_epsilon"), eps));
  }
  config.rms_eps = static_cast<float>(eps);
  KVASIR_ASSIGN_OR_RETURN(const int n_experts, hparams.int_or("expert_count", 0, 0, kHeadsMax));
  if (n_experts > 0) {
    return unsupported(fmt::format("model: mixtures of experts are not supported; got '{}' {}",
                                   hparams.key("expert_count"), n_experts));
  }
  return {};
}

Status read_heads(const Hyperparameters& hparams, ModelConfig& config) {
  KVASIR_ASSIGN_OR_RETURN(config.n_heads,
                          hparams.required_int("attention.head_count", 1, kHeadsMax));
  KVASIR_ASSIGN_OR_RETURN(config.n_kv_heads,
                          hparams.int_or("attention.head_count_kv", config.n_heads, 1, kHeadsMax));
  if (config.n_heads % config.n_kv_heads != 0) {
    return invalid(fmt::format("model: kv heads do not divide heads; got {} heads, {} kv heads",
                               config.n_heads, config.n_kv_heads));
  }
  if (!hparams.has("attention.key_length") && config.n_embd % config.n_heads != 0) {
    return invalid(fmt::format("model: heads do not divide the embedding; got {} heads, length {}",
                               config.n_heads, config.n_embd));
  }
  const int quotient = config.n_embd / config.n_heads;
  KVASIR_ASSIGN_OR_RETURN(config.head_dim,
                          hparams.int_or("attention.key_length", quotient, 1, kEmbdMax));
  KVASIR_ASSIGN_OR_RETURN(const int value_dim,
                          hparams.int_or("attention.value_length", quotient, 1, kEmbdMax));
  if (value_dim != config.head_dim) {
    return unsupported(fmt::format("model: key and value heads differ in length; got {} and {}",
                                   config.head_dim, value_dim));
  }
  if (config.head_dim < kHeadDimMin || config.head_dim > kHeadDimMax ||
      config.head_dim % kHeadDimMultiple != 0) {
    return unsupported(
        fmt::format("model: unsupported head length; got {}, want a multiple of {} "
                    "in {}..{}",
                    config.head_dim, kHeadDimMultiple, kHeadDimMin, kHeadDimMax));
  }
  return {};
}

/// The embedding's rows are the vocabulary; a tokenizer's tokens must each have one.
Status read_vocab_size(const gguf::File& file, ModelConfig& config) {
  const gguf::TensorInfo* embedding = file.tensor("token_embd.weight");
  if (embedding == nullptr) return invalid("model: tensor 'token_embd.weight' is missing");
  const std::uint64_t n_rows = embedding->shape[1];
  if (n_rows < 1 || n_rows > static_cast<std::uint64_t>(kVocabMax)) {
    return invalid(fmt::format("model: vocabulary is out of range; got {} tokens, want 1..{}",
                               n_rows, kVocabMax));
  }
  config.vocab_size = static_cast<int>(n_rows);
  KVASIR_ASSIGN_OR_RETURN(const gguf::Array* tokens, file.get_array("tokenizer.ggml.tokens"));
  if (tokens != nullptr && tokens->size() > n_rows) {
    return invalid(
        fmt::format("model: vocabulary and embedding disagree; got {} tokens, want at most "
                    "{}",
                    tokens->size(), n_rows));
  }
  return {};
}

void set_common(const Architecture& architecture, ModelConfig& config) {
  config.activation = architecture.activation;
  config.has_pre_norms = architecture.has_pre_norms;
  config.has_post_norms = architecture.has_post_norms;
  config.has_qk_norm = architecture.has_qk_norm;
  config.qk_norm_spans_heads = architecture.qk_norm_spans_heads;
  config.fused_qkv = architecture.fused_qkv;
  config.fused_gate_up = architecture.fused_gate_up;
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  config.is_window_layer.assign(static_cast<std::size_t>(config.n_layers), false);
  config.is_rope_layer.assign(static_cast<std::size_t>(config.n_layers), true);
}

Status read_rope(const Hyperparameters& hparams, const Architecture& architecture,
                 const RopeRule& rule, int n_ctx, ModelConfig& config) {
  KVASIR_ASSIGN_OR_RETURN(
      RopeParams params,
      read_rope_params(hparams, architecture.pairing, config.head_dim, config.n_ctx_train,
                       n_ctx > 0 ? n_ctx : config.n_ctx_train));
  if (!architecture.partial_rope && params.n_rotated != config.head_dim) {
    return unsupported(fmt::format("model: '{}' differs from the head length; got {}, want {}",
                                   hparams.key("rope.dimension_count"), params.n_rotated,
                                   config.head_dim));
  }
  config.rope[0] = make_rope_table(params);
  if (rule.window_layers_differ) {
    RopeParams unstretched;
    unstretched.pairing = params.pairing;
    unstretched.n_rotated = params.n_rotated;
    unstretched.base = rule.window_base;
    params = unstretched;
  }
  config.rope[1] = make_rope_table(params);
  return {};
}

}  // namespace

Result<ModelConfig> ModelConfig::from_gguf(const gguf::File& file, int n_ctx) {
  KVASIR_ASSIGN_OR_RETURN(const auto name, file.get_string("general.architecture"));
  if (!name.has_value()) return invalid("model: 'general.architecture' is missing");
  const Architecture* architecture = find_architecture(*name);
  if (architecture == nullptr) {
    return unsupported(fmt::format("model: unknown architecture; got '{}', want one of {}",
                                   gguf::printable(*name, 64), architecture_names()));
  }
  const Hyperparameters hparams(file, std::string(*name));
  ModelConfig config;
  config.architecture = std::string(*name);
  KVASIR_ASSIGN_OR_RETURN(const auto title, file.get_string("general.name"));
  config.name = std::string(title.value_or(""));

  KVASIR_RETURN_IF_ERROR(read_sizes(hparams, config));
  KVASIR_RETURN_IF_ERROR(read_heads(hparams, config));
  KVASIR_RETURN_IF_ERROR(read_vocab_size(file, config));
  set_common(*architecture, config);
  RopeRule rope_rule;
  if (architecture->rule != nullptr) {
    KVASIR_RETURN_IF_ERROR(architecture->rule(hparams, config, rope_rule));
  }
  KVASIR_RETURN_IF_ERROR(read_rope(hparams, *architecture, rope_rule, n_ctx, config));
  return config;
}

}  // namespace kvasir::model
