// Cuts a call of `attend` into blocks of rows and tasks for threads.
//
// The cut decides who computes what and never what is computed: a row's arithmetic is fixed by
// positions alone (attention.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/attention.h"
#include "attention/kernel.h"

namespace kvasir::attention {

struct Task {
  int block = 0;
  int segment_begin = 0, segment_end = 0;
  std::int64_t cost = 0;
};

/// All in the caller's scratch: nothing is allocated once it has grown.
struct Plan {
  std::span<Block> blocks;
  std::span<Task> tasks;         ///< the costliest first
  std::int64_t n_merges = 0;     ///< records to be merged once all tasks are done
  std::uint8_t* work = nullptr;  ///< one piece of `work_bytes` per thread
  std::size_t work_bytes = 0;
  std::int64_t cost = 0;  ///< rows x strips, of all tasks
};

Plan make_plan(const AttentionParams& params, std::span<const QueryRows> rows, const float* q,
               float* out, int n_threads, Scratch& scratch);

}  // namespace kvasir::attention
