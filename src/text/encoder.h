// What the three tokenizer models have in common: text without special tokens to ids, ids to bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "text/vocabulary.h"

namespace kvasir::text {

/// Threads: immutable after construction; any thread.
class Encoder {
 public:
  /// Offsets within a text are 32 bits wide; SPM writes up to three bytes for each of the text.
  static constexpr std::size_t kTextBytesMax = std::size_t{1} << 30;

  virtual ~Encoder() = default;
  /// Appends the ids of `text`, which begins a text or follows a special token.
  /// Requires: text.size() <= kTextBytesMax.
  virtual void encode(std::string_view text, std::vector<TokenId>* out) const = 0;
  /// The bytes of a token that is neither special nor a byte token.
  virtual std::string piece(TokenId token) const = 0;
};

}  // namespace kvasir::text
