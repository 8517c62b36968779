// One call of `attend` and what the oracle says of it.
#pragma once

#include <cstddef>

#include "attention/history.h"

namespace kvasir::attention {

struct OracleCase {
  int n_kv_heads, n_heads, head_dim, first_pos, n_rows;
  HistoryOptions history = {};
  float softcap = 0.0f;
  int window = 0;
};

/// Not to be copied: `rows` views `history`.
struct OracleRun {
  explicit OracleRun(const OracleCase& c)
      : tokens(c.first_pos + c.n_rows, c.n_kv_heads, c.head_dim, 11), history(tokens, c.history) {
    params = params_of(c.n_heads, c.head_dim);
    params.softcap = c.softcap;
    params.window = c.window;
    q = random_floats(static_cast<std::size_t>(c.n_rows) * params.q_row_stride, 5);
    rows = rows_of(history, c.first_pos, c.n_rows);
    ThreadPool pool(1);
    out = run_attend(pool, params, {&rows, 1}, q);
    expected.resize(q.size());
    attend_reference(params, {&rows, 1}, q.data(), expected.data());
  }
  OracleRun(const OracleRun&) = delete;
  OracleRun& operator=(const OracleRun&) = delete;

  Tokens tokens;
  History history;
  AttentionParams params;
  Floats q;
  QueryRows rows;
  Floats out, expected;
};

}  // namespace kvasir::attention
