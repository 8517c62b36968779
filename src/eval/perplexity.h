// Perplexity by llama.cpp's convention, and raw logits of given positions.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "engine/engine.h"

namespace kvasir::eval {

struct PerplexityOptions {
  int n_ctx = 512;    ///< tokens of a chunk; >= 4
  int n_chunks = -1;  ///< -1: all whole chunks of the text
};

struct PerplexityReport {
  int n_chunks = 0;
  int n_tokens_text = 0;
  std::int64_t n_scored = 0;
  double nll_mean = 0;            ///< natural log
  double perplexity = 0;          ///< exp(nll_mean)
  double standard_error = 0;      ///< of the perplexity
  std::vector<double> chunk_nll;  ///< mean of each chunk
  double seconds = 0;
};

/// Over a text's chunks (chunks.h); of each the second half is scored: logits at n_ctx/2 .. n_ctx-2
/// against the original next tokens.
/// Source: llama.cpp tools/perplexity. Errors: kInvalidArgument (text shorter than a chunk), those
/// of Engine::forward. `progress(chunks done, chunks, perplexity so far)` may be empty. When `stop`
/// becomes true the work ends after the running forward pass: the report is then about the chunks
/// that are done, or kCancelled when none is.
Result<PerplexityReport> perplexity(engine::Engine& engine, std::string_view text,
                                    const PerplexityOptions& options,
                                    const std::function<void(int, int, double)>& progress = {},
                                    const std::atomic<bool>* stop = nullptr);

/// Logits of the rows `positions` after running `ids` from an empty cache: [positions][vocab].
/// Errors: kInvalidArgument (no ids, a position or id out of range), kCancelled (`stop`).
Result<std::vector<std::vector<float>>> logits_at(engine::Engine& engine,
                                                  std::span<const TokenId> ids,
                                                  std::span<const int> positions,
                                                  const std::atomic<bool>* stop = nullptr);

}  // namespace kvasir::eval
