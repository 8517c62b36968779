// From what a person gives (text, JSON messages) to the ids of a prompt.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "text/value.h"

namespace kvasir::cli {

/// JSON -> template values; objects keep the order of their keys.
text::Value to_value(const nlohmann::ordered_json& json);

/// Renders messages ({"role", "content", ...}) with the model's chat template. `tools`: an array or
/// null; `extra`: an object of template variables ({"enable_thinking": false}) or null.
/// Errors: kInvalidArgument (not such JSON; the template's own complaint), those of render().
Result<text::RenderedPrompt> render_chat(const text::ChatFormatter& chat,
                                         const nlohmann::ordered_json& messages,
                                         const nlohmann::ordered_json& tools = nullptr,
                                         const nlohmann::ordered_json& extra = nullptr);

/// Refuses text that no tokenizer could fit into the context, before time goes into rendering and
/// encoding it. Errors: kExhausted.
Status check_length(std::string_view text, int n_ctx);

/// The text as it is, with BOS where the model adds one, special tokens parsed.
text::RenderedPrompt raw_prompt(const text::Tokenizer& tokenizer, std::string text);

}  // namespace kvasir::cli
