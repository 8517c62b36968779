#include "attention/plan.h"

#include <algorithm>
#include <limits>
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
/// Below this many rows the copies cost more than an even load gives.
constexpr int kMinSharedBlockRows = 24;
/// A row costs at least this share of its bytes: with fewer rows memory sets the pace.
constexpr int kMinRowsOfCost = 4;
/// Rows that make it worth to copy what sequences share: two sequences' three heads.
constexpr int kMinPrefixRows = 6;
/// kv heads of a row stay apart where there are fewer segments: a thread would go without.
constexpr int kMinSegmentsPerThread = 2;
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
  const int first_strip = std::max(first_visible(params, block.first_pos) / 16,
                                   block.segment_begin * kSegmentTokens / 16);
  const int end_strip = std::min(last / 16 + 1, block.segment_end * kSegmentTokens / 16);
  const int n_strips = end_strip - first_strip;
  return std::int64_t{std::max(block.n_rows(), kMinRowsOfCost * block.n_kv_heads)} * n_strips;
}

/// kv heads that one block takes. A lone row's heads go together, because they lie side by side in
/// a page and memory is the faster the longer the stretches that are read of it (ADR 0008); unless
/// threads would then run out of segments to share.
int kv_heads_together(const AttentionParams& params, const QueryRows& entry, int n_lone_rows,
                      int n_threads) {
  const int n_heads = params.n_heads / entry.kv.n_kv_heads;
  if (entry.n_rows != 1 || n_heads > kMaxDirectHeads) return 1;
  const int n_segments = entry.first_pos / kSegmentTokens + 1 -
                         first_visible(params, entry.first_pos) / kSegmentTokens;
  if (std::int64_t{n_segments} * n_lone_rows < kMinSegmentsPerThread * n_threads) return 1;
  const int most = std::max(1, kMaxDirectRows / n_heads);
  const int n_blocks = (entry.kv.n_kv_heads + most - 1) / most;
  return (entry.kv.n_kv_heads + n_blocks - 1) / n_blocks;
}

/// Segments at the beginning that both histories keep in the same frames. Counts full pages only,
/// which nobody writes to any more.
int shared_segments(const QueryRows& a, const QueryRows& b) {
  const int page_tokens = a.kv.strips_per_page * cache::kStripTokens;
  int n_tokens = std::min(a.first_pos, b.first_pos);
  if (a.kv.has_tiles()) {  // what both read as tiles, but for the first pages
    n_tokens =
        std::max(0, (n_tokens / cache::kTileTokens - a.kv.n_tail_tiles)) * cache::kTileTokens;
  }
  int n_pages = 0;
  for (; n_pages < n_tokens / page_tokens; ++n_pages) {
    const bool is_sink = n_pages * page_tokens < a.kv.n_sink_tiles * cache::kTileTokens;
    if ((!a.kv.has_tiles() || is_sink) && a.kv.rows.frames[n_pages] != b.kv.rows.frames[n_pages]) {
      break;
    }
    if (a.kv.has_tiles() && a.kv.tiles.frames[n_pages] != b.kv.tiles.frames[n_pages]) break;
  }
  return n_pages * page_tokens / kSegmentTokens;
}

/// Lone rows side by side whose histories begin with the same segments.
struct PrefixGroup {
  int n_entries = 1;
  int n_segments = 0;  ///< 0: nothing is shared
};

PrefixGroup find_prefix_group(const AttentionParams& params, std::span<const QueryRows> rows) {
  PrefixGroup group;
  const QueryRows& first = rows.front();
  if (first.n_rows != 1 || params.window > 0) return group;
  const int n_heads = params.n_heads / first.kv.n_kv_heads;
  const int most = std::min(static_cast<int>(rows.size()), kMaxCutRows / n_heads);
  for (; group.n_entries < most; ++group.n_entries) {
    const QueryRows& next = rows[static_cast<std::size_t>(group.n_entries)];
    if (next.n_rows != 1 || next.first_row != first.first_row + group.n_entries) break;
    const int n_segments = shared_segments(first, next);
    if (n_segments == 0 || n_segments < group.n_segments) break;
    if (group.n_segments == 0) group.n_segments = n_segments;
  }
  if (group.n_entries * n_heads < kMinPrefixRows) return {};
  return group;
}

/// The blocks of `rows[0]`'s history up to `group`'s end, one per kv head, for all of the group.
template <class Visit>
void for_prefix_blocks(const AttentionParams& params, std::span<const QueryRows> rows,
                       const PrefixGroup& group, Visit visit) {
  const QueryRows& first = rows.front();
  Block block;
  block.params = &params;
  block.kv = &first.kv;
  block.n_heads = params.n_heads / first.kv.n_kv_heads;
  block.first_pos = group.n_segments * kSegmentTokens - 1;  // every row sees all of it
  block.n_positions = group.n_entries;
  block.query_tile = std::numeric_limits<int>::max();  // far from all of it
  block.segment_end = group.n_segments;
  block.is_prefix = true;
  for (; block.kv_head < first.kv.n_kv_heads; ++block.kv_head) visit(block, first.first_row);
}

/// Equal blocks of `n_rows` rows of an entry from row `first_row` on.
template <class Visit>
void for_run_blocks(const AttentionParams& params, const QueryRows& entry, int first_row,
                    int n_rows, int max_rows, Block block, Visit visit) {
  const BlockSize size = size_blocks(n_rows, block.n_heads / block.n_kv_heads, max_rows);
  for (int i = 0; i < size.n_blocks; ++i) {
    const int first = i * size.n_positions;
    block.first_pos = entry.first_pos + first_row + first;
    block.n_positions = std::min(size.n_positions, n_rows - first);
    block.query_tile = block.first_pos / cache::kTileTokens;
    const Position last = block.first_pos + block.n_positions - 1;
    block.segment_begin =
        std::max(block.prefix.n_segments, first_visible(params, block.first_pos) / kSegmentTokens);
    block.segment_end = last / kSegmentTokens + 1;
    visit(block, entry.first_row + first_row + first);
  }
}

/// The blocks of one entry from segment `prefix.n_segments` on. Where K or V has tiles, no block
/// has queries of two of them, which read different tiles.
template <class Visit>
void for_entry_blocks(const AttentionParams& params, const QueryRows& entry, int max_rows,
                      int n_together, const PrefixRecords& prefix, Visit visit) {
  const int n_heads = params.n_heads / entry.kv.n_kv_heads;
  for (int kv_head = 0; kv_head < entry.kv.n_kv_heads; kv_head += n_together) {
    Block block;
    block.params = &params;
    block.kv = &entry.kv;
    block.kv_head = kv_head;
    block.n_kv_heads = std::min(n_together, entry.kv.n_kv_heads - kv_head);
    block.n_heads = n_heads * block.n_kv_heads;
    block.prefix = prefix;
    for (int first = 0; first < entry.n_rows;) {
      int n_rows = entry.n_rows - first;
      if (entry.kv.has_tiles()) {
        const int left = cache::kTileTokens - (entry.first_pos + first) % cache::kTileTokens;
        n_rows = std::min(n_rows, left);
      }
      for_run_blocks(params, entry, first, n_rows, max_rows, block, visit);
      first += n_rows;
    }
  }
}

/// Calls `visit(block, row)` for every block in order, `row` being its first row of q and out; a
/// prefix's blocks come before those that need them.
template <class Visit>
void for_each_block(const AttentionParams& params, std::span<const QueryRows> rows, int max_rows,
                    int n_threads, Visit visit) {
  const auto n_lone_rows = static_cast<int>(std::count_if(
      rows.begin(), rows.end(), [](const QueryRows& entry) { return entry.n_rows == 1; }));
  for (std::size_t i = 0; i < rows.size();) {
    const PrefixGroup group = find_prefix_group(params, rows.subspan(i));
    if (group.n_segments > 0) for_prefix_blocks(params, rows.subspan(i), group, visit);
    for (int member = 0; member < group.n_entries; ++member, ++i) {
      const QueryRows& entry = rows[i];
      if (entry.n_rows == 0) continue;
      const int n_heads = params.n_heads / entry.kv.n_kv_heads;
      PrefixRecords prefix;
      prefix.n_segments = group.n_segments;
      prefix.n_rows = group.n_entries * n_heads;
      prefix.first_row = member * n_heads;
      for_entry_blocks(params, entry, max_rows,
                       kv_heads_together(params, entry, n_lone_rows, n_threads), prefix, visit);
    }
  }
}

int choose_block_rows(const AttentionParams& params, std::span<const QueryRows> rows,
                      int n_threads) {
  // Queries, scores and records of a block stay in L2: half as many rows for wide heads.
  const int most = params.head_dim > 128 ? kMaxBlockRows / 2 : kMaxBlockRows;
  if (n_threads == 1) return most;
  std::int64_t n_rows = 0;
  for (const QueryRows& entry : rows) n_rows += std::int64_t{entry.n_rows} * params.n_heads;
  return static_cast<int>(
      std::clamp<std::int64_t>(n_rows / (kBlocksPerThread * n_threads), kMinSharedBlockRows, most));
}

/// Tasks that the block is cut into: of equally many segments, because threads begin with equally
/// many tasks each, side by side.
int count_pieces(const Block& block, std::int64_t cost, std::int64_t task_cost) {
  if (task_cost == 0 || block.n_rows() > kMaxCutRows) return 1;
  const std::int64_t wanted = std::max<std::int64_t>(1, (cost + task_cost - 1) / task_cost);
  const int n_segments = block.segment_end - block.segment_begin;
  const int size = std::max(1, static_cast<int>(n_segments / wanted));
  return (n_segments + size - 1) / size;
}

bool has_partials(const Block& block, int n_pieces) {
  return n_pieces > 1 || block.is_prefix || block.prefix.n_segments > 0;
}

std::size_t partial_floats(const AttentionParams& params, const Block& block) {
  return static_cast<std::size_t>(block.n_rows()) *
         static_cast<std::size_t>(block.segment_end - block.segment_begin) *
         record_floats(params.head_dim);
}

/// How a call is cut, and where each part of the plan lies in the scratch.
struct Layout {
  int max_rows = 0;            ///< of a block
  std::int64_t cost = 0;       ///< of the whole call
  std::int64_t task_cost = 0;  ///< wanted; 0: blocks stay whole
  std::size_t n_blocks = 0, n_tasks = 0;
  std::size_t work_bytes = 0;  ///< of one thread
  std::size_t work_at = 0, blocks_at = 0, tasks_at = 0, partials_at = 0, bytes = 0;
};

Layout lay_out(const AttentionParams& params, std::span<const QueryRows> rows, int n_threads) {
  Layout layout;
  layout.max_rows = choose_block_rows(params, rows, n_threads);
  for_each_block(params, rows, layout.max_rows, n_threads,
                 [&](const Block& block, int) { layout.cost += block_cost(params, block); });
  if (n_threads > 1) {
    layout.task_cost = std::max<std::int64_t>(1, layout.cost / (kTasksPerThread * n_threads));
  }
  std::size_t n_partial_floats = 0;
  int max_block_rows = 0;
  for_each_block(params, rows, layout.max_rows, n_threads, [&](const Block& block, int) {
    const int n_pieces = count_pieces(block, block_cost(params, block), layout.task_cost);
    ++layout.n_blocks;
    layout.n_tasks += static_cast<std::size_t>(n_pieces);
    if (has_partials(block, n_pieces)) n_partial_floats += partial_floats(params, block);
    max_block_rows = std::max(max_block_rows, block.n_rows());
  });
  if (layout.n_blocks == 0) return layout;

  const auto place = [&](std::size_t bytes) {
    const std::size_t at = layout.bytes;
    layout.bytes += round_up(bytes, 64);
    return at;
  };
  // Threads' pieces are a page apart, so that no two share a line or a 4 KiB page.
  layout.work_bytes = round_up(work_bytes(params.head_dim, max_block_rows), 4096);
  layout.work_at = place(layout.work_bytes * static_cast<std::size_t>(n_threads));
  layout.blocks_at = place(layout.n_blocks * sizeof(Block));
  layout.tasks_at = place(layout.n_tasks * sizeof(Task));
  layout.partials_at = place(n_partial_floats * sizeof(float));
  return layout;
}

}  // namespace

std::size_t scratch_bytes(const AttentionParams& params, std::span<const QueryRows> rows,
                          int n_threads) {
  return lay_out(params, rows, n_threads).bytes;
}

Plan make_plan(const AttentionParams& params, std::span<const QueryRows> rows, const float* q,
               float* out, int n_threads, Scratch& scratch) {
  const Layout layout = lay_out(params, rows, n_threads);
  Plan plan;
  plan.cost = layout.cost;
  plan.work_bytes = layout.work_bytes;
  if (layout.n_blocks == 0) return plan;
  std::uint8_t* const memory = scratch.ensure(layout.bytes);
  plan.work = memory + layout.work_at;
  for (int i = 0; i < n_threads; ++i) {
    clear_work(plan.work + static_cast<std::size_t>(i) * plan.work_bytes);
  }
  plan.blocks = {reinterpret_cast<Block*>(memory + layout.blocks_at), layout.n_blocks};
  plan.tasks = {reinterpret_cast<Task*>(memory + layout.tasks_at), layout.n_tasks};
  auto* partials = reinterpret_cast<float*>(memory + layout.partials_at);

  float* prefix_records = nullptr;  // of the group at hand, kv head 0
  std::size_t block_idx = 0, task_idx = 0;
  const auto head_dim = static_cast<std::size_t>(params.head_dim);
  for_each_block(params, rows, layout.max_rows, n_threads, [&](Block block, int row) {
    const auto head =
        static_cast<std::size_t>(block.kv_head * block.heads_per_kv_head()) * head_dim;
    block.q = q + static_cast<std::size_t>(row) * params.q_row_stride + head;
    block.out = out + static_cast<std::size_t>(row) * params.out_row_stride + head;
    const std::int64_t cost = block_cost(params, block);
    const int n_pieces = count_pieces(block, cost, layout.task_cost);
    if (has_partials(block, n_pieces)) {
      block.partials = partials;
      partials += partial_floats(params, block);
      if (block.is_prefix && block.kv_head == 0) prefix_records = block.partials;
      if (!block.is_prefix) {
        const int n_segments = block.prefix.n_segments + block.segment_end - block.segment_begin;
        plan.n_merges += std::int64_t{block.n_rows()} * n_segments;
      }
    }
    if (block.prefix.n_segments > 0) {
      block.prefix.kv_head_stride = static_cast<std::size_t>(block.prefix.n_segments) *
                                    static_cast<std::size_t>(block.prefix.n_rows) *
                                    record_floats(params.head_dim);
      block.prefix.records =
          prefix_records + static_cast<std::size_t>(block.kv_head) * block.prefix.kv_head_stride;
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
    std::construct_at(&plan.blocks[block_idx++], block);
  });
  std::sort(plan.tasks.begin(), plan.tasks.end(), [](const Task& a, const Task& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.block != b.block ? a.block < b.block : a.segment_begin < b.segment_begin;
  });
  return plan;
}

}  // namespace kvasir::attention
