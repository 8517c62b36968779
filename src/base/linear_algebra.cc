#include "base/linear_algebra.h"

#include <cmath>

#include "base/check.h"

namespace kvasir {
namespace {

/// Each sweep squares what is left beside the diagonal: far more than are ever needed.
constexpr int kMostSweeps = 60;
/// Squares beside the diagonal, relative to those on it, that are rounding errors.
constexpr double kVanished = 1e-30;

bool is_diagonal(const SquareMatrix& a) {
  double on = 0, beside = 0;
  for (int i = 0; i < a.n(); ++i) {
    for (int j = 0; j < a.n(); ++j) (i == j ? on : beside) += a(i, j) * a(i, j);
  }
  return beside <= kVanished * on;
}

/// (x, y) = (c x - s y, s x + c y)
void rotate(double c, double s, double& x, double& y) {
  const double old = x;
  x = c * old - s * y;
  y = s * old + c * y;
}

}  // namespace

SquareMatrix SquareMatrix::identity(int n) {
  SquareMatrix made(n);
  for (int i = 0; i < n; ++i) made(i, i) = 1;
  return made;
}

SquareMatrix transposed(const SquareMatrix& a) {
  SquareMatrix made(a.n());
  for (int i = 0; i < a.n(); ++i) {
    for (int j = 0; j < a.n(); ++j) made(j, i) = a(i, j);
  }
  return made;
}

SquareMatrix product(const SquareMatrix& a, const SquareMatrix& b) {
  KVASIR_CHECK(a.n() == b.n());
  SquareMatrix made(a.n());
  for (int i = 0; i < a.n(); ++i) {
    for (int k = 0; k < a.n(); ++k) {
      for (int j = 0; j < a.n(); ++j) made(i, j) += a(i, k) * b(k, j);
    }
  }
  return made;
}

std::optional<SquareMatrix> cholesky(const SquareMatrix& a) {
  SquareMatrix c(a.n());
  for (int j = 0; j < a.n(); ++j) {
    for (int i = j; i < a.n(); ++i) {
      double rest = a(i, j);
      for (int k = 0; k < j; ++k) rest -= c(i, k) * c(j, k);
      if (i == j && !(rest > 0 && std::isfinite(rest))) return std::nullopt;
      c(i, j) = i == j ? std::sqrt(rest) : rest / c(j, j);
    }
  }
  return c;
}

std::optional<SquareMatrix> inverse(SquareMatrix a) {
  const int n = a.n();
  SquareMatrix made = SquareMatrix::identity(n);
  for (int col = 0; col < n; ++col) {
    int pivot = col;
    for (int row = col + 1; row < n; ++row) {
      if (std::abs(a(row, col)) > std::abs(a(pivot, col))) pivot = row;
    }
    for (int j = 0; j < n; ++j) {
      std::swap(a(col, j), a(pivot, j));
      std::swap(made(col, j), made(pivot, j));
    }
    const double factor = 1 / a(col, col);
    for (int j = 0; j < n; ++j) {
      a(col, j) *= factor;
      made(col, j) *= factor;
    }
    for (int row = 0; row < n; ++row) {
      if (row == col) continue;
      const double times = a(row, col);
      for (int j = 0; j < n; ++j) {
        a(row, j) -= times * a(col, j);
        made(row, j) -= times * made(col, j);
      }
    }
  }
  // A pivot of zero, or a value that was not finite, has spread.
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (!std::isfinite(made(i, j))) return std::nullopt;
    }
  }
  return made;
}

Eigen eigen(SquareMatrix a) {
  const int n = a.n();
  Eigen made{SquareMatrix::identity(n), {}};
  for (int sweep = 0; sweep < kMostSweeps && !is_diagonal(a); ++sweep) {
    for (int p = 0; p < n; ++p) {
      for (int q = p + 1; q < n; ++q) {
        if (a(p, q) == 0) continue;
        // The smaller of the two angles that make a(p, q) zero.
        const double slope = (a(q, q) - a(p, p)) / (2 * a(p, q));
        const double t = (slope < 0 ? -1 : 1) / (std::abs(slope) + std::hypot(slope, 1.0));
        const double c = 1 / std::hypot(t, 1.0), s = t * c;
        for (int k = 0; k < n; ++k) rotate(c, s, a(k, p), a(k, q));
        for (int k = 0; k < n; ++k) rotate(c, s, a(p, k), a(q, k));
        for (int k = 0; k < n; ++k) rotate(c, s, made.vectors(k, p), made.vectors(k, q));
      }
    }
  }
  for (int i = 0; i < n; ++i) made.values.push_back(a(i, i));
  return made;
}

}  // namespace kvasir
