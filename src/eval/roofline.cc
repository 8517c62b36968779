#include "eval/roofline.h"

#include <algorithm>
#include <cstring>

#include "simd/probe.h"

namespace kvasir::eval {
namespace {

/// Bytes of one token of one kv head, scales included.
double token_bytes(cache::CodecId codec, int head_dim, bool is_v) {
  return static_cast<double>(cache::code_bytes(codec, head_dim, cache::kTileTokens) +
                             4 * cache::meta_strip_bytes(codec, head_dim, is_v)) /
         cache::kTileTokens;
}

/// Bytes of K and V that a step in the row's middle reads, the shared history once. Window layers
/// see their window.
double kv_bytes(const engine::Engine& engine, const ThroughputRow& row) {
  const model::ModelConfig& config = engine.model().config();
  double n_bytes = 0;
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const bool is_window = config.is_window_layer[static_cast<std::size_t>(layer)];
    const cache::LayerCodecs codecs = engine.kv_format().of(layer);
    int n_seen = row.n_depth + row.n_generate / 2;
    if (is_window) n_seen = std::min(config.window, n_seen);
    const int n_own = std::min(n_seen, row.n_generate / 2);
    const double n_read = n_seen - n_own + n_own * row.n_sequences;
    n_bytes += n_read * config.n_kv_heads *
               (token_bytes(codecs.k, config.head_dim, false) +
                token_bytes(codecs.v, config.head_dim, true));
  }
  return n_bytes;
}

}  // namespace

RooflineProbe::RooflineProbe(engine::Engine& engine, const ThroughputRow& row)
    : engine_(engine), row_(row) {
  if (row.n_prompt == 0) {
    const double bytes =
        static_cast<double>(engine.model().streamed_bytes()) + kv_bytes(engine, row);
    footprint_ = AlignedBuffer(static_cast<std::size_t>(bytes));
    std::memset(footprint_.data(), 1, footprint_.size());  // or all pages are the one zero page
  }
  probe();
}

void RooflineProbe::probe() {
  ThreadPool& pool = engine_.pool();
  const double barrier = simd::barrier_seconds(pool);
  const bool is_first = roofline_.barrier_seconds == 0;
  roofline_.barrier_seconds = is_first ? barrier : std::min(roofline_.barrier_seconds, barrier);
  roofline_.integer_rate = std::max(roofline_.integer_rate, simd::integer_rate(pool));
  roofline_.float_rate = std::max(roofline_.float_rate, simd::float_rate(pool));
  roofline_.bf16_rate = std::max(roofline_.bf16_rate, simd::bf16_rate(pool));
  if (row_.n_prompt > 0) return;
  for (int i = 0; i < 5; ++i) {
    const double rate = simd::read_rate(pool, {footprint_.data(), footprint_.size()});
    roofline_.read_rate = std::max(roofline_.read_rate, rate);
  }
}

/// `attention`: multiply-adds of all tokens together.
double RooflineProbe::arithmetic_seconds(double n_tokens, double n_logits, double attention) const {
  const model::Model& model = engine_.model();
  const double output = model.output_multiply_adds();
  const bool is_float = engine_.options().activations == model::ActivationMode::kFloat32;
  const double weight_rate = is_float ? roofline_.float_rate : roofline_.integer_rate;
  const auto rate_of = [&](cache::CodecId codec) {
    if (cache::is_coded(codec)) return roofline_.integer_rate;
    return codec == cache::CodecId::kBF16 ? roofline_.bf16_rate : roofline_.float_rate;
  };
  return ((model.multiply_adds(0) - output) * n_tokens + output * n_logits) / weight_rate +
         attention / 2 / rate_of(engine_.kv_format().all.k) +
         attention / 2 / rate_of(engine_.kv_format().all.v);
}

double RooflineProbe::decode_seconds() const {
  const model::Model& model = engine_.model();
  const double attention =
      model.multiply_adds(row_.n_depth + row_.n_generate / 2) - model.multiply_adds(0);
  const double n = row_.n_sequences;
  return row_.n_generate * std::max(static_cast<double>(footprint_.size()) / roofline_.read_rate,
                                    arithmetic_seconds(n, n, n * attention));
}

double RooflineProbe::prefill_seconds() const {
  const model::Model& model = engine_.model();
  double attention = 0;
  for (int i = 1; i <= row_.n_prompt; ++i) {
    attention += model.multiply_adds(row_.n_depth + i) - model.multiply_adds(0);
  }
  return arithmetic_seconds(row_.n_prompt, 1, attention);
}

Roofline RooflineProbe::finish() {
  probe();
  roofline_.limit_seconds = row_.n_prompt > 0 ? prefill_seconds() : decode_seconds();
  return roofline_;
}

}  // namespace kvasir::eval
