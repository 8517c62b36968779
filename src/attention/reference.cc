// The oracle: textbook softmax attention in double precision, two passes, no segments.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "attention/attention.h"
#include "base/check.h"
#include "cache/codec/row_codec.h"
#include "simd/half.h"

namespace kvasir::attention {
namespace {

double score_of(const AttentionParams& params, const float* q, const float* k) {
  double dot = 0.0;
  for (int d = 0; d < params.head_dim; ++d) dot += static_cast<double>(q[d]) * k[d];
  const double score = dot * params.scale;
  return params.softcap > 0.0f ? params.softcap * std::tanh(score / params.softcap) : score;
}

void attend_row(const AttentionParams& params, const cache::PagedKvView& kv, int kv_head,
                Position pos, const float* q, float* out) {
  const auto head_dim = static_cast<std::size_t>(params.head_dim);
  const Position first = params.window > 0 ? std::max(0, pos - params.window + 1) : 0;
  std::vector<float> row(head_dim);
  std::vector<float> rounded_q(q, q + head_dim);
  if (kv.rows.k.codec == cache::CodecId::kBF16) {
    for (float& value : rounded_q) value = simd::bf16_to_f32(simd::f32_to_bf16(value));
  }
  std::vector<double> scores;
  for (Position t = first; t <= pos; ++t) {
    cache::read_k(kv, t, kv_head, row.data());
    scores.push_back(score_of(params, rounded_q.data(), row.data()));
  }
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  std::vector<double> values(head_dim, 0.0);
  for (Position t = first; t <= pos; ++t) {
    const double p = std::exp(scores[static_cast<std::size_t>(t - first)] - maximum);
    cache::read_v(kv, t, kv_head, row.data());
    for (std::size_t d = 0; d < head_dim; ++d) values[d] += p * row[d];
    sum += p;
  }
  for (std::size_t d = 0; d < head_dim; ++d) out[d] = static_cast<float>(values[d] / sum);
}

}  // namespace

void attend_reference(const AttentionParams& params, std::span<const QueryRows> rows,
                      const float* q, float* out) {
  for (const QueryRows& entry : rows) {
    for (int i = 0; i < entry.n_rows; ++i) {
      const auto row = static_cast<std::size_t>(entry.first_row + i);
      const int heads_per_kv = params.n_heads / entry.kv.n_kv_heads;
      for (int head = 0; head < params.n_heads; ++head) {
        const auto offset = static_cast<std::size_t>(head * params.head_dim);
        attend_row(params, entry.kv, head / heads_per_kv, entry.first_pos + i,
                   q + row * params.q_row_stride + offset,
                   out + row * params.out_row_stride + offset);
      }
    }
  }
}

}  // namespace kvasir::attention
