// Cuts text into the words within which byte-level BPE may merge: one scanner for each regular
// expression that models are trained with.
//
// The scanners are written by hand instead of run by a regex engine: they take linear time on any
// input (no backtracking over a run more than once) and treat an invalid byte as a symbol of its
// own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvasir::text {

/// One regular expression of a pre-tokenizer; each cuts the pieces that the one before it left.
enum class SplitRule : std::uint8_t {
  kGpt2,          ///< 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kLlama3,        ///< contractions in any case, \p{N}{1,3}, a letter run with one leading character
  kQwen2,         ///< as kLlama3 with \p{N}
  kQwen35,        ///< as kQwen2 with marks counted as letters
  kTekken,        ///< words cut where lower case meets upper case, \p{N}
  kGpt4o,         ///< as kTekken with contractions attached and \p{N}{1,3}
  kDeepseek3,     ///< punctuation with ASCII letters, [\p{L}\p{M}]+, [\p{P}\p{S}]+, white space
  kEachNumber,    ///< \p{N}
  kThreeNumbers,  ///< \p{N}{1,3}
  kNumbers,       ///< \p{N}+
  kThreeDigits,   ///< [0-9][0-9][0-9]
  kEachNewline,   ///< [\r\n]
  kFalconSymbols,    ///< [\p{P}$+<=>^~|`]+
  kDefaultSymbols,   ///< the same without the grave accent
  kSpacedLetters,    ///< \s?\p{L}+
  kSpacedPunct,      ///< \s?\p{P}+
  kDeepseekLetters,  ///< \s?[cased letters of the scripts deepseek-llm lists]+
  kDeepseekPunct,    ///< \s?[!-/:-~ and their full-width forms, general and CJK punctuation]+
  kTrailingSpace,    ///< \s+$
  kDeepseekCjk,      ///< [\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+
  kDeepseek3Cjk,     ///< [\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+
};

class PreTokenizer {
 public:
  /// By the value of `tokenizer.ggml.pre`. Errors: kUnsupported, naming it.
  /// Source: llama.cpp src/llama-vocab.cpp (names, order of rules) and the models' tokenizer.json
  /// (the expressions). Where the two differ the model's own holds: marks within tekken and gpt-4o
  /// words, white space beyond ASCII in deepseek's CJK range.
  static Result<PreTokenizer> by_name(std::string_view name);

  /// A word that is a token as it stands is taken whole, without merging.
  bool ignores_merges() const { return ignores_merges_; }
  /// Whether BOS is added when the file does not say.
  bool adds_bos() const { return adds_bos_; }

  /// Ends (byte offsets, ascending, the last is text.size()) of the words of `text`.
  /// Requires: text.size() < 2^32. Cost: O(n) for each rule.
  std::vector<std::uint32_t> split(std::string_view text) const;

 private:
  std::span<const SplitRule> rules_;  // of a constant table
  bool ignores_merges_ = false;
  bool adds_bos_ = false;
};

}  // namespace kvasir::text
