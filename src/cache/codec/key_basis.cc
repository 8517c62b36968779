#include "cache/codec/key_basis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/linear_algebra.h"
#include "cache/codec/codec.h"

namespace kvasir::cache {
namespace {

/// What q . k may be off by, relative to the length of both, because matrices are rounded to f32: a
/// fortieth of what rounding to 8 bits does to the largest value.
constexpr double kMostError = 1e-4;

/// How far a times b transposed is from the identity.
double distance_of(const SquareMatrix& a, const SquareMatrix& b) {
  const SquareMatrix both = product(a, transposed(b));
  double most = 0;
  for (int i = 0; i < a.n(); ++i) {
    for (int j = 0; j < a.n(); ++j) most = std::max(most, std::abs(both(i, j) - (i == j ? 1 : 0)));
  }
  return most;
}

}  // namespace

KeyBases::KeyBases(const Shape& shape)
    : shape_(shape), memory_(2 * shape.floats() * sizeof(float)) {}

Result<std::shared_ptr<const KeyBases>> KeyBases::create(const Shape& shape,
                                                         std::span<const float> keys) {
  KVASIR_CHECK(keys.size() == shape.floats() && is_coded_head_dim(shape.head_dim));
  std::shared_ptr<KeyBases> made(new KeyBases(shape));
  std::copy(keys.begin(), keys.end(), made->floats());
  float* queries = made->floats() + shape.floats();
  const int n = shape.head_dim;
  SquareMatrix a(n), rounded(n);
  for (std::size_t unit = 0; unit < shape.floats() / shape.matrix_floats(); ++unit) {
    const float* from = keys.data() + unit * shape.matrix_floats();
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) a(i, j) = double{*from++};
    }
    const auto inverted = inverse(a);
    for (int i = 0; inverted && i < n; ++i) {
      for (int j = 0; j < n; ++j) rounded(i, j) = double{* queries++ = float((*inverted)(j, i))};
    }
    // Written so that NaN does not pass.
    if (!inverted || !(distance_of(a, rounded) <= kMostError)) {
      const auto heads = static_cast<std::size_t>(shape.n_kv_heads);
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("K basis of layer {}, kv head {}: got a matrix without an inverse",
                               unit / heads, unit % heads)};
    }
  }
  made->fingerprint_ = fingerprint_of(shape, keys);
  return std::shared_ptr<const KeyBases>(std::move(made));
}

KeyBasis KeyBases::of_layer(int layer) const {
  const std::size_t at = static_cast<std::size_t>(layer) * shape_.layer_floats();
  return {floats() + at, floats() + shape_.floats() + at};
}

Fingerprint fingerprint_of(const KeyBases::Shape& shape, std::span<const float> keys) {
  const std::string head =
      fmt::format("K basis {} {} {}", shape.n_layers, shape.n_kv_heads, shape.head_dim);
  const std::string_view parts[] = {
      head, {reinterpret_cast<const char*>(keys.data()), keys.size_bytes()}};
  return fingerprint_of(parts);
}

}  // namespace kvasir::cache
