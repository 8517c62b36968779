#include "prompting.h"

#include <fmt/core.h>

#include <ctime>

namespace kvasir::cli {
namespace {

Status check_messages(const nlohmann::ordered_json& messages) {
  if (!messages.is_array() || messages.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("messages: got {}, want an array of at least one message",
                             messages.is_array() ? "an empty array" : messages.type_name())};
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& message = messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("messages[{}]: want an object with a \"role\" string", i)};
    }
  }
  return {};
}

}  // namespace

text::Value to_value(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer:
    case nlohmann::ordered_json::value_t::number_unsigned:
      return json.get<std::int64_t>();
    case nlohmann::ordered_json::value_t::number_float:
      return json.get<double>();
    case nlohmann::ordered_json::value_t::string:
      return json.get<std::string>();
    case nlohmann::ordered_json::value_t::array: {
      text::List list;
      for (const auto& element : json) list.push_back(to_value(element));
      return list;
    }
    case nlohmann::ordered_json::value_t::object: {
      text::Dict dict;
      for (const auto& [key, value] : json.items()) dict.emplace_back(key, to_value(value));
      return dict;
    }
    default:
      return nullptr;
  }
}

Result<text::RenderedPrompt> render_chat(const text::ChatFormatter& chat,
                                         const nlohmann::ordered_json& messages,
                                         const nlohmann::ordered_json& tools,
                                         const nlohmann::ordered_json& extra) {
  KVASIR_RETURN_IF_ERROR(check_messages(messages));
  if (!tools.is_null() && !tools.is_array()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("tools: got {}, want an array", tools.type_name())};
  }
  if (!extra.is_null() && !extra.is_object()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("chat_template_kwargs: got {}, want an object", extra.type_name())};
  }
  text::ChatRequest request;
  KVASIR_ASSIGN_OR_RETURN(request.messages, text::mark_input(to_value(messages)));
  KVASIR_ASSIGN_OR_RETURN(request.tools, text::mark_input(to_value(tools)));
  request.now_seconds = static_cast<std::int64_t>(std::time(nullptr));
  for (const auto& [key, value] : extra.items()) {
    KVASIR_ASSIGN_OR_RETURN(request.extra[key], text::mark_input(to_value(value)));
  }
  return chat.render(request);
}

Status check_length(std::string_view text, int n_ctx) {
  constexpr std::uint64_t kTokenBytesMax = 1024;  // the longest known are a few hundred
  if (text.size() <= static_cast<std::uint64_t>(n_ctx) * kTokenBytesMax) return {};
  return Error{ErrorCode::kExhausted,
               fmt::format("prompt: does not fit the context; got {} bytes, want at most {} tokens",
                           text.size(), n_ctx)};
}

text::RenderedPrompt raw_prompt(const text::Tokenizer& tokenizer, std::string text) {
  text::RenderedPrompt prompt;
  prompt.ids = tokenizer.encode(text, text::AddSpecial::kYes, text::ParseSpecial::kYes);
  prompt.text = std::move(text);
  return prompt;
}

}  // namespace kvasir::cli
