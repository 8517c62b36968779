// From messages to the tokens of a prompt: the model's chat template, with no way for a user to
// forge its special tokens.
//
// Thread safety: immutable after creation; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "gguf/file.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/value.h"

namespace kvasir::text {

/// A copy of messages or tools in which every string is marked as input, so that nothing in it
/// becomes a special token. Only the well-known names of roles under the key "role" stay unmarked:
/// some templates build a special token around them.
/// Errors: kInvalidArgument when the value is nested deeper than 128 levels.
Result<Value> mark_input(const Value& value);

/// What one prompt is made of.
struct ChatRequest {
  Value messages;                ///< a list of dicts; pass it through mark_input()
  Value tools = Value(nullptr);  ///< none, or a list of dicts, through mark_input() too
  bool add_generation_prompt = true;
  std::int64_t now_seconds = 0;  ///< since 1970 UTC, for templates that print the date
  /// More variables of the template (`enable_thinking`, `documents`, ...); these win.
  std::map<std::string, Value> extra;
};

struct RenderedPrompt {
  std::string text;
  std::vector<TokenId> ids;
};

class ChatFormatter {
 public:
  /// Uses the file's template; without one, ChatML if the vocabulary has its tokens. The tokenizer
  /// must outlive this object.
  /// Errors: kInvalidModel (broken template), kUnsupported (there is none).
  static Result<ChatFormatter> load(const gguf::File& file, const Tokenizer& tokenizer);
  /// The same with a template of the caller's.
  static Result<ChatFormatter> create(std::string_view source, const Tokenizer& tokenizer,
                                      const TemplateLimits& limits = {});
  ~ChatFormatter();
  ChatFormatter(ChatFormatter&&) noexcept;
  ChatFormatter& operator=(ChatFormatter&&) noexcept;

  /// The prompt as text and tokens. Ensures: special tokens come from the template's own words
  /// alone; where no input spells a special token, `ids` are those of `text` encoded with special
  /// tokens parsed; a BOS, if the tokenizer adds one, comes exactly once.
  /// Errors: those of ChatTemplate::render().
  Result<RenderedPrompt> render(const ChatRequest& request) const;

  /// The tokens of a prompt whose pieces are at hand. A BOS is added as render() does.
  std::vector<TokenId> encode(const std::vector<PromptPiece>& pieces) const;

  class Impl;

 private:
  explicit ChatFormatter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::text
