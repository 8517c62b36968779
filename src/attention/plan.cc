#include "attention/plan.h"

#include <algorithm>
#include <memory>
#include <new>

#include "base/units.h"
#include "cache/page/geometry.h"

namespace kvasir::attention {
namespace {

/// Wanted per thread, so that a thread that is held up does not hold up the rest: blocks of many
/// rows, and pieces of a history when there are few rows.
constexpr int kBlocksPerThread = 3;
constexpr int kTasksPerThread = 12;
/// Below this many rows the copies to f32 cost more than an even load gives.
constexpr int kMinSharedBlockRows = 24;
/// A row costs at least this share of its bytes: with fewer rows memory sets the pace.
constexpr int kMinRowsOfCost = 4;
/// Blocks of more rows are not cut by segments: their records would outgrow the caches.
constexpr int kMaxCutRows = 48;

int first_visible(const AttentionParams& params, Position pos) {
  return params.window > 0 ? std::max(0, pos - params.window + 1) : 0;
}

struct BlockSize {
  int n_blocks, n_positions;
};

/// Equal runs of positions, `max_rows` rows each at most (one position at least).
BlockSize size_blocks(int n_rows, int n_heads, int max_rows) {
  const int most = std::max(1, max_rows / n_heads);
  const int n_blocks = (n_rows + most - 1) / most;
  const int n_positions = (n_rows + n_blocks - 1) / n_blocks;
  return {(n_rows + n_positions - 1) / n_positions, n_positions};
}

std::int64_t block_cost(const AttentionParams& params, const Block& block) {
  const Position last = block.first_pos + block.n_positions - 1;
  const int n_strips = last / 16 - first_visible(params, block.first_pos) / 16 + 1;
  return std::int64_t{std::max(block.n_rows(), kMinRowsOfCost)} * n_strips;
}

/// Calls `visit(block)` for every block in order.
template <class Visit>
void for_each_block(const AttentionParams& params, std::span<const QueryRows> rows, int max_rows,
                    Visit visit) {
  for (const QueryRows& entry : rows) {
    if (entry.n_rows == 0) continue;
    const int n_heads = params.n_heads / entry.kv.n_kv_heads;
    const BlockSize size = size_blocks(entry.n_rows, n_heads, max_rows);
    for (int kv_head = 0; kv_head < entry.kv.n_kv_heads; ++kv_head) {
      for (int i = 0; i < size.n_blocks; ++i) {
        Block block;
        const int first = i * size.n_positions;
        block.params = &params;
        block.kv = &entry.kv;
        block.kv_head = kv_head;
        block.n_heads = n_heads;
        block.first_pos = entry.first_pos + first;
        block.n_positions = std::min(size.n_positions, entry.n_rows - first);
        const Position last = block.first_pos + block.n_positions - 1;
        block.segment_begin = first_visible(params, block.first_pos) / kSegmentTokens;
        block.segment_end = last / kSegmentTokens + 1;
        visit(block, entry.first_row + first);
      }
    }
  }
}

int choose_block_rows(const AttentionParams& params, std::span<const QueryRows> rows,
                      int n_threads) {
  // Queries, scores and records of a block stay in L2: half as many rows for very wide heads.
  const int most = params.head_dim > 256 ? kMaxBlockRows / 2 : kMaxBlockRows;
  if (n_threads == 1) return most;
  std::int64_t n_rows = 0;
  for (const QueryRows& entry : rows) n_rows += std::int64_t{entry.n_rows} * params.n_heads;
  return static_cast<int>(
      std::clamp<std::int64_t>(n_rows / (kBlocksPerThread * n_threads), kMinSharedBlockRows, most));
}

/// Tasks that the block is cut into.
int count_pieces(const Block& block, std::int64_t cost, std::int64_t task_cost) {
  if (task_cost == 0 || block.n_rows() > kMaxCutRows) return 1;
  const std::int64_t pieces = (cost + task_cost - 1) / task_cost;
  return static_cast<int>(
      std::clamp<std::int64_t>(pieces, 1, block.segment_end - block.segment_begin));
}

struct Sizes {
  std::size_t n_blocks = 0, n_tasks = 0, n_partial_floats = 0;
  int max_block_rows = 0;
};

std::size_t partial_floats(const AttentionParams& params, const Block& block) {
  return static_cast<std::size_t>(block.n_rows()) *
         static_cast<std::size_t>(block.segment_end - block.segment_begin) *
         record_floats(params.head_dim);
}

}  // namespace

Plan make_plan(const AttentionParams& params, std::span<const QueryRows> rows, const float* q,
               float* out, int n_threads, Scratch& scratch) {
  const int max_rows = choose_block_rows(params, rows, n_threads);
  Plan plan;
  for_each_block(params, rows, max_rows,
                 [&](const Block& block, int) { plan.cost += block_cost(params, block); });
  const std::int64_t task_cost =
      n_threads == 1 ? 0 : std::max<std::int64_t>(1, plan.cost / (kTasksPerThread * n_threads));

  Sizes sizes;
  for_each_block(params, rows, max_rows, [&](const Block& block, int) {
    const int n_pieces = count_pieces(block, block_cost(params, block), task_cost);
    ++sizes.n_blocks;
    sizes.n_tasks += static_cast<std::size_t>(n_pieces);
    if (n_pieces > 1) sizes.n_partial_floats += partial_floats(params, block);
    sizes.max_block_rows = std::max(sizes.max_block_rows, block.n_rows());
  });
  if (sizes.n_blocks == 0) return plan;

  // Threads' pieces are a page apart, so that no two share a line or a 4 KiB page.
  plan.work_bytes = round_up(work_bytes(params.head_dim, sizes.max_block_rows), 4096);
  std::size_t used = 0;
  const auto place = [&](std::size_t bytes) {
    const std::size_t at = used;
    used += round_up(bytes, 64);
    return at;
  };
  const std::size_t work_at = place(plan.work_bytes * static_cast<std::size_t>(n_threads));
  const std::size_t blocks_at = place(sizes.n_blocks * sizeof(Block));
  const std::size_t tasks_at = place(sizes.n_tasks * sizeof(Task));
  const std::size_t left_at = place(sizes.n_blocks * sizeof(std::atomic<int>));
  const std::size_t partials_at = place(sizes.n_partial_floats * sizeof(float));
  std::uint8_t* const memory = scratch.ensure(used);
  plan.work = memory + work_at;
  plan.blocks = {reinterpret_cast<Block*>(memory + blocks_at), sizes.n_blocks};
  plan.tasks = {reinterpret_cast<Task*>(memory + tasks_at), sizes.n_tasks};
  plan.tasks_left = reinterpret_cast<std::atomic<int>*>(memory + left_at);
  auto* partials = reinterpret_cast<float*>(memory + partials_at);

  std::size_t block_idx = 0, task_idx = 0;
  const auto head_dim = static_cast<std::size_t>(params.head_dim);
  for_each_block(params, rows, max_rows, [&](Block block, int row) {
    const auto head = static_cast<std::size_t>(block.kv_head * block.n_heads) * head_dim;
    block.q = q + static_cast<std::size_t>(row) * params.q_row_stride + head;
    block.out = out + static_cast<std::size_t>(row) * params.out_row_stride + head;
    const std::int64_t cost = block_cost(params, block);
    const int n_pieces = count_pieces(block, cost, task_cost);
    if (n_pieces > 1) {
      block.partials = partials;
      partials += partial_floats(params, block);
    }
    const int n_segments = block.segment_end - block.segment_begin;
    for (int i = 0; i < n_pieces; ++i) {
      Task task;
      task.block = static_cast<int>(block_idx);
      task.segment_begin = block.segment_begin + n_segments * i / n_pieces;
      task.segment_end = block.segment_begin + n_segments * (i + 1) / n_pieces;
      task.cost = cost * (task.segment_end - task.segment_begin) / n_segments;
      std::construct_at(&plan.tasks[task_idx++], task);
    }
    std::construct_at(&plan.tasks_left[block_idx], n_pieces);
    std::construct_at(&plan.blocks[block_idx++], block);
  });
  std::sort(plan.tasks.begin(), plan.tasks.end(), [](const Task& a, const Task& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.block != b.block ? a.block < b.block : a.segment_begin < b.segment_begin;
  });
  return plan;
}

}  // namespace kvasir::attention
