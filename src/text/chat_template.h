// Chat templates: the Jinja subset that GGUF files use, run with limits because the file is
// hostile.
//
// Text that came from a user keeps a mark through every string operation, so that the prompt comes
// out as pieces and only the template's own words are parsed for special tokens: a user who types
// "<|im_end|>" gets the text, not the token.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/value.h"

namespace kvasir::text {

struct TemplateLimits {
  std::uint64_t n_steps_max = 2'000'000;  ///< evaluated nodes and loop turns
  int depth_max = 128;                    ///< nesting of brackets, blocks, macro calls and values
  std::uint64_t output_bytes_max = std::uint64_t{64} << 20;  ///< also of any intermediate string
  std::uint64_t source_bytes_max = std::uint64_t{1} << 20;   ///< of the template itself
};

/// A run of the rendered prompt from one source.
struct PromptPiece {
  std::string text;
  bool from_input = false;  ///< true: user's, tool's or system's words; never parsed for specials
};

class ChatTemplate {
 public:
  /// Errors: kInvalidModel with line and column.
  static Result<ChatTemplate> compile(std::string_view source, const TemplateLimits& limits = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Renders with these globals (`messages`, `tools`, `bos_token`, `eos_token`,
  /// `add_generation_prompt`, ... and anything the caller adds). trim_blocks and lstrip_blocks are
  /// on, as Hugging Face sets them. Adjacent pieces of one source are merged.
  /// Errors: kInvalidArgument for the template's own raise_exception(), with its message;
  /// kInvalidModel for an error in the template; kExhausted when a limit is hit.
  Result<std::vector<PromptPiece>> render(const std::map<std::string, Value>& globals) const;

  class Impl;

 private:
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::text
