// The kernels' side of `attend`: what one block of query rows is, and the two steps done on it.
//
// A block is a run of positions of one sequence with every query head that reads one kv head, or
// one position with those of several; its rows are numbered position by position, heads side by
// side. kernel.cc is compiled once per SIMD target and chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/attention.h"
#include "cache/page/paged_kv_view.h"

namespace kvasir::attention {

/// Rows of a block at most; the plan chooses fewer for wide heads.
inline constexpr int kMaxBlockRows = 192;

/// Records of a history's beginning that several sequences share: computed in one block per kv
/// head, of which a sequence's rows are a part.
struct PrefixRecords {
  float* records = nullptr;        ///< of the block's first kv head: [n_segments][n_rows][record]
  std::size_t kv_head_stride = 0;  ///< floats between kv heads
  int n_segments = 0;              ///< 0: nothing is shared
  int n_rows = 0;                  ///< of all sequences
  int first_row = 0;               ///< this sequence's
};

/// Query heads of a kv head that one position's rows are computed for straight from the page.
inline constexpr int kMaxDirectHeads = 6;
/// Rows of a block of several kv heads at most.
inline constexpr int kMaxDirectRows = 32;

struct Block {
  const AttentionParams* params = nullptr;
  const cache::PagedKvView* kv = nullptr;
  int kv_head = 0;  ///< the first of `n_kv_heads`: one, unless n_positions is 1
  int n_kv_heads = 1;
  int n_heads = 0;  ///< query heads of these together
  Position first_pos = 0;
  int n_positions = 0;
  int query_tile = 0;        ///< of all its positions, where K or V has tiles
  const float* q = nullptr;  ///< first position's first head of the block
  float* out = nullptr;
  int segment_begin = 0;  ///< segments that some row of the block sees: [begin, end)
  int segment_end = 0;
  /// One record per (segment, row) when tasks share the block or it is one of several that make up
  /// a row; else null.
  float* partials = nullptr;
  PrefixRecords prefix;    ///< of the segments before segment_begin
  bool is_prefix = false;  ///< only its records are wanted, by blocks that have them as `prefix`

  int n_rows() const { return n_positions * n_heads; }
  int heads_per_kv_head() const { return n_heads / n_kv_heads; }
  bool is_direct() const { return n_positions == 1 && heads_per_kv_head() <= kMaxDirectHeads; }
};

/// A record is a header (maximum, sum, whether anything was visible), then head_dim floats,
/// rounded up to whole panels of 16 channels.
inline constexpr int kRecordHeader = 16;
inline std::size_t record_floats(int head_dim) {
  return static_cast<std::size_t>(kRecordHeader + (head_dim + 15) / 16 * 16);
}

/// Bytes of work memory a thread needs for blocks of up to `n_rows` rows. A multiple of 64.
std::size_t work_bytes(int head_dim, int n_rows);

/// Makes a thread's work memory ready for the blocks of a call.
void clear_work(std::uint8_t* work);

/// Attends the block's rows to segments [segment_begin, segment_end).
///
/// Without `block.partials` the range must be all of the block's segments, and `out` is written;
/// with them, the records of those segments are.
/// Requires  `work`: work_bytes() bytes, 64-byte aligned, this thread's own, cleared before the
/// first
///           block of a call; blocks stay where they are until the last
void attend_segments(const Block& block, int segment_begin, int segment_end,
                     std::uint8_t* work) noexcept;

/// Merges the records of all segments, in ascending order, into `out`: the first one's memory holds
/// the result. Requires: `partials`, and that all its tasks and its prefix's are done.
void merge_partials(const Block& block, int row_begin, int row_end) noexcept;

}  // namespace kvasir::attention
