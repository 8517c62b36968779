// From what a person gives (flags, files, pipes, JSON) to the ids of a prompt.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "engine/engine.h"
#include "text/value.h"

namespace kvasir::cli {

struct Prompt {
  std::string text;  ///< as the model sees it; empty when ids were given
  std::vector<TokenId> ids;
};

/// JSON -> template values; objects keep their order of keys.
text::Value to_value(const nlohmann::ordered_json& json);

/// Renders an array of messages ({"role", "content", ...}) with the model's chat template.
/// `extra` holds template variables (an object), e.g. {"enable_thinking": false}; `tools` an array.
/// Errors: kInvalidArgument (not such an array; the template's own complaint), kUnsupported (no
/// template).
Result<Prompt> render_chat(const text::Tokenizer& tokenizer,
                           std::optional<std::string_view> chat_template,
                           const nlohmann::ordered_json& messages,
                           const nlohmann::ordered_json& tools = nullptr,
                           const nlohmann::ordered_json& extra = nullptr);

/// The text as it is, with BOS where the model adds one, special tokens parsed.
Prompt raw_prompt(const text::Tokenizer& tokenizer, std::string text);

}  // namespace kvasir::cli
