// Small dense matrices in doubles: what a calibration computes once. Square, row by row, one fixed
// order of operations, so that a result has the same bits on every machine.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace kvasir {

class SquareMatrix {
 public:
  explicit SquareMatrix(int n = 0)
      : n_(n), values_(static_cast<std::size_t>(n) * static_cast<std::size_t>(n)) {}
  static SquareMatrix identity(int n);

  int n() const { return n_; }
  double& operator()(int row, int col) { return values_[index(row, col)]; }
  double operator()(int row, int col) const { return values_[index(row, col)]; }

 private:
  std::size_t index(int row, int col) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(n_) +
           static_cast<std::size_t>(col);
  }
  int n_;
  std::vector<double> values_;
};

SquareMatrix transposed(const SquareMatrix& a);
SquareMatrix product(const SquareMatrix& a, const SquareMatrix& b);

/// Lower C with C C^T = a, of which the lower half is read. Absent unless a is positive definite.
std::optional<SquareMatrix> cholesky(const SquareMatrix& a);

/// Absent where a is singular, or a value is not finite.
/// Source: Gauss and Jordan, with the largest pivot of each column.
std::optional<SquareMatrix> inverse(SquareMatrix a);

/// a = U diag(values) U^T.
struct Eigen {
  SquareMatrix vectors;  ///< U: orthonormal columns
  std::vector<double> values;
};
/// Of a symmetric matrix of finite values. Source: Jacobi's rotations, row by row, until all that
/// is beside the diagonal has vanished.
Eigen eigen(SquareMatrix a);

}  // namespace kvasir
