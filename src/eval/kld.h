// What types of cached K and V cost: next-token distributions over each of them against those over
// a base, on the same text, the same weights, side by side.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/result.h"
#include "engine/engine.h"
#include "eval/kld_figures.h"

namespace kvasir::eval {

struct KldText {
  std::string name;  ///< for messages and reports
  std::string text;
};

struct KldOptions {
  int n_ctx = 2048;         ///< tokens of a chunk
  int n_chunks = -1;        ///< of each text; -1: all whole ones
  bool scores_all = false;  ///< positions from kFirstOfAll on, and not only a chunk's second half
  KvFormat base{"f32", {cache::CodecId::kF32, cache::CodecId::kF32}};
  std::vector<KvFormat> candidates;
  std::string checkpoint;  ///< a file that finished chunks are kept in; empty: none
};

/// Positions before it see too little of a cache to say something about it.
inline constexpr int kFirstOfAll = 64;

struct KldTextReport {
  std::string name;
  int n_tokens = 0;  ///< of the text
  int n_chunks = 0;
  std::vector<KldFigures> figures;  ///< by KldOptions::candidates
};

struct KldReport {
  int first_scored = 0;  ///< position in a chunk; the last one is n_ctx - 2
  int n_chunks = 0;      ///< done, those of the checkpoint included
  int n_chunks_resumed = 0;
  std::int64_t n_scored = 0;
  std::int64_t n_values = 0;  ///< K and V of n_ctx - 1 tokens, what KldFigures::bytes hold
  std::vector<KldFigures> all;
  std::vector<KldTextReport> texts;  ///< those with a chunk that is done
  double seconds = 0;

  double bits_per_value(const KldFigures& figures) const {
    return 8 * static_cast<double>(figures.bytes) / static_cast<double>(n_values);
  }
};

/// Every chunk (chunks.h) runs through the base and every candidate in lock-step, a piece of rows
/// at a time; each has a cache of its own. Bytes are counted at the chunk's end: frames, metadata
/// and padding included, and 12 bytes of page table a page. Memory: twice 64 MiB of logits.
///
/// `progress(chunks done, chunks, base perplexity of the last one)` may be empty. When `stop`
/// becomes true the work ends after the running forward pass: the report is then about the chunks
/// that are done, or kCancelled when none is.
/// Errors: kInvalidArgument (options, a text shorter than a chunk), those of KldCheckpoint, of
/// Engine::make_cache and Engine::forward.
Result<KldReport> kld(engine::Engine& engine, Env& env, std::span<const KldText> texts,
                      const KldOptions& options,
                      const std::function<void(int, int, double)>& progress = {},
                      const std::atomic<bool>* stop = nullptr);

}  // namespace kvasir::eval
