#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "model/forward.h"
#include "model/weights.h"

namespace kvasir::model {

class Model::Impl {
 public:
  Impl(ModelConfig config, LoadedWeights loaded, ActivationMode mode)
      : config_(std::move(config)), loaded_(std::move(loaded)), mode_(mode) {}

  Status check(std::span<const ForwardItem> items) const;

  const ModelConfig config_;
  const LoadedWeights loaded_;
  const ActivationMode mode_;
  Workspace workspace_;
  Observers observers_;
};

namespace {

Status check_item(const ModelConfig& config, const ForwardItem& item) {
  const std::size_t n_tokens = item.tokens.size();
  if (item.n_logits < 0 || static_cast<std::size_t>(item.n_logits) > n_tokens) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("forward: more logits than tokens; got {}, want 0..{}", item.n_logits,
                             n_tokens)};
  }
  for (const TokenId token : item.tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("forward: token id out of range; got {}, want 0..{}", token,
                               config.vocab_size - 1)};
    }
  }
  // The caller appended the slots: anything else here is a bug, not an input.
  KVASIR_CHECK(item.first_pos >= 0);
  KVASIR_CHECK(item.layers.size() == static_cast<std::size_t>(config.n_layers));
  for (const cache::PagedKvView& view : item.layers) {
    KVASIR_CHECK(view.n_kv_heads == config.n_kv_heads && view.head_dim == config.head_dim);
    KVASIR_CHECK(view.n_tokens >= item.first_pos + static_cast<int>(n_tokens));
  }
  return {};
}

/// No infinity, no NaN: exponent bits not all ones.
bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7F800000;
  std::uint32_t n_bad = 0;
  const auto count = [&](auto part) {
    for (const float value : part) {
      n_bad += (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent;
    }
  };
  // Compilers make vectors of a loop whose length they know.
  constexpr std::size_t kPart = 64;
  for (; values.size() >= kPart; values = values.subspan(kPart)) {
    count(std::span<const float, kPart>(values.data(), kPart));
  }
  count(values);
  return n_bad == 0;
}

/// What of each item came out not finite.
std::vector<ItemFaults> faults_of(const ForwardPass& pass, std::span<const ForwardItem> items,
                                  std::span<const float> logits, int vocab_size) {
  std::vector<ItemFaults> faults;
  for (const ForwardItem& item : items) {
    const auto n_logits =
        static_cast<std::size_t>(item.n_logits) * static_cast<std::size_t>(vocab_size);
    faults.push_back({pass.n_poisoned(faults.size()), !all_finite(logits.first(n_logits))});
    logits = logits.subspan(n_logits);
  }
  return faults;
}

Status check_logits(std::span<const ItemFaults> faults) {
  std::int64_t n_bad = 0, n_poisoned = 0;
  for (const ItemFaults& item : faults) {
    n_bad += item.has_bad_logits ? 1 : 0;
    n_poisoned += item.n_poisoned;
  }
  if (n_bad == 0) return {};
  return Error{ErrorCode::kInvalidModel,
               fmt::format("forward: got logits that are not finite in {} of {} sequences (K or V "
                           "of {} tokens are not), want finite weights (damaged file?), or K and V "
                           "within their cache type's range (bf16 and f32 reach further)",
                           n_bad, faults.size(), n_poisoned)};
}

}  // namespace

Status Model::Impl::check(std::span<const ForwardItem> items) const {
  std::size_t n_tokens = 0;
  for (const ForwardItem& item : items) {
    KVASIR_RETURN_IF_ERROR(check_item(config_, item));
    n_tokens += item.tokens.size();
  }
  constexpr std::size_t kTokensMax = 1 << 20;  // row indices stay far inside int
  if (n_tokens < 1 || n_tokens > kTokensMax) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("forward: batch size out of range; got {} tokens, want 1..{}",
                             n_tokens, kTokensMax)};
  }
  return {};
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::load(const gguf::File& file, const LoadOptions& options,
                                           cache::ByteBudget& budget, ThreadPool& pool) {
  try {
    KVASIR_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::from_gguf(file, options.n_ctx));
    KVASIR_ASSIGN_OR_RETURN(LoadedWeights loaded,
                            load_weights(file, config, budget, pool, options.progress));
    return std::unique_ptr<Model>(new Model(
        std::make_unique<Impl>(std::move(config), std::move(loaded), options.activations)));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kExhausted, "model: the system has no memory left for the weights"};
  }
}

const ModelConfig& Model::config() const { return impl_->config_; }

std::vector<cache::GroupSpec> Model::cache_groups() const {
  const ModelConfig& c = impl_->config_;
  std::vector<cache::GroupSpec> groups;
  for (const bool window : {false, true}) {
    cache::GroupSpec group{.layers = {},
                           .n_kv_heads = c.n_kv_heads,
                           .head_dim = c.head_dim,
                           .window = window ? c.window : 0};
    for (int layer = 0; layer < c.n_layers; ++layer) {
      if (c.is_window_layer[static_cast<std::size_t>(layer)] == window) {
        group.layers.push_back(layer);
      }
    }
    if (!group.layers.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

std::uint64_t Model::weight_bytes() const { return impl_->loaded_.reservation.bytes(); }

std::uint64_t Model::streamed_bytes() const {
  const Weights& weights = impl_->loaded_.weights;
  const bool is_tied = weights.output.parts.empty();
  return weight_bytes() - (is_tied ? 0 : weights.token_embd.packed_bytes());
}

std::uint64_t Model::scratch_bytes() const { return impl_->workspace_.bytes(); }

std::uint64_t Model::scratch_bytes_after(std::span<const ForwardItem> items, int n_threads) const {
  return impl_->workspace_.bytes_after(impl_->config_, impl_->mode_, items, n_threads);
}

double Model::multiply_adds(int n_context) const {
  const ModelConfig& c = impl_->config_;
  const Weights& weights = impl_->loaded_.weights;
  double total = weights.output.multiply_adds();
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const Layer& layer = weights.layers[i];
    total += layer.qkv.multiply_adds() + layer.attention_out.multiply_adds() +
             layer.gate_up.multiply_adds() + layer.ffn_down.multiply_adds();
    const int n_seen = c.is_window_layer[i] ? std::min(c.window, n_context) : n_context;
    total += 2.0 * c.n_heads * c.head_dim * n_seen;  // q . k, and weights times v
  }
  return total;
}

double Model::output_multiply_adds() const { return impl_->loaded_.weights.output.multiply_adds(); }

void Model::set_observers(Observers observers) { impl_->observers_ = std::move(observers); }

Status Model::forward(std::span<const ForwardItem> items, ThreadPool& pool,
                      std::vector<float>& logits, std::vector<ItemFaults>* faults) {
  if (faults != nullptr) faults->clear();
  KVASIR_RETURN_IF_ERROR(impl_->check(items));
  std::size_t n_logits = 0;
  for (const ForwardItem& item : items) n_logits += static_cast<std::size_t>(item.n_logits);
  try {
    logits.resize(n_logits * static_cast<std::size_t>(impl_->config_.vocab_size));
    ForwardPass pass(impl_->config_, impl_->loaded_.weights, impl_->mode_, items, impl_->workspace_,
                     pool, impl_->observers_);
    pass.run(logits.data());
    std::vector<ItemFaults> found = faults_of(pass, items, logits, impl_->config_.vocab_size);
    const Status status = check_logits(found);
    if (faults != nullptr) *faults = std::move(found);
    return status;
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kExhausted,
                 fmt::format("forward: the system has no memory left; got a batch of {} items",
                             items.size())};
  }
}

}  // namespace kvasir::model
