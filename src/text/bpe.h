// Byte-level byte pair encoding (GPT-2 and its descendants).
//
// Source: Sennrich et al. 2016, arXiv:1508.07909; the byte alphabet: GPT-2's bytes_to_unicode.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/file.h"
#include "text/encoder.h"
#include "text/hash_index.h"
#include "text/pretokenizer.h"

namespace kvasir::text {

class BpeEncoder final : public Encoder {
 public:
  /// `vocabulary` must outlive the encoder. Errors: kInvalidModel (merges missing, mistyped, or
  /// without a separator). A merge whose pieces or whose result are no tokens is ignored.
  static Result<std::unique_ptr<BpeEncoder>> load(const gguf::File& file,
                                                  const Vocabulary& vocabulary,
                                                  PreTokenizer pretokenizer);

  void encode(std::string_view text, std::vector<TokenId>* out) const override;
  std::string piece(TokenId token) const override;

 private:
  BpeEncoder(const Vocabulary& vocabulary, PreTokenizer pretokenizer);
  Status load_merges(const gguf::File& file);
  void build_words();

  const Vocabulary& vocabulary_;
  PreTokenizer pretokenizer_;
  std::array<TokenId, 256> byte_tokens_{};  // -1: the byte is dropped
  MergeTable merges_;
  // Only where whole words are taken before merging: the bytes of every token, and their index.
  std::vector<char> word_bytes_;
  StringIndex words_;
};

}  // namespace kvasir::text
