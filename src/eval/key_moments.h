// The second moments of q and K of a model, and the basis of K that follows from them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/linear_algebra.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "base/types.h"
#include "cache/codec/key_basis.h"

namespace kvasir::eval {

/// Of one kv head: sums over tokens of x x^T.
struct HeadMoments {
  explicit HeadMoments(int head_dim)
      : queries(head_dim),
        keys(head_dim),
        tile_means(head_dim),
        tile_sum(static_cast<std::size_t>(head_dim)) {}
  SquareMatrix queries;     ///< of its query heads, rotated as K is
  SquareMatrix keys;        ///< of K
  SquareMatrix tile_means;  ///< of the mean of a tile of 64 tokens, once for each of its tokens
  std::int64_t n_queries = 0, n_keys = 0;
  std::vector<double> tile_sum;  ///< of the tile that is not in tile_means yet
  int n_in_tile = 0;
};

/// The matrix A that K is multiplied by, of which the Hadamard transform is stored:
///
///   S_q, S_k   mean q q^T; mean k k^T, of which a tile's mean counts a little only
///   S_k = C C^T,  C^T S_q C = U diag(l) U^T,  A = C^-T U diag(l)^(1/4)
///
/// so that k A and q A^-T have the same moments, diag(l)^(1/2), and the transform spreads both
/// over all channels: what rounding adds to q . k is least where q and K are loud. Scaled so that
/// K is as long as before. The identity where nothing was seen.
///
/// Source: kv-quality.md of the design, "Joint K basis".
SquareMatrix key_basis_of(const HeadMoments& moments);

/// The moments of a model, from the rows of one history after the other.
class KeyMoments {
 public:
  explicit KeyMoments(const cache::KeyBases::Shape& shape, int n_heads);

  /// Rows of a layer at positions first_pos...: q heads, then K's, rotated, `stride` floats apart.
  /// The result does not depend on how a history was cut. Positions of a layer ascend, from 0 in
  /// each history.
  void add(ThreadPool& pool, int layer_idx, Position first_pos, int n_rows, const float* rows,
           std::size_t stride);

  /// Errors: those of KeyBases::create.
  Result<std::shared_ptr<const cache::KeyBases>> bases(ThreadPool& pool) const;

 private:
  void add(HeadMoments& to, int kv_head, Position pos, const float* row) const;

  cache::KeyBases::Shape shape_;
  int n_heads_;
  std::vector<HeadMoments> heads_;  ///< [n_layers][n_kv_heads]
};

}  // namespace kvasir::eval
