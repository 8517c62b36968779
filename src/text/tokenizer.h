// Text to token ids and back, as the model's GGUF says: byte-level BPE or SPM.
//
// Thread safety: immutable after load; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "gguf/file.h"

namespace kvasir::text {

/// Whether BOS/EOS are added as the model asks (`tokenizer.ggml.add_bos_token`, ...).
enum class AddSpecial { kNo, kYes };
/// Whether "<|im_start|>" in the text becomes the special token or plain text.
enum class ParseSpecial { kNo, kYes };

class Tokenizer {
 public:
  /// Errors: kInvalidModel (missing or mistyped keys, broken merges), kUnsupported (a tokenizer
  /// model or a pre-tokenizer this build does not know, by name).
  static Result<Tokenizer> load(const gguf::File& file);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// Ids of `text` (any bytes; invalid UTF-8 is tokenized byte by byte, never an error).
  /// Cost: O(n log n) at worst in the length of the text, without recursion.
  std::vector<TokenId> encode(std::string_view text, AddSpecial add_special,
                              ParseSpecial parse_special) const;

  /// The bytes a token stands for in running text; empty for control tokens unless `special` asks
  /// for their names. Requires: 0 <= token < vocab_size().
  std::string piece(TokenId token, ParseSpecial special = ParseSpecial::kNo) const;

  int vocab_size() const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  bool add_bos() const;
  bool add_eos() const;
  /// End of generation: eos, eot, and tokens whose text says so (<|im_end|>, <end_of_turn>, ...).
  bool is_eog(TokenId token) const;
  bool is_control(TokenId token) const;
  /// The id of exactly this special token, if the vocabulary has it.
  std::optional<TokenId> special_token(std::string_view text) const;
  /// SPM vocabularies put a space before the first word; the stream decoder removes it.
  bool strips_leading_space() const;

  class Impl;

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Whether the space that SPM puts before a text is taken off. A continuation keeps it: there it
/// separates two words.
enum class LeadingSpace { kStrip, kKeep };

/// Turns tokens into text as they come, holding back the bytes of a code point until it is whole;
/// bytes that can never become one are given out as U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer,
                         LeadingSpace leading_space = LeadingSpace::kStrip)
      : tokenizer_(tokenizer), at_start_(leading_space == LeadingSpace::kStrip) {}
  /// The complete text that `token` releases; may be empty.
  std::string push(TokenId token);
  /// The same for raw bytes.
  std::string push_bytes(std::string_view bytes);
  /// What is still held back, with U+FFFD in place of a cut code point.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
  bool at_start_;  // a leading space is still to be removed
};

}  // namespace kvasir::text
