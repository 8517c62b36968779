// Reuse of K and V at other positions than they were computed for: an approximation, asked for by
// name (docs/kv-reuse-shifted.md).
//
// A prompt with an early change keeps its later tokens, some positions on. Their K are turned to
// the new positions, their V copied; that they once saw the text before the change is not undone,
// but a share of them is computed anew. Sources: CacheBlend arXiv:2405.16444, EPIC
// arXiv:2410.15332.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "cache/cache.h"
#include "engine/engine.h"

namespace kvasir::engine {

/// Which tokens of a run are computed anew. Models with sliding windows have kFirst only.
enum class RecomputeRule : std::uint8_t {
  kFirst,   ///< those that follow the change
  kLast,    ///< those that end the run
  kSpread,  ///< blocks of kShiftedBlockTokens, evenly over the run
};

struct ShiftedReuse {
  int min_run_tokens = 128;  ///< shorter runs are computed; >= 2
  RecomputeRule rule = RecomputeRule::kFirst;
  double share = 0.15;    ///< of a run, computed anew; 0..1
  int first_tokens = 16;  ///< of a run, computed anew at least
};

/// Tokens computed together inside a run.
inline constexpr int kShiftedBlockTokens = 16;

/// Rows to be moved: tokens [begin, end) of a prompt, from the place `source_begin` of another
/// sequence, which must stay open until then.
struct ShiftedRows {
  int begin = 0, end = 0;
  int source_begin = 0;
  cache::Sequence source;
  /// First tokens of blocks of kShiftedBlockTokens, to be computed once all are there.
  std::vector<int> computed_blocks;

  int n_computed() const { return static_cast<int>(computed_blocks.size()) * kShiftedBlockTokens; }
  int n_moved() const { return end - begin - n_computed(); }
};

/// The rows that `options` lets move for the tokens of `prompt` from `first` on; at least the last
/// token is not among them. `own` holds K and V of `own_tokens`, may be not open, and is the first
/// choice; then what is kept of `engine.known_histories()`. Ascending.
std::vector<ShiftedRows> plan_shifted(Engine& engine, const ShiftedReuse& options,
                                      std::span<const TokenId> prompt, int first,
                                      const cache::Sequence& own,
                                      std::span<const TokenId> own_tokens);

/// Appends `rows.end - rows.begin` slots to `target`, which ends at rows.begin, and fills them.
/// `tokens` are those of `target`, up to rows.end at least. Errors: kExhausted; `target` is then as
/// it was.
Status move_shifted(Engine& engine, const ShiftedRows& rows, std::span<const TokenId> tokens,
                    cache::Sequence& target);

}  // namespace kvasir::engine
