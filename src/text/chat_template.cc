// Compiles and renders chat templates; the language itself is in jinja/.
#include "text/chat_template.h"

#include <exception>

#include <fmt/format.h>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace kvasir::text {

class ChatTemplate::Impl {
 public:
  jinja::Body body;
  TemplateLimits limits;
};

namespace {

/// The template's own words come out as they are; our errors say where they happened.
Error to_error(const jinja::TemplateError& error) {
  if (error.code == ErrorCode::kInvalidArgument || error.line == 0) {
    return {error.code, error.message};
  }
  return {error.code, fmt::format("chat template, line {}, column {}: {}", error.line, error.column,
                                  error.message)};
}

/// Runs `work` and turns what it throws into an Error.
template <class Work>
auto guarded(Work work) -> Result<decltype(work())> {
  try {
    return work();
  } catch (const jinja::TemplateError& error) {
    return to_error(error);
  } catch (const std::exception& error) {
    return Error{ErrorCode::kExhausted, fmt::format("chat template: {}", error.what())};
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

Result<ChatTemplate> ChatTemplate::compile(std::string_view source, const TemplateLimits& limits) {
  if (source.size() > limits.source_bytes_max) {
    return Error{ErrorCode::kInvalidModel,
                 fmt::format("chat template: too long; got {} B, want at most {} B", source.size(),
                             limits.source_bytes_max)};
  }
  return guarded([&] {
    auto impl = std::make_unique<Impl>();
    impl->body = jinja::parse(source, limits);
    impl->limits = limits;
    return ChatTemplate(std::move(impl));
  });
}

Result<std::vector<PromptPiece>> ChatTemplate::render(
    const std::map<std::string, Value>& globals) const {
  return guarded([&] {
    jinja::Interpreter interpreter(impl_->limits, globals);
    const jinja::Text text = interpreter.run(impl_->body);
    std::vector<PromptPiece> pieces;
    std::size_t begin = 0;
    for (const jinja::Text::Span& span : text.spans()) {
      pieces.push_back({text.bytes().substr(begin, span.end - begin), span.from_input});
      begin = span.end;
    }
    return pieces;
  });
}

}  // namespace kvasir::text
