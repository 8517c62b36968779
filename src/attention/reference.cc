// The oracle: textbook softmax attention in double precision, two passes, no segments.
#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "attention/attention.h"
#include "base/check.h"
#include "cache/codec/coded_rows.h"
#include "cache/codec/row_codec.h"
#include "cache/codec/tile_codec.h"
#include "simd/half.h"

namespace kvasir::attention {

using cache::CodecId;
using cache::kStripTokens;
using cache::kTileTokens;
using cache::PagedKvView;

namespace {

/// simd/hadamard-inl.h by its definition, in the same order: floats come out with the same bits.
template <class Float>
void hadamard(std::vector<Float>& row) {
  const int n = static_cast<int>(row.size()), block = n & -n;
  const Float scale = Float{1} / std::sqrt(static_cast<Float>(block));
  std::vector<Float> other(row.size());
  for (int step = 1; step < block; step *= 2) {
    for (int first = 0; first < n; first += block) {
      Float* const to = other.data() + first;
      const Float* const from = row.data() + first;
      for (int i = 0; i < block / 2; ++i) {
        to[i] = from[2 * i] + from[2 * i + 1];
        to[block / 2 + i] = from[2 * i] - from[2 * i + 1];
      }
    }
    row.swap(other);
  }
  for (Float& value : row) value *= scale;
}

/// simd/multiply_row-inl.h by its definition, likewise.
std::vector<float> multiplied(const std::vector<float>& row, const float* matrix) {
  std::vector<float> out(row.size(), 0.0f);
  for (const float value : row) {
    for (float& sum : out) sum = std::fma(value, *matrix++, sum);
  }
  return out;
}

double score_of(const AttentionParams& params, const std::vector<double>& q, const float* k) {
  double dot = 0.0;
  for (std::size_t d = 0; d < q.size(); ++d) dot += q[d] * k[d];
  const double score = dot * params.scale;
  return params.softcap > 0.0f ? params.softcap * std::tanh(score / params.softcap) : score;
}

void attend_row(const AttentionParams& params, const PagedKvView& kv, int kv_head, StoredRows& k,
                StoredRows& v, Position pos, const float* q, float* out) {
  const auto head_dim = static_cast<std::size_t>(params.head_dim);
  const int query_tile = pos / kTileTokens;
  const Position first = params.window > 0 ? std::max(0, pos - params.window + 1) : 0;
  const std::vector<double> rounded_q = rounded_query(kv, kv_head, q);
  std::vector<double> scores;
  for (Position t = first; t <= pos; ++t) {
    scores.push_back(score_of(params, rounded_q, k.row(t, query_tile)));
  }
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  std::vector<double> values(head_dim, 0.0);
  for (Position t = first; t <= pos; ++t) {
    const double p = std::exp(scores[static_cast<std::size_t>(t - first)] - maximum);
    const float* row = v.row(t, query_tile);
    for (std::size_t d = 0; d < head_dim; ++d) values[d] += p * row[d];
    sum += p;
  }
  if (cache::is_hadamard(kv.rows.v.codec)) hadamard(values);
  for (std::size_t d = 0; d < head_dim; ++d) out[d] = static_cast<float>(values[d] / sum);
}

}  // namespace

const float* StoredRows::row(Position t, int query_tile) {
  const int tile = t / kTileTokens;
  if (!kv_.reads_tile(tile, query_tile)) return decoded(kv_.rows, rows_, t);
  if (!cache::is_tile_codec(layout(kv_.tiles).codec)) return decoded(kv_.tiles, tiles_, t);
  return decoded_tile(tile) + static_cast<std::size_t>(t % kTileTokens) * head_dim_;
}

std::pair<float*, bool> StoredRows::place(Values& values, Position t) const {
  const auto token = static_cast<std::size_t>(t);
  const std::size_t n_tokens = (token / kTileTokens + 1) * kTileTokens;
  if (values.is_known.size() < n_tokens) {
    values.is_known.resize(n_tokens);
    values.floats.resize(n_tokens * head_dim_);
  }
  const bool is_known = values.is_known[token];
  values.is_known[token] = true;
  return {values.floats.data() + token * head_dim_, is_known};
}

const float* StoredRows::decoded(const cache::PageSet& set, Values& values, Position t) const {
  const auto [row, is_known] = place(values, t);
  if (is_known) return row;
  const CodecId codec = layout(set).codec;
  if (cache::is_coded(codec)) {
    const int strip = t / kStripTokens;
    cache::read_stored_row(codec, is_v_, kv_.head_dim, codes(set, strip), meta(set, strip),
                           t % kStripTokens, row);
    return row;
  }
  PagedKvView view = kv_;
  view.rows = set;
  (is_v_ ? cache::read_v : cache::read_k)(view, t, head_, row);
  return row;
}

const float* StoredRows::decoded_tile(int tile) {
  const auto [rows, is_known] = place(tiles_, tile * kTileTokens);
  if (is_known) return rows;
  const int strip = tile * (kTileTokens / kStripTokens);
  (is_v_ ? cache::decode_v_tile : cache::decode_k_tile)(
      layout(kv_.tiles).codec, kv_.head_dim, codes(kv_.tiles, strip), meta(kv_.tiles, strip), rows);
  return rows;
}

std::vector<double> rounded_query(const PagedKvView& kv, int kv_head, const float* q) {
  const CodecId codec = kv.rows.k.codec;
  std::vector<float> row(q, q + kv.head_dim);
  if (codec == CodecId::kBF16) {
    for (float& value : row) value = simd::bf16_to_f32(simd::f32_to_bf16(value));
  }
  if (!cache::is_coded(codec)) return {row.begin(), row.end()};
  if (const float* const basis = kv.query_basis(kv_head)) row = multiplied(row, basis);
  if (cache::is_hadamard(codec)) hadamard(row);
  const std::size_t part = codec == CodecId::kInt8G64 ? 32 : row.size();  // docs/numerics.md
  std::vector<double> rounded;
  for (std::size_t first = 0; first < row.size(); first += part) {
    const std::span<const float> values(row.data() + first, std::min(part, row.size() - first));
    float most = 0.0f;
    for (const float value : values) most = std::max(most, std::abs(value));
    const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
    for (const float value : values) {
      rounded.push_back(double{std::nearbyint(value * inverse)} * (most / 127.0f));
    }
  }
  return rounded;
}

void attend_reference(const AttentionParams& params, std::span<const QueryRows> rows,
                      const float* q, float* out) {
  for (const QueryRows& entry : rows) {
    const int heads_per_kv = params.n_heads / entry.kv.n_kv_heads;
    for (int kv_head = 0; kv_head < entry.kv.n_kv_heads; ++kv_head) {
      StoredRows k(entry.kv, kv_head, false), v(entry.kv, kv_head, true);
      for (int i = 0; i < entry.n_rows * heads_per_kv; ++i) {
        const auto row = static_cast<std::size_t>(entry.first_row + i / heads_per_kv);
        const auto offset =
            static_cast<std::size_t>((kv_head * heads_per_kv + i % heads_per_kv) * params.head_dim);
        attend_row(params, entry.kv, kv_head, k, v, entry.first_pos + i / heads_per_kv,
                   q + row * params.q_row_stride + offset,
                   out + row * params.out_row_stride + offset);
      }
    }
  }
}

}  // namespace kvasir::attention
