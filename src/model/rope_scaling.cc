#include "model/rope_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "gguf/printable.h"
#include "model/matrix.h"

namespace kvasir::model {
namespace {

Result<RopeScaling> parse_scaling(const Hyperparameters& hparams) {
  KVASIR_ASSIGN_OR_RETURN(const auto type, hparams.string("rope.scaling.type"));
  // llama.cpp reads a file without the key as linear: a bare factor divides positions.
  if (!type.has_value() || *type == "linear") return RopeScaling::kLinear;
  if (*type == "none") return RopeScaling::kNone;
  if (*type == "yarn") return RopeScaling::kYarn;
  if (*type == "llama3") return RopeScaling::kLlama3;
  if (*type == "longrope" || *type == "su") return RopeScaling::kLongRope;
  return Error{ErrorCode::kUnsupported,
               fmt::format("model: unknown rope scaling; got '{}', want none, linear, yarn, llama3 "
                           "or longrope",
                           gguf::printable(*type, 64))};
}

/// A list of n_rotated / 2 positive divisors; empty when the file has no such tensor.
Result<std::vector<float>> read_divisors(const gguf::File& file, std::string_view name,
                                         int n_rotated) {
  const gguf::TensorInfo* tensor = file.tensor(name);
  std::vector<float> divisors;
  if (tensor == nullptr) return divisors;
  const auto n = static_cast<std::uint64_t>(n_rotated / 2);
  if (tensor->type != gguf::TensorType::kF32 || tensor->shape[0] != n || tensor->n_values() != n) {
    return Error{ErrorCode::kInvalidModel,
                 fmt::format("model: tensor '{}' is malformed; got {} values, want {} of F32", name,
                             tensor->n_values(), n)};
  }
  divisors.resize(n);
  KVASIR_RETURN_IF_ERROR(dequantize(tensor->type, tensor->data, n, divisors.data()));
  for (const float divisor : divisors) {
    if (!std::isfinite(divisor) || divisor <= 0.0f) {
      return Error{
          ErrorCode::kInvalidModel,
          fmt::format("model: tensor '{}' holds a bad factor; got {}, want a finite number "
                      "above 0",
                      name, divisor)};
    }
  }
  return divisors;
}

Status read_yarn(const Hyperparameters& hparams, RopeParams& params) {
  KVASIR_ASSIGN_OR_RETURN(params.yarn_extrapolation,
                          hparams.double_or("rope.scaling.yarn_ext_factor", 1.0, 0.0, 1.0));
  KVASIR_ASSIGN_OR_RETURN(const double attention_factor,
                          hparams.positive_or("rope.scaling.yarn_attn_factor", 1.0));
  params.attention_factor *= attention_factor;
  KVASIR_ASSIGN_OR_RETURN(params.beta_fast,
                          hparams.positive_or("rope.scaling.yarn_beta_fast", 32.0));
  KVASIR_ASSIGN_OR_RETURN(params.beta_slow,
                          hparams.positive_or("rope.scaling.yarn_beta_slow", 1.0));
  KVASIR_ASSIGN_OR_RETURN(const double log_multiplier,
                          hparams.double_or("rope.scaling.yarn_log_multiplier", 0.0));
  if (log_multiplier != 0.0) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("model: '{}' is not supported; got {}, want 0",
                             hparams.key("rope.scaling.yarn_log_multiplier"), log_multiplier)};
  }
  return {};
}

Status read_long_rope(const Hyperparameters& hparams, int n_ctx, RopeParams& params) {
  const std::string_view name =
      n_ctx > params.n_ctx_original ? "rope_factors_long.weight" : "rope_factors_short.weight";
  KVASIR_ASSIGN_OR_RETURN(params.divisors, read_divisors(hparams.file(), name, params.n_rotated));
  if (params.divisors.empty()) {
    return Error{ErrorCode::kInvalidModel,
                 fmt::format("model: rope scaling is longrope but tensor '{}' is missing", name)};
  }
  return {};
}

/// The pair index whose frequency turns `n_rotations` times over the original context.
double yarn_pair_for(const RopeParams& params, double n_rotations) {
  return params.n_rotated *
         std::log(params.n_ctx_original / (n_rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(params.base));
}

void apply_yarn(const RopeParams& params, RopeTable& table) {
  const double first = std::max(0.0, std::floor(yarn_pair_for(params, params.beta_fast)));
  const double last =
      std::min(params.n_rotated - 1.0, std::ceil(yarn_pair_for(params, params.beta_slow)));
  for (std::size_t i = 0; i < table.inverse_frequency.size(); ++i) {
    const double ramp = (static_cast<double>(i) - first) / std::max(0.001, last - first);
    const double extrapolated = (1.0 - std::clamp(ramp, 0.0, 1.0)) * params.yarn_extrapolation;
    const double frequency = table.inverse_frequency[i];
    table.inverse_frequency[i] =
        frequency / params.factor * (1.0 - extrapolated) + frequency * extrapolated;
  }
  if (params.yarn_extrapolation != 0.0) {
    table.magnitude *= static_cast<float>(1.0 + 0.1 * std::log(params.factor));
  }
}

void apply_llama3(const RopeParams& params, RopeTable& table) {
  const double longest = params.n_ctx_original / params.low_frequency;
  const double shortest = params.n_ctx_original / params.high_frequency;
  for (double& frequency : table.inverse_frequency) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength < shortest) continue;
    if (wavelength > longest) {
      frequency /= params.factor;
      continue;
    }
    const double smooth = (params.n_ctx_original / wavelength - params.low_frequency) /
                          (params.high_frequency - params.low_frequency);
    frequency = (1.0 - smooth) * frequency / params.factor + smooth * frequency;
  }
}

}  // namespace

Result<RopeParams> read_rope_params(const Hyperparameters& hparams, RopePairing pairing,
                                    int head_dim, int n_ctx_train, int n_ctx) {
  RopeParams params;
  params.pairing = pairing;
  KVASIR_ASSIGN_OR_RETURN(params.n_rotated,
                          hparams.int_or("rope.dimension_count", head_dim, 2, head_dim));
  if (params.n_rotated % 2 != 0) {
    return Error{ErrorCode::kInvalidModel,
                 fmt::format("model: '{}' is odd; got {}", hparams.key("rope.dimension_count"),
                             params.n_rotated)};
  }
  KVASIR_ASSIGN_OR_RETURN(params.base, hparams.positive_or("rope.freq_base", 10000.0));
  KVASIR_ASSIGN_OR_RETURN(params.scaling, parse_scaling(hparams));
  KVASIR_ASSIGN_OR_RETURN(const double legacy_factor,
                          hparams.double_or("rope.scale_linear", 0.0, 0.0));
  KVASIR_ASSIGN_OR_RETURN(const double factor,
                          hparams.double_or("rope.scaling.factor", legacy_factor, 0.0));
  params.factor = factor == 0.0 ? 1.0 : factor;  // 0 means "not stretched" in llama.cpp's files
  KVASIR_ASSIGN_OR_RETURN(params.n_ctx_original,
                          hparams.int_or("rope.scaling.original_context_length", n_ctx_train, 1,
                                         std::numeric_limits<int>::max()));
  KVASIR_ASSIGN_OR_RETURN(params.attention_factor,
                          hparams.positive_or("rope.scaling.attn_factor", 1.0));

  KVASIR_ASSIGN_OR_RETURN(params.divisors,
                          read_divisors(hparams.file(), "rope_freqs.weight", params.n_rotated));
  if (params.scaling == RopeScaling::kYarn) {
    KVASIR_RETURN_IF_ERROR(read_yarn(hparams, params));
  } else if (params.scaling == RopeScaling::kLlama3) {
    KVASIR_ASSIGN_OR_RETURN(params.low_frequency,
                            hparams.positive_or("rope.scaling.low_freq_factor", 1.0));
    KVASIR_ASSIGN_OR_RETURN(params.high_frequency,
                            hparams.positive_or("rope.scaling.high_freq_factor", 4.0));
    if (params.high_frequency <= params.low_frequency) {
      return Error{ErrorCode::kInvalidModel,
                   fmt::format("model: llama3 rope factors are out of order; got low {}, high {}",
                               params.low_frequency, params.high_frequency)};
    }
  } else if (params.scaling == RopeScaling::kLongRope) {
    KVASIR_RETURN_IF_ERROR(read_long_rope(hparams, n_ctx, params));
  }
  return params;
}

RopeTable make_rope_table(const RopeParams& params) {
  RopeTable table;
  table.pairing = params.pairing;
  table.n_rotated = params.n_rotated;
  table.magnitude = static_cast<float>(params.attention_factor);
  for (int i = 0; i < params.n_rotated / 2; ++i) {
    const double divisor =
        params.divisors.empty() ? 1.0 : params.divisors[static_cast<std::size_t>(i)];
    table.inverse_frequency.push_back(std::pow(params.base, -2.0 * i / params.n_rotated) / divisor);
  }
  if (params.scaling == RopeScaling::kYarn) {
    apply_yarn(params, table);
  } else if (params.scaling == RopeScaling::kLlama3) {
    apply_llama3(params, table);
  } else if (params.scaling == RopeScaling::kLinear || params.scaling == RopeScaling::kLongRope) {
    for (double& frequency : table.inverse_frequency) frequency /= params.factor;
  }
  return table;
}

}  // namespace kvasir::model
