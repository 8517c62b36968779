// Rows of one history in chunks of any sizes, for the tests of the determinism contract.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "attention/attention.h"
#include "attention/history.h"

namespace kvasir::attention {

struct HeadShape {
  int n_kv_heads, n_heads, head_dim;
  float softcap = 0.0f;
  int window = 0;
  AttentionParams params() const {
    AttentionParams p = params_of(n_heads, head_dim);
    p.softcap = softcap;
    p.window = window;
    return p;
  }
};

/// Rows [first_pos, first_pos + n_rows) in chunks of the given sizes, one after the other.
inline Floats in_chunks(ThreadPool& pool, const HeadShape& shape, const History& history,
                        int first_pos, const std::vector<int>& chunks, const Floats& q) {
  const AttentionParams params = shape.params();
  Floats out(q.size(), -77.0f);
  Scratch scratch;
  int row = 0;
  for (const int n : chunks) {
    const QueryRows rows = rows_of(history, first_pos + row, n, row);
    attend(pool, params, {&rows, 1}, q.data(), out.data(), scratch);
    row += n;
  }
  return out;
}

inline std::vector<int> random_chunks(int n_rows, std::mt19937& random) {
  std::vector<int> chunks;
  for (int left = n_rows; left > 0; left -= chunks.back()) {
    chunks.push_back(std::uniform_int_distribution<int>(1, std::min(left, 60))(random));
  }
  return chunks;
}

}  // namespace kvasir::attention
