// What the oracle reads of K and V, and how it rounds q: for bounds of its tests as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cache/codec/codec.h"
#include "cache/page/paged_kv_view.h"

namespace kvasir::attention {

/// K, or V, of one kv head as it is stored (of Hadamard codecs in that basis), decoded once.
class StoredRows {
 public:
  /// `kv` must outlive this.
  StoredRows(const cache::PagedKvView& kv, int head, bool is_v)
      : kv_(kv), head_(head), is_v_(is_v), head_dim_(static_cast<std::size_t>(kv.head_dim)) {}

  /// What a query in tile `query_tile` reads of token `t`. Shape: [head_dim].
  const float* row(Position t, int query_tile);

 private:
  struct Values {
    std::vector<float> floats;   ///< [token][head_dim]
    std::vector<bool> is_known;  ///< by token
  };
  const cache::SideLayout& layout(const cache::PageSet& set) const { return is_v_ ? set.v : set.k; }
  const std::uint8_t* codes(const cache::PageSet& set, int strip) const {
    return is_v_ ? kv_.v_strip(set, strip, head_) : kv_.k_strip(set, strip, head_);
  }
  const std::uint8_t* meta(const cache::PageSet& set, int strip) const {
    return is_v_ ? kv_.v_meta(set, strip, head_) : kv_.k_meta(set, strip, head_);
  }
  /// Where tokens from `t` on belong; whether they are there already.
  std::pair<float*, bool> place(Values& values, Position t) const;
  const float* decoded(const cache::PageSet& set, Values& values, Position t) const;
  const float* decoded_tile(int tile);

  const cache::PagedKvView& kv_;
  int head_;
  bool is_v_;
  std::size_t head_dim_;
  Values rows_, tiles_;
};

/// q of a head that reads kv head `kv_head`, in the basis of its K, rounded as kernels round it.
/// Shape: [head_dim].
std::vector<double> rounded_query(const cache::PagedKvView& kv, int kv_head, const float* q);

}  // namespace kvasir::attention
