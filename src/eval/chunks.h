// A text in chunks, as llama.cpp's perplexity cuts it, and chunks run a piece of rows at a time.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "engine/engine.h"

namespace kvasir::eval {

/// The text is tokenized once, without its one final newline, with BOS/EOS as the model asks and
/// without parsing special tokens. Each chunk is run from an empty cache.
/// Source: llama.cpp tools/perplexity.
class ChunkedText {
 public:
  /// Requires: n_ctx >= 1. `n_chunks_max` below 0: all whole chunks.
  /// Errors: kInvalidArgument: the text is shorter than a chunk; `where` says which text.
  static Result<ChunkedText> cut(const engine::Engine& engine, std::string_view text, int n_ctx,
                                 int n_chunks_max, const std::string& where);

  int n_ctx() const { return n_ctx_; }
  int n_chunks() const { return n_chunks_; }
  /// Of the whole text, those behind the last chunk included.
  std::span<const TokenId> ids() const { return ids_; }
  /// The text's tokens: what is predicted.
  std::span<const TokenId> chunk(int chunk_idx) const;
  /// What is fed: all but the last token, the first one replaced by BOS where the model adds one.
  std::vector<TokenId> input(int chunk_idx) const;

 private:
  std::vector<TokenId> ids_;
  int n_ctx_ = 0, n_chunks_ = 0;
  std::optional<TokenId> first_;  ///< what a chunk begins with, whatever the text has there
};

/// Errors: kInvalidArgument, unless `n_ctx_min` <= n_ctx <= what the engine has.
Status check_chunk_length(const engine::Engine& engine, int n_ctx, int n_ctx_min);

/// Rows of a forward pass whose logits stay under 64 MiB.
int rows_per_step(const engine::Engine& engine);

/// One sequence's piece: rows [n_rows][vocab] at positions `first`... The callee may take `logits`
/// by swapping it for another vector.
using TakeLogits = std::function<void(std::size_t sequence_idx, int first, int n_rows,
                                      std::vector<float>& logits)>;

/// Appends `ids` to every sequence, piece by piece and one sequence after the other within a piece,
/// and hands over the logits of positions from `first_wanted` on. Requires: empty sequences.
/// Errors: kCancelled (`stop`), those of Engine::forward.
Status run_in_pieces(engine::Engine& engine, std::span<cache::Sequence> sequences,
                     std::span<const TokenId> ids, int first_wanted, const std::atomic<bool>* stop,
                     const TakeLogits& take);

}  // namespace kvasir::eval
