// WordPiece ("bert" models): lower-cased words without accents, cut greedily into the longest
// tokens.
//
// GGUF writes the first piece of a word with U+2581 before it, and later pieces without their "##".
// Source: Devlin et al. 2018, arXiv:1810.04805 (BasicTokenizer, WordpieceTokenizer); llama.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/encoder.h"
#include "text/trie.h"

namespace kvasir::text {

class WordPieceEncoder final : public Encoder {
 public:
  /// `vocabulary` must outlive the encoder.
  explicit WordPieceEncoder(const Vocabulary& vocabulary);

  void encode(std::string_view text, std::vector<TokenId>* out) const override;
  std::string piece(TokenId token) const override;

 private:
  void encode_word(std::string_view word, std::vector<TokenId>* out) const;

  const Vocabulary& vocabulary_;
  Trie pieces_;
};

}  // namespace kvasir::text
