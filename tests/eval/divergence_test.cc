// KLD of logit rows against the definition in double.
#include "eval/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "support/simd_targets.h"

namespace kvasir::eval {
namespace {

std::vector<float> random_row(std::size_t n, float scale, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> row(n);
  for (float& value : row) value = normal(random);
  return row;
}

std::vector<long double> log_probabilities(const std::vector<float>& row) {
  long double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<long double>(logit));
  std::vector<long double> out;
  for (const float logit : row) out.push_back(static_cast<long double>(logit) - std::log(sum));
  return out;
}

double naive_divergence(const std::vector<float>& base, const std::vector<float>& other) {
  const auto p = log_probabilities(base), q = log_probabilities(other);
  long double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return static_cast<double>(sum);
}

double divergence_of(const std::vector<float>& base, const std::vector<float>& other) {
  return divergence(base, softmax_of(base), other, softmax_of(other));
}

TEST(Divergence, EqualsTheDefinitionHoweverSmallItIs) {
  for (const std::size_t n : {2, 7, 16, 500, 1024, 5000}) {
    const std::vector<float> base = random_row(n, 4, 1);
    for (const float distance : {1e-4f, 1e-2f, 0.3f, 2.0f, 12.0f}) {
      std::vector<float> other = random_row(n, distance, 2);
      for (std::size_t i = 0; i < n; ++i) other[i] += base[i] + 3;
      const double want = naive_divergence(base, other);
      EXPECT_NEAR(divergence_of(base, other), want, 1e-5 * want + 2e-14) << n << " " << distance;
    }
  }
}

TEST(Divergence, OfEqualRowsIsExactlyZero) {
  for (const std::size_t n : {1, 15, 49, 3000}) {
    const std::vector<float> row = random_row(n, 6, 3);
    EXPECT_EQ(divergence_of(row, row), 0);
  }
}

TEST(Divergence, HasTheSameBitsOnEveryTarget) {
  const std::vector<float> base = random_row(1500, 5, 4), other = random_row(1500, 5, 5);
  const double want = divergence_of(base, other);
  const double want_sum = softmax_of(base).sum;
  for_each_target([&](const char* target) {
    EXPECT_EQ(divergence_of(base, other), want) << target;
    EXPECT_EQ(softmax_of(base).sum, want_sum) << target;
  });
}

TEST(Divergence, OfRowsThatShareNothingIsFinite) {
  std::vector<float> base(40, 0.0f), other(40, 0.0f);
  base[3] = 400;
  other[7] = 400;
  EXPECT_NEAR(divergence_of(base, other), 400, 1e-3);
}

TEST(Softmax, GivesProbabilitiesAndTheFirstOfTheLikeliest) {
  const std::vector<float> row = {-2.0f, 5.0f, 1.0f, 5.0f, 0.0f};
  const RowSoftmax softmax = softmax_of(row);
  EXPECT_EQ(softmax.top, 1);
  const auto want = log_probabilities(row);
  for (std::size_t i = 0; i < row.size(); ++i) {
    EXPECT_NEAR(softmax.log_probability(row[i]), static_cast<double>(want[i]), 1e-6);
  }
}

}  // namespace
}  // namespace kvasir::eval
