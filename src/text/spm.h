// SentencePiece BPE ("llama" models): merges whole characters by the scores of the tokens they
// form.
//
// Source: Kudo & Richardson 2018, arXiv:1808.06226; SentencePiece bpe_model.cc; llama.cpp for what
// GGUF makes of it (space prefix, byte tokens).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/encoder.h"
#include "text/hash_index.h"
#include "text/merge_queue.h"

namespace kvasir::text {

class SpmEncoder final : public Encoder {
 public:
  enum class SpacePrefix { kNo, kYes };
  /// `vocabulary` must outlive the encoder. `space_prefix`: whether a text gets a space before it.
  SpmEncoder(const Vocabulary& vocabulary, SpacePrefix space_prefix);

  void encode(std::string_view text, std::vector<TokenId>* out) const override;
  std::string piece(TokenId token) const override;

 private:
  std::string escaped(std::string_view text) const;
  void append_ids(std::string_view text, const std::vector<Symbol>& symbols,
                  std::vector<TokenId>* out) const;

  const Vocabulary& vocabulary_;
  SpacePrefix space_prefix_;
  std::vector<std::uint32_t> ranks_;  // of each token: the higher the score, the lower the rank
  // Pairs of characters that stand side by side within some token. A merge never crosses another
  // pair, so a text is cut there and only its short pieces are merged; the ids are the same.
  MergeTable neighbours_;
};

/// Every U+2581 of `text` as a space.
std::string unescape_spaces(std::string_view text);

}  // namespace kvasir::text
