#include "attention/attention.h"

#include <algorithm>
#include <cstdint>

#include "attention/kernel.h"
#include "attention/plan.h"
#include "base/check.h"

namespace kvasir::attention {
namespace {

/// Cost (rows x strips) below which waking the pool takes longer than the work: 3 kv heads x
/// 4 rows x 64 tokens, about 3 us.
constexpr std::int64_t kMinForkCost = 48;
/// Fewer records are merged (8 ns each, and more where another core wrote them) by the caller: 2 us
/// at most, what the other threads' coming and going takes.
constexpr std::int64_t kMinForkMerges = 256;
/// Wanted per thread.
constexpr int kMergeTasksPerThread = 2;

void check_call(const AttentionParams& params, std::span<const QueryRows> rows) {
  KVASIR_CHECK(params.head_dim >= 8 && params.head_dim <= kMaxHeadDim && params.head_dim % 8 == 0);
  KVASIR_CHECK(params.n_heads >= 1 && params.window >= 0);
  for (const QueryRows& entry : rows) {
    if (entry.n_rows == 0) continue;
    KVASIR_CHECK(entry.n_rows > 0 && entry.first_row >= 0 && entry.first_pos >= 0);
    KVASIR_CHECK(entry.kv.n_kv_heads >= 1 && params.n_heads % entry.kv.n_kv_heads == 0);
    KVASIR_CHECK(entry.kv.head_dim == params.head_dim);
    KVASIR_CHECK(entry.kv.n_tokens - entry.n_rows >= entry.first_pos);
  }
}

void do_task(const Plan& plan, const Task& task, std::uint8_t* work) noexcept {
  const Block& block = plan.blocks[static_cast<std::size_t>(task.block)];
  attend_segments(block, task.segment_begin, task.segment_end, work);
}

/// Part `part` of `n_parts` of the block's rows.
void merge(const Block& block, int part, int n_parts) noexcept {
  if (block.partials == nullptr || block.is_prefix) return;
  const int n_rows = block.n_rows();
  merge_partials(block, n_rows * part / n_parts, n_rows * (part + 1) / n_parts);
}

}  // namespace

std::uint8_t* Scratch::ensure(std::size_t bytes) {
  if (bytes > buffer_.size()) {
    buffer_ = AlignedBuffer();  // give the old one back first: its contents are not wanted
    buffer_ = AlignedBuffer(bytes);
  }
  return buffer_.data();
}

void attend(ThreadPool& pool, const AttentionParams& params, std::span<const QueryRows> rows,
            const float* q, float* out, Scratch& scratch) {
  check_call(params, rows);
  const Plan plan = make_plan(params, rows, q, out, pool.n_threads(), scratch);
  if (pool.n_threads() == 1 || plan.cost <= kMinForkCost) {
    for (const Task& task : plan.tasks) do_task(plan, task, plan.work);
  } else {
    pool.for_tasks(static_cast<int>(plan.tasks.size()), [&](int task_idx, int thread_idx) {
      std::uint8_t* work = plan.work + static_cast<std::size_t>(thread_idx) * plan.work_bytes;
      do_task(plan, plan.tasks[static_cast<std::size_t>(task_idx)], work);
    });
  }
  if (plan.n_merges == 0) return;
  const auto n_blocks = static_cast<int>(plan.blocks.size());
  if (pool.n_threads() == 1 || plan.n_merges < kMinForkMerges) {
    for (const Block& block : plan.blocks) merge(block, 0, 1);
    return;
  }
  const int n_parts = std::max(1, kMergeTasksPerThread * pool.n_threads() / n_blocks);
  pool.for_tasks(n_blocks * n_parts, [blocks = plan.blocks.data(), n_parts](int i, int) {
    merge(blocks[i / n_parts], i % n_parts, n_parts);
  });
}

}  // namespace kvasir::attention
