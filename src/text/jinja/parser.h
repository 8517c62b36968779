// Builds the tree of a template from its source.
#pragma once

#include <string_view>

#include "text/chat_template.h"
#include "text/jinja/ast.h"

namespace kvasir::text::jinja {

/// How many evaluations may be nested for each level of TemplateLimits::depth_max: one level of a
/// template (a bracket, a block, a macro call) takes a few.
inline constexpr int kEvaluationsPerLevel = 6;

/// Throws TemplateError with line and column; kInvalidModel also for nesting past the limit.
Body parse(std::string_view source, const TemplateLimits& limits);

}  // namespace kvasir::text::jinja
