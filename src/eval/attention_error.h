// How far attention's output over types of cached K and V is from that over a base, head by head.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "eval/kld_figures.h"

namespace kvasir::eval {

struct AttentionErrorOptions {
  int n_ctx = 2048;   ///< tokens of a chunk
  int n_chunks = -1;  ///< -1: all whole ones
  KvFormat base{"f32", {cache::CodecId::kF32, cache::CodecId::kF32}};
  std::vector<KvFormat> candidates;
};

/// ||candidate - base|| / ||base|| of the context vectors that the output projection reads.
struct RelativeError {
  double rms = 0;   ///< root of the ratio of the squares' sums over tokens
  double mean = 0;  ///< mean over tokens of each one's ratio; a token whose base is 0 counts as 0
};

struct AttentionErrors {
  int n_heads = 0;
  std::vector<RelativeError> heads;   ///< [layers][n_heads]
  std::vector<RelativeError> layers;  ///< of a layer's heads together, as one vector a token

  RelativeError head(int layer_idx, int head_idx) const {
    return heads[static_cast<std::size_t>(layer_idx * n_heads + head_idx)];
  }
  /// The head of the layer with the largest rms; the first of equal ones.
  int worst_head(int layer_idx) const;
};

struct AttentionErrorReport {
  int n_layers = 0, n_heads = 0;
  int first_scored = 0;  ///< position in a chunk; the last one is n_ctx - 2
  int n_chunks = 0;      ///< done
  std::int64_t n_scored = 0;
  std::vector<AttentionErrors> candidates;  ///< by AttentionErrorOptions::candidates
  double seconds = 0;
};

/// Every chunk (chunks.h) runs through the base and every candidate in lock-step, each with a cache
/// of its own; the positions of its second half are scored. A candidate's deeper layers see the
/// error of those below them. Memory: 64 MiB of logits, and twice a piece's context vectors.
///
/// `progress(chunks done, chunks)` may be empty. When `stop` becomes true the work ends after the
/// running forward pass: the report is then about the chunks that are done, or kCancelled when none
/// is. Errors: kInvalidArgument (options, a text shorter than a chunk), those of Engine::make_cache
/// and Engine::forward.
Result<AttentionErrorReport> attention_error(engine::Engine& engine, std::string_view text,
                                             const AttentionErrorOptions& options,
                                             const std::function<void(int, int)>& progress = {},
                                             const std::atomic<bool>* stop = nullptr);

}  // namespace kvasir::eval
