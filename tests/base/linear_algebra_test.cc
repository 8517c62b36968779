// Factors, inverses and eigenvectors: they give back what they were made of, and say when they
// cannot.
#include "base/linear_algebra.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace kvasir {
namespace {

SquareMatrix random_matrix(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  SquareMatrix made(n);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) made(i, j) = normal(random);
  }
  return made;
}

/// Positive definite, its eigenvalues spread over `decades`.
SquareMatrix random_moments(int n, int decades, unsigned seed) {
  SquareMatrix a = random_matrix(n, seed);
  for (int j = 0; j < n; ++j) {
    const double scale = std::pow(10.0, -0.5 * decades * j / n);
    for (int i = 0; i < n; ++i) a(i, j) *= scale;
  }
  return product(a, transposed(a));
}

double largest_difference(const SquareMatrix& a, const SquareMatrix& b) {
  double most = 0;
  for (int i = 0; i < a.n(); ++i) {
    for (int j = 0; j < a.n(); ++j) most = std::max(most, std::abs(a(i, j) - b(i, j)));
  }
  return most;
}

SquareMatrix diagonal(const std::vector<double>& values) {
  SquareMatrix made(static_cast<int>(values.size()));
  for (int i = 0; i < made.n(); ++i) made(i, i) = values[static_cast<std::size_t>(i)];
  return made;
}

TEST(LinearAlgebra, ProductsAreRowsTimesColumns) {
  SquareMatrix a(2), b(2);
  a(0, 0) = 1, a(0, 1) = 2, a(1, 0) = 3, a(1, 1) = 4;
  b(0, 0) = 5, b(0, 1) = 6, b(1, 0) = 7, b(1, 1) = 8;
  const SquareMatrix c = product(a, b), d = transposed(c);
  EXPECT_EQ(c(0, 0), 19);
  EXPECT_EQ(c(0, 1), 22);
  EXPECT_EQ(c(1, 0), 43);
  EXPECT_EQ(c(1, 1), 50);
  EXPECT_EQ(d(0, 1), 43);
}

TEST(LinearAlgebra, TheFactorTimesItselfTransposedIsTheMatrix) {
  for (const int n : {1, 2, 16, 64, 80}) {
    const SquareMatrix a = random_moments(n, 4, 3);
    const auto c = cholesky(a);
    ASSERT_TRUE(c) << n;
    EXPECT_LT(largest_difference(product(*c, transposed(*c)), a), 1e-11 * n);
    for (int i = 0; i < n; ++i) {
      for (int j = i + 1; j < n; ++j) EXPECT_EQ((*c)(i, j), 0);
    }
  }
}

TEST(LinearAlgebra, WhatIsNotPositiveDefiniteHasNoFactor) {
  EXPECT_FALSE(cholesky(SquareMatrix(3)));
  EXPECT_FALSE(cholesky(diagonal({1, -1})));
  EXPECT_FALSE(cholesky(diagonal({1, std::numeric_limits<double>::quiet_NaN()})));
  EXPECT_FALSE(cholesky(diagonal({std::numeric_limits<double>::infinity()})));
}

TEST(LinearAlgebra, AnInverseTimesItsMatrixIsTheIdentity) {
  for (const int n : {1, 2, 16, 64, 80}) {
    SquareMatrix a = random_matrix(n, 5);
    if (n > 1) a(0, 0) = 0;  // a pivot must be looked for
    const auto b = inverse(a);
    ASSERT_TRUE(b) << n;
    EXPECT_LT(largest_difference(product(a, *b), SquareMatrix::identity(n)), 1e-11 * n);
  }
}

TEST(LinearAlgebra, WhatIsSingularOrNotFiniteHasNoInverse) {
  EXPECT_FALSE(inverse(SquareMatrix(2)));
  EXPECT_FALSE(inverse(diagonal({1, 0, 2})));
  EXPECT_FALSE(inverse(diagonal({1, std::numeric_limits<double>::quiet_NaN()})));
  SquareMatrix two_alike(2);
  two_alike(0, 0) = two_alike(0, 1) = two_alike(1, 0) = two_alike(1, 1) = 1;
  EXPECT_FALSE(inverse(two_alike));
}

TEST(LinearAlgebra, EigenvectorsAreOrthonormalAndGiveTheMatrixBack) {
  for (const int n : {1, 2, 16, 64, 80}) {
    for (const int decades : {0, 8}) {
      const SquareMatrix a = random_moments(n, decades, 7);
      const Eigen found = eigen(a);
      const SquareMatrix& u = found.vectors;
      EXPECT_LT(largest_difference(product(transposed(u), u), SquareMatrix::identity(n)), 1e-12);
      const SquareMatrix back = product(u, product(diagonal(found.values), transposed(u)));
      EXPECT_LT(largest_difference(back, a), 1e-12 * n * a(0, 0)) << n;
    }
  }
}

TEST(LinearAlgebra, EigenvaluesThatAreKnown) {
  SquareMatrix a(2);
  a(0, 0) = a(1, 1) = 2, a(0, 1) = a(1, 0) = 1;
  std::vector<double> values = eigen(a).values;
  std::sort(values.begin(), values.end());
  EXPECT_DOUBLE_EQ(values[0], 1);
  EXPECT_DOUBLE_EQ(values[1], 3);
  EXPECT_EQ(eigen(diagonal({5, 0, -2})).values, (std::vector<double>{5, 0, -2}));
  EXPECT_EQ(eigen(SquareMatrix(2)).values, (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace kvasir
