// The calibrated basis of K: what a row of K is multiplied by before the Hadamard transform, where
// its codec is one of tiles, so that few bits lose less of q . k.
//
// Every kv head of every layer has a matrix A of its own: k A is stored, and q times A^-1
// transposed is multiplied with it, so that without rounding q . k is what it was. Which A, a
// model's calibration says (eval/key_moments.h); here it may be any that has an inverse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "cache/page/paged_kv_view.h"
#include "cache/prefix/page_key.h"

namespace kvasir::cache {

/// Those of a whole model. Immutable. Threads: any.
class KeyBases {
 public:
  struct Shape {
    int n_layers = 0, n_kv_heads = 0, head_dim = 0;
    std::size_t matrix_floats() const {
      return static_cast<std::size_t>(head_dim) * static_cast<std::size_t>(head_dim);
    }
    std::size_t layer_floats() const {
      return static_cast<std::size_t>(n_kv_heads) * matrix_floats();
    }
    std::size_t floats() const { return static_cast<std::size_t>(n_layers) * layer_floats(); }
    bool operator==(const Shape&) const = default;
  };

  /// Of the matrices A, [n_layers][n_kv_heads][head_dim][head_dim], row by row; those of q follow.
  /// Errors: kInvalidArgument naming layer and head (a value that is not finite, an A so near to
  /// one without inverse that f32 does not give q . k back).
  /// Requires: shape.floats() values, a head size that codes have.
  static Result<std::shared_ptr<const KeyBases>> create(const Shape& shape,
                                                        std::span<const float> keys);

  const Shape& shape() const { return shape_; }
  std::span<const float> keys() const { return {floats(), shape_.floats()}; }
  KeyBasis of_layer(int layer) const;
  /// Of the shape and the bits of `keys`: equal ones store equal bytes. Part of every stored key.
  const Fingerprint& fingerprint() const { return fingerprint_; }
  std::uint64_t bytes() const { return memory_.size(); }

 private:
  explicit KeyBases(const Shape& shape);
  float* floats() { return reinterpret_cast<float*>(memory_.data()); }
  const float* floats() const { return reinterpret_cast<const float*>(memory_.data()); }

  Shape shape_;
  AlignedBuffer memory_;  ///< matrices of K, then those of q
  Fingerprint fingerprint_{};
};

/// What `create` gives as KeyBases::fingerprint.
Fingerprint fingerprint_of(const KeyBases::Shape& shape, std::span<const float> keys);

}  // namespace kvasir::cache
