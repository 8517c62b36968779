// Cuts a template into tokens by Jinja2's rules, with trim_blocks and lstrip_blocks on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir::text::jinja {

enum class TokenKind {
  kData,           ///< text between tags, white space control applied
  kVariableBegin,  ///< {{
  kVariableEnd,
  kBlockBegin,  ///< {%
  kBlockEnd,
  kName,
  kString,  ///< text: escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
  int column = 1;

  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

/// The last token is kEnd. Throws TemplateError with line and column.
std::vector<Token> tokenize(std::string_view source);

}  // namespace kvasir::text::jinja
