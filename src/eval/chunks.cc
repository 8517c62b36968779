#include "eval/chunks.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvasir::eval {

namespace {

constexpr std::size_t kLogitsBytesMax = std::size_t{64} << 20;

}  // namespace

Result<ChunkedText> ChunkedText::cut(const engine::Engine& engine, std::string_view text, int n_ctx,
                                     int n_chunks_max, const std::string& where) {
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const text::Tokenizer& tokenizer = engine.tokenizer();
  ChunkedText made;
  made.ids_ = tokenizer.encode(text, text::AddSpecial::kYes, text::ParseSpecial::kNo);
  made.n_ctx_ = n_ctx;
  const int n_whole = static_cast<int>(made.ids_.size()) / n_ctx;
  made.n_chunks_ = n_chunks_max < 0 ? n_whole : std::min(n_chunks_max, n_whole);
  if (made.n_chunks_ < 1) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: text too short; got {} tokens, want at least {}", where,
                             made.ids_.size(), n_ctx)};
  }
  if (tokenizer.add_bos()) made.first_ = tokenizer.bos();
  return made;
}

std::span<const TokenId> ChunkedText::chunk(int chunk_idx) const {
  const auto n = static_cast<std::size_t>(n_ctx_);
  return std::span(ids_).subspan(static_cast<std::size_t>(chunk_idx) * n, n);
}

std::vector<TokenId> ChunkedText::input(int chunk_idx) const {
  const auto original = chunk(chunk_idx);
  std::vector<TokenId> input(original.begin(), original.end() - 1);
  if (first_) input[0] = *first_;
  return input;
}

Status check_chunk_length(const engine::Engine& engine, int n_ctx, int n_ctx_min) {
  if (n_ctx >= n_ctx_min && n_ctx <= engine.n_ctx()) return {};
  // The engine may have been made just as small: what the model can do is the better answer.
  const int n_ctx_max = std::max(engine.n_ctx(), engine.model().config().n_ctx_train);
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("--ctx-size: got {}, want {} to {}", n_ctx, n_ctx_min, n_ctx_max)};
}

int rows_per_step(const engine::Engine& engine) {
  const auto row_bytes =
      static_cast<std::size_t>(engine.model().config().vocab_size) * sizeof(float);
  const auto n_rows = std::max<std::size_t>(1, kLogitsBytesMax / row_bytes);
  return static_cast<int>(std::min(n_rows, static_cast<std::size_t>(engine.options().n_batch)));
}

Status run_in_pieces(engine::Engine& engine, std::span<cache::Sequence> sequences,
                     std::span<const TokenId> ids, int first_wanted, const std::atomic<bool>* stop,
                     const TakeLogits& take) {
  std::vector<float> logits;
  const int n_ids = static_cast<int>(ids.size());
  const int n_rows_max = rows_per_step(engine);
  int n = 0;
  for (int pos = 0; pos < n_ids; pos += n) {
    const bool wanted = pos >= first_wanted;
    n = wanted ? std::min(n_rows_max, n_ids - pos)
               : std::min({engine.options().n_batch, first_wanted - pos, n_ids - pos});
    const auto piece = ids.subspan(static_cast<std::size_t>(pos), static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (stop != nullptr && stop->load()) return Error{ErrorCode::kCancelled, "eval: interrupted"};
      const engine::Engine::Step step{&sequences[i], piece, wanted ? n : 0};
      KVASIR_RETURN_IF_ERROR(engine.forward({&step, 1}, logits));
      if (wanted) take(i, pos, n, logits);
    }
  }
  return {};
}

}  // namespace kvasir::eval
