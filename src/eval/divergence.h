// Rows of logits as next-token distributions, and how far one is from another.
#pragma once

#include <span>

#include "base/types.h"

namespace kvasir::eval {

/// softmax(logits)[i] = e^(logits[i] - maximum) / sum.
struct RowSoftmax {
  float maximum = 0;
  TokenId top = 0;  ///< the first of the likeliest tokens
  double sum = 1;   ///< exponents in float (within 2 ulp), added in double

  /// Natural logarithm of a logit's probability, by this row's `maximum` and `sum`.
  double log_probability(float logit) const;
};

/// Requires: logits.size() >= 1, all finite.
RowSoftmax softmax_of(std::span<const float> logits);

/// Nats, of `base` to `other`: sum of p ln(p / q). It is never negative, exactly 0 for equal
/// rows, and good to some 1e-6 of itself and 1e-14: with t = ln(q / p) it is the sum of
/// p (e^t - 1 - t), which has no terms that cancel.
/// Requires: rows of one length, with their softmax_of.
double divergence(std::span<const float> base, const RowSoftmax& base_softmax,
                  std::span<const float> other, const RowSoftmax& other_softmax);

}  // namespace kvasir::eval
