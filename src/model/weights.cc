#include "model/weights.h"

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <utility>

#include "gguf/printable.h"

namespace kvasir::model {
namespace {

Error invalid(std::string message) { return {ErrorCode::kInvalidModel, std::move(message)}; }

/// A tensor of a projection: its name and the outputs it gives.
struct Part {
  const char* name;
  int n_rows;
};

/// First pass: finds and checks all tensors and copies the small ones. Second pass: packs.
class Loader {
 public:
  Loader(const gguf::File& file, const ModelConfig& config, Weights& weights)
      : file_(file), config_(config), weights_(weights) {}

  Status plan();
  std::uint64_t planned_bytes() const { return packed_bytes_ + vector_bytes_; }
  Status pack(ThreadPool& pool, const std::function<void(double)>& progress);

 private:
  struct PlannedMatrix {
    Matrix* target;
    std::vector<const gguf::TensorInfo*> tensors;
    std::uint64_t bytes;
  };

  Status plan_outer();
  Status plan_layer(int layer_idx);
  Status plan_attention(const std::string& prefix, Layer& layer);
  Status plan_feed_forward(const std::string& prefix, Layer& layer);
  Status plan_projection(const std::string& prefix, std::span<const Part> parts, int n_cols,
                         Projection& projection);
  Status plan_bias(const std::string& prefix, std::span<const Part> parts, Projection& projection);
  Status plan_matrix(std::vector<const gguf::TensorInfo*> tensors, Matrix& target);
  Status read_vector(const std::string& name, int n, std::vector<float>& out);
  Status check_all_used() const;

  /// Null when absent; marks it as known.
  const gguf::TensorInfo* find(const std::string& name);
  Result<const gguf::TensorInfo*> require(const std::string& name, int n_cols, int n_rows);

  const gguf::File& file_;
  const ModelConfig& config_;
  Weights& weights_;
  std::unordered_set<std::string> known_;
  std::vector<PlannedMatrix> planned_;
  std::uint64_t packed_bytes_ = 0, vector_bytes_ = 0;
};

const gguf::TensorInfo* Loader::find(const std::string& name) {
  const gguf::TensorInfo* tensor = file_.tensor(name);
  if (tensor != nullptr) known_.insert(name);
  return tensor;
}

Result<const gguf::TensorInfo*> Loader::require(const std::string& name, int n_cols, int n_rows) {
  const gguf::TensorInfo* tensor = find(name);
  if (tensor == nullptr) return invalid(fmt::format("model: tensor '{}' is missing", name));
  const auto& shape = tensor->shape;
  if (shape[0] != static_cast<std::uint64_t>(n_cols) ||
      shape[1] != static_cast<std::uint64_t>(n_rows) || shape[2] != 1 || shape[3] != 1) {
    return invalid(
        fmt::format("model: tensor '{}' has a wrong shape; got [{}, {}, {}, {}], "
                    "want [{}, {}]",
                    name, shape[0], shape[1], shape[2], shape[3], n_cols, n_rows));
  }
  return tensor;
}

/// Norms and biases stay floats; quantized ones do not occur in any known file.
Status Loader::read_vector(const std::string& name, int n, std::vector<float>& out) {
  KVASIR_ASSIGN_OR_RETURN(const gguf::TensorInfo* tensor, require(name, n, 1));
  if (tensor->type != gguf::TensorType::kF32 && tensor->type != gguf::TensorType::kF16 &&
      tensor->type != gguf::TensorType::kBF16) {
    const gguf::TypeTraits* traits = gguf::type_traits(tensor->type);
    return Error{ErrorCode::kUnsupported,
                 fmt::format("model: tensor '{}' has an unsupported type; got {}, want F32, F16 or "
                             "BF16",
                             name, traits != nullptr ? traits->name : "?")};
  }
  const std::size_t begin = out.size();
  out.resize(begin + static_cast<std::size_t>(n));
  vector_bytes_ += static_cast<std::uint64_t>(n) * sizeof(float);
  return dequantize(tensor->type, tensor->data, static_cast<std::uint64_t>(n), out.data() + begin);
}

Status Loader::plan_matrix(std::vector<const gguf::TensorInfo*> tensors, Matrix& target) {
  KVASIR_ASSIGN_OR_RETURN(const PackedFormat format, Matrix::format_for(tensors[0]->type));
  int n_rows = 0;
  for (const gguf::TensorInfo* tensor : tensors) n_rows += static_cast<int>(tensor->shape[1]);
  const std::uint64_t bytes =
      WeightArena::rounded(packed_bytes(format, n_rows, static_cast<int>(tensors[0]->shape[0])));
  packed_bytes_ += bytes;
  planned_.push_back({&target, std::move(tensors), bytes});
  return {};
}

Status Loader::plan_projection(const std::string& prefix, std::span<const Part> parts, int n_cols,
                               Projection& projection) {
  projection.n_inputs = n_cols;
  std::vector<std::vector<const gguf::TensorInfo*>> runs;  // neighbours of one packed format
  PackedFormat last_format;
  for (const Part& part : parts) {
    const std::string name = prefix + part.name + ".weight";
    KVASIR_ASSIGN_OR_RETURN(const gguf::TensorInfo* tensor, require(name, n_cols, part.n_rows));
    auto format = Matrix::format_for(tensor->type);
    if (!format) {
      return Error{format.error().code,
                   fmt::format("model: tensor '{}': {}", name, format.error().message)};
    }
    if (runs.empty() || !(*format == last_format)) {
      runs.emplace_back();
      projection.parts.push_back({.matrix = {}, .first_col = projection.n_outputs});
    }
    runs.back().push_back(tensor);
    last_format = *format;
    projection.n_outputs += part.n_rows;
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    KVASIR_RETURN_IF_ERROR(plan_matrix(std::move(runs[i]), projection.parts[i].matrix));
  }
  return plan_bias(prefix, parts, projection);
}

/// Biases are optional; a part without one among parts with one gets zeros.
Status Loader::plan_bias(const std::string& prefix, std::span<const Part> parts,
                         Projection& projection) {
  bool any = false;
  for (const Part& part : parts) any |= file_.tensor(prefix + part.name + ".bias") != nullptr;
  if (!any) return {};
  for (const Part& part : parts) {
    const std::string name = prefix + part.name + ".bias";
    if (file_.tensor(name) == nullptr) {
      projection.bias.resize(projection.bias.size() + static_cast<std::size_t>(part.n_rows));
      vector_bytes_ += static_cast<std::uint64_t>(part.n_rows) * sizeof(float);
      continue;
    }
    KVASIR_RETURN_IF_ERROR(read_vector(name, part.n_rows, projection.bias));
  }
  return {};
}

Status Loader::plan_outer() {
  const ModelConfig& c = config_;
  KVASIR_ASSIGN_OR_RETURN(const gguf::TensorInfo* embedding,
                          require("token_embd.weight", c.n_embd, c.vocab_size));
  KVASIR_RETURN_IF_ERROR(plan_matrix({embedding}, weights_.token_embd));
  KVASIR_RETURN_IF_ERROR(read_vector("output_norm.weight", c.n_embd, weights_.output_norm));
  const Part output[] = {{"output", c.vocab_size}};
  if (file_.tensor("output.weight") != nullptr) {
    return plan_projection("", output, c.n_embd, weights_.output);
  }
  weights_.output.n_inputs = c.n_embd;
  weights_.output.n_outputs = c.vocab_size;
  return plan_bias("", output, weights_.output);
}

Status Loader::plan_attention(const std::string& prefix, Layer& layer) {
  const ModelConfig& c = config_;
  const int n_q = c.n_heads * c.head_dim, n_kv = c.n_kv_heads * c.head_dim;
  if (c.fused_qkv && file_.tensor(prefix + "attn_qkv.weight") != nullptr) {
    const Part fused[] = {{"attn_qkv", n_q + 2 * n_kv}};
    KVASIR_RETURN_IF_ERROR(plan_projection(prefix, fused, c.n_embd, layer.qkv));
  } else {
    const Part separate[] = {{"attn_q", n_q}, {"attn_k", n_kv}, {"attn_v", n_kv}};
    KVASIR_RETURN_IF_ERROR(plan_projection(prefix, separate, c.n_embd, layer.qkv));
  }
  if (c.has_qk_norm) {
    const int n_q_norm = c.qk_norm_spans_heads ? n_q : c.head_dim;
    const int n_k_norm = c.qk_norm_spans_heads ? n_kv : c.head_dim;
    KVASIR_RETURN_IF_ERROR(read_vector(prefix + "attn_q_norm.weight", n_q_norm, layer.q_norm));
    KVASIR_RETURN_IF_ERROR(read_vector(prefix + "attn_k_norm.weight", n_k_norm, layer.k_norm));
  }
  const Part out[] = {{"attn_output", c.n_embd}};
  return plan_projection(prefix, out, n_q, layer.attention_out);
}

Status Loader::plan_feed_forward(const std::string& prefix, Layer& layer) {
  const ModelConfig& c = config_;
  if (c.fused_gate_up) {
    const Part fused[] = {{"ffn_up", 2 * c.n_ff}};
    KVASIR_RETURN_IF_ERROR(plan_projection(prefix, fused, c.n_embd, layer.gate_up));
  } else {
    const Part separate[] = {{"ffn_gate", c.n_ff}, {"ffn_up", c.n_ff}};
    KVASIR_RETURN_IF_ERROR(plan_projection(prefix, separate, c.n_embd, layer.gate_up));
  }
  const Part down[] = {{"ffn_down", c.n_embd}};
  return plan_projection(prefix, down, c.n_ff, layer.ffn_down);
}

Status Loader::plan_layer(int layer_idx) {
  const std::string prefix = fmt::format("blk.{}.", layer_idx);
  Layer& layer = weights_.layers[static_cast<std::size_t>(layer_idx)];
  const int n_embd = config_.n_embd;
  if (config_.has_pre_norms) {
    KVASIR_RETURN_IF_ERROR(read_vector(prefix + "attn_norm.weight", n_embd, layer.attention_norm));
    KVASIR_RETURN_IF_ERROR(read_vector(prefix + "ffn_norm.weight", n_embd, layer.ffn_norm));
  }
  if (config_.has_post_norms) {
    KVASIR_RETURN_IF_ERROR(
        read_vector(prefix + "post_attention_norm.weight", n_embd, layer.attention_post_norm));
    KVASIR_RETURN_IF_ERROR(
        read_vector(prefix + "post_ffw_norm.weight", n_embd, layer.ffn_post_norm));
  }
  KVASIR_RETURN_IF_ERROR(plan_attention(prefix, layer));
  return plan_feed_forward(prefix, layer);
}

Status Loader::check_all_used() const {
  for (const gguf::TensorInfo& tensor : file_.tensors()) {
    if (known_.contains(tensor.name) || tensor.name == "rope_freqs.weight" ||
        tensor.name == "rope_factors_long.weight" || tensor.name == "rope_factors_short.weight") {
      continue;
    }
    return Error{ErrorCode::kUnsupported,
                 fmt::format("model: architecture '{}' has no use for tensor '{}'; got {} tensors, "
                             "want those of {} layers",
                             config_.architecture, gguf::printable(tensor.name, 64),
                             file_.tensors().size(), config_.n_layers)};
  }
  return {};
}

Status Loader::plan() {
  weights_.layers.resize(static_cast<std::size_t>(config_.n_layers));
  KVASIR_RETURN_IF_ERROR(plan_outer());
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    KVASIR_RETURN_IF_ERROR(plan_layer(layer));
  }
  return check_all_used();
}

Status Loader::pack(ThreadPool& pool, const std::function<void(double)>& progress) {
  WeightArena arena(packed_bytes_);
  std::uint64_t done = 0;
  for (PlannedMatrix& planned : planned_) {
    KVASIR_ASSIGN_OR_RETURN(*planned.target, Matrix::pack(file_, planned.tensors, pool, &arena));
    done += planned.bytes;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(packed_bytes_));
  }
  return {};
}

}  // namespace

Result<WeightReservation> WeightReservation::reserve(cache::ByteBudget& budget,
                                                     std::uint64_t bytes) {
  KVASIR_RETURN_IF_ERROR(budget.reserve(cache::MemoryOwner::kWeights, bytes));
  WeightReservation reservation;
  reservation.budget_ = &budget;
  reservation.bytes_ = bytes;
  return reservation;
}

WeightReservation::~WeightReservation() {
  if (budget_ != nullptr) budget_->release(cache::MemoryOwner::kWeights, bytes_);
}

Result<LoadedWeights> load_weights(const gguf::File& file, const ModelConfig& config,
                                   cache::ByteBudget& budget, ThreadPool& pool,
                                   const std::function<void(double)>& progress) {
  LoadedWeights loaded;
  Loader loader(file, config, loaded.weights);
  KVASIR_RETURN_IF_ERROR(loader.plan());
  KVASIR_ASSIGN_OR_RETURN(loaded.reservation,
                          WeightReservation::reserve(budget, loader.planned_bytes()));
  KVASIR_RETURN_IF_ERROR(loader.pack(pool, progress));
  return loaded;
}

}  // namespace kvasir::model
