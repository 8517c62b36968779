// The vocabulary of a GGUF file, checked: texts, types, scores, and the tokens with a meaning.
//
// Invariants
// I1 Types and scores have one entry for each token; every special id is within the vocabulary.
// I2 Of tokens with the same text, the first is the one that is found.
// Thread safety: immutable after load; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "gguf/file.h"
#include "text/hash_index.h"

namespace kvasir::text {

/// `tokenizer.ggml.token_type`; numbers beyond these are read as kUndefined.
enum class TokenType : std::uint8_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

enum class VocabularyModel { kBpe, kSpm, kWordPiece };

class Vocabulary {
 public:
  static constexpr std::size_t kTokensMax = std::size_t{4} << 20;

  /// Copies what it needs: the file may go. Errors: kInvalidModel, kUnsupported.
  static Result<Vocabulary> load(const gguf::File& file);

  VocabularyModel model() const { return model_; }
  int size() const { return static_cast<int>(types_.size()); }
  /// Of all texts together.
  std::size_t n_bytes() const { return bytes_.size(); }
  std::string_view text(TokenId id) const {
    return {bytes_.data() + offsets_[index(id)], offsets_[index(id) + 1] - offsets_[index(id)]};
  }
  TokenType type(TokenId id) const { return types_[index(id)]; }
  /// Zero where the file has no scores.
  float score(TokenId id) const { return scores_.empty() ? 0.0f : scores_[index(id)]; }
  bool has_scores() const { return !scores_.empty(); }

  /// What running text may become: every token but control, unknown and byte ones. -1: none.
  TokenId find(std::string_view text) const { return plain_.find(text); }
  /// Control, user-defined and unknown tokens. -1: none.
  TokenId find_special(std::string_view text) const { return special_.find(text); }
  /// Bytes of the longest text that `find` can find.
  std::size_t longest() const { return plain_.longest(); }
  /// The token "<0xNN>"; -1: none.
  TokenId byte_token(std::uint8_t byte) const { return byte_tokens_[byte]; }
  /// The byte a token of type kByte stands for, if its text says one.
  std::optional<std::uint8_t> byte_value(TokenId id) const;

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> unknown() const { return unknown_; }
  bool is_eog(TokenId id) const { return is_eog_[index(id)]; }

 private:
  static std::size_t index(TokenId id) { return static_cast<std::size_t>(id); }

  Status load_model(const gguf::File& file);
  Status load_texts(const gguf::File& file);
  Status load_types(const gguf::File& file);
  Status load_scores(const gguf::File& file);
  Status load_special_ids(const gguf::File& file);
  void mark_named_tokens();
  void build_indices();

  VocabularyModel model_ = VocabularyModel::kBpe;
  std::vector<char> bytes_;             // all texts, one after another
  std::vector<std::uint64_t> offsets_;  // of each text in bytes_, and one more for the end
  std::vector<TokenType> types_;
  std::vector<float> scores_;  // empty, or one for each
  std::vector<bool> is_eog_;
  std::array<TokenId, 256> byte_tokens_{};
  StringIndex plain_;
  StringIndex special_;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  std::optional<TokenId> unknown_;
};

}  // namespace kvasir::text
