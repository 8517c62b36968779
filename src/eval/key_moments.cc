#include "eval/key_moments.h"

#include <algorithm>
#include <cmath>

namespace kvasir::eval {
namespace {

/// Added to the diagonal, relative to its mean: no channel that is almost still is blown up.
constexpr double kRidge = 1e-3;
/// What the mean of a tile counts for beside what is around it. Tiles have an offset a channel, so
/// nothing; but int8 rows have none, and a large offset makes the steps of tiles coarse. Measured
/// on SmolLM2-135M: docs/kv-quantization.md.
constexpr double kMeanShare = 0.1;

/// to += x x^T, below and on the diagonal.
void add_outer(const float* x, SquareMatrix& to) {
  for (int i = 0; i < to.n(); ++i) {
    const double value = x[i];
    for (int j = 0; j <= i; ++j) to(i, j) += value * x[j];
  }
}

/// Takes the tile that was begun into the sum of means.
void end_tile(HeadMoments& moments) {
  if (moments.n_in_tile == 0) return;
  for (int i = 0; i < moments.tile_means.n(); ++i) {
    const double value = moments.tile_sum[static_cast<std::size_t>(i)] / moments.n_in_tile;
    for (int j = 0; j <= i; ++j) {
      moments.tile_means(i, j) += value * moments.tile_sum[static_cast<std::size_t>(j)];
    }
  }
  std::fill(moments.tile_sum.begin(), moments.tile_sum.end(), 0.0);
  moments.n_in_tile = 0;
}

double trace(const SquareMatrix& a) {
  double sum = 0;
  for (int i = 0; i < a.n(); ++i) sum += a(i, i);
  return sum;
}

/// Divided by n, whole, and with the ridge.
SquareMatrix mean_of(const SquareMatrix& lower, double n) {
  SquareMatrix mean(lower.n());
  const double ridge = kRidge * trace(lower) / n / lower.n();
  for (int i = 0; i < lower.n(); ++i) {
    for (int j = 0; j <= i; ++j) mean(i, j) = mean(j, i) = lower(i, j) / n;
    mean(i, i) += ridge;
  }
  return mean;
}

}  // namespace

SquareMatrix key_basis_of(const HeadMoments& moments) {
  HeadMoments all = moments;
  end_tile(all);
  const int n = all.keys.n();
  const double key_power = trace(all.keys);
  if (!(key_power > 0 && trace(all.queries) > 0)) return SquareMatrix::identity(n);
  SquareMatrix around = all.keys;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) around(i, j) -= (1 - kMeanShare) * all.tile_means(i, j);
  }
  const SquareMatrix s_q = mean_of(all.queries, static_cast<double>(all.n_queries));
  const auto c = cholesky(mean_of(around, static_cast<double>(all.n_keys)));
  const auto c_inverse = c ? inverse(*c) : std::nullopt;
  if (!c_inverse) return SquareMatrix::identity(n);
  const Eigen joint = eigen(product(transposed(*c), product(s_q, *c)));
  SquareMatrix a = product(transposed(*c_inverse), joint.vectors);
  for (int j = 0; j < n; ++j) {
    // The ridges keep them apart from zero, but for rounding.
    const double scale =
        std::pow(std::max(joint.values[static_cast<std::size_t>(j)], 1e-300), 0.25);
    for (int i = 0; i < n; ++i) a(i, j) *= scale;
  }
  const SquareMatrix keys = mean_of(all.keys, static_cast<double>(all.n_keys));
  const double power = trace(product(transposed(a), product(keys, a)));
  const double scale = std::sqrt(trace(keys) / power);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) a(i, j) *= scale;
  }
  return a;
}

KeyMoments::KeyMoments(const cache::KeyBases::Shape& shape, int n_heads)
    : shape_(shape),
      n_heads_(n_heads),
      heads_(static_cast<std::size_t>(shape.n_layers * shape.n_kv_heads),
             HeadMoments(shape.head_dim)) {}

void KeyMoments::add(HeadMoments& to, int kv_head, Position pos, const float* row) const {
  if (pos % cache::kTileTokens == 0) end_tile(to);
  const int heads_per_kv = n_heads_ / shape_.n_kv_heads;
  const int d = shape_.head_dim;
  for (int head = 0; head < heads_per_kv; ++head) {
    add_outer(row + (kv_head * heads_per_kv + head) * d, to.queries);
  }
  to.n_queries += heads_per_kv;
  const float* k = row + (n_heads_ + kv_head) * d;
  add_outer(k, to.keys);
  ++to.n_keys;
  for (int i = 0; i < d; ++i) to.tile_sum[static_cast<std::size_t>(i)] += k[i];
  ++to.n_in_tile;
}

void KeyMoments::add(ThreadPool& pool, int layer_idx, Position first_pos, int n_rows,
                     const float* rows, std::size_t stride) {
  pool.for_tasks(shape_.n_kv_heads, [&](int kv_head, int) {
    HeadMoments& to = heads_[static_cast<std::size_t>(layer_idx * shape_.n_kv_heads + kv_head)];
    for (int i = 0; i < n_rows; ++i) {
      // The first tile is read as rows, and its first token is like no other.
      if (first_pos + i < cache::kTileTokens) continue;
      add(to, kv_head, first_pos + i, rows + static_cast<std::size_t>(i) * stride);
    }
  });
}

Result<std::shared_ptr<const cache::KeyBases>> KeyMoments::bases(ThreadPool& pool) const {
  std::vector<float> keys(shape_.floats());
  pool.for_tasks(static_cast<int>(heads_.size()), [&](int unit, int) {
    const SquareMatrix a = key_basis_of(heads_[static_cast<std::size_t>(unit)]);
    float* to = keys.data() + static_cast<std::size_t>(unit) * shape_.matrix_floats();
    for (int i = 0; i < a.n(); ++i) {
      for (int j = 0; j < a.n(); ++j) *to++ = static_cast<float>(a(i, j));
    }
  });
  return cache::KeyBases::create(shape_, keys);
}

}  // namespace kvasir::eval
