// Statements: the tags and what stands between them.
#include "text/jinja/parser.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/expr_parser.h"

namespace kvasir::text::jinja {

namespace {

using StmtPtr = std::unique_ptr<Stmt>;
using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  Parser(std::string_view source, const TemplateLimits& limits)
      : in_(tokenize(source), limits.depth_max) {}

  Body run() {
    Body body;
    while (in_.current().kind != TokenKind::kEnd) statement(body);
    return body;
  }

 private:
  /// Statements up to a block tag with one of these names; the name is the current token then.
  Body until(Names ends, std::string_view opened_by, const Token& open) {
    const ExprParser::Level level(in_);
    Body body;
    while (in_.current().kind != TokenKind::kEnd) {
      if (in_.current().kind == TokenKind::kBlockBegin && in_.ahead().kind == TokenKind::kName &&
          std::find(ends.begin(), ends.end(), in_.ahead().text) != ends.end()) {
        in_.next();
        return body;
      }
      statement(body);
    }
    in_.error_at(fmt::format("block '{}' is never closed; want '{}'", opened_by, *(ends.end() - 1)),
                 open.line, open.column);
  }

  /// The same for a block with one end, and past the end tag.
  Body block(std::string_view end, std::string_view opened_by, const Token& open) {
    in_.expect_kind(TokenKind::kBlockEnd);
    Body body = until({end}, opened_by, open);
    in_.next();
    return body;
  }

  void end_tag() { in_.expect_kind(TokenKind::kBlockEnd); }

  void statement(Body& body) {
    const Token token = in_.next();
    auto stmt = std::make_unique<Stmt>();
    stmt->line = token.line;
    stmt->column = token.column;
    switch (token.kind) {
      case TokenKind::kData:
        stmt->data = std::make_shared<const Text>(Text(token.text));
        break;
      case TokenKind::kVariableBegin:
        stmt->kind = StmtKind::kOutput;
        stmt->expr = in_.tuple(ExprParser::Conditional::kYes);
        in_.expect_kind(TokenKind::kVariableEnd);
        break;
      case TokenKind::kBlockBegin:
        tag(*stmt);
        end_tag();
        break;
      default:
        in_.error_at("unexpected token", token.line, token.column);
    }
    body.push_back(std::move(stmt));
  }

  void tag(Stmt& stmt) {
    const Token name = in_.current();
    in_.expect_name();
    const std::string& tag = name.text;
    if (tag == "if") return if_block(stmt, name);
    if (tag == "for") return for_block(stmt, name);
    if (tag == "set") return set(stmt, name);
    if (tag == "macro") return macro(stmt, name);
    if (tag == "call") return call_block(stmt, name);
    if (tag == "filter") {
      stmt.kind = StmtKind::kFilter;
      stmt.expr = in_.filter_chain();
      stmt.body = block("endfilter", tag, name);
      return;
    }
    if (tag == "with") return with_block(stmt, name);
    if (tag == "generation") {
      // Hugging Face's mark of what the assistant wrote; it renders its body.
      stmt.kind = StmtKind::kScope;
      stmt.body = block("endgeneration", tag, name);
      return;
    }
    if (tag == "break" || tag == "continue") {
      if (n_loops_ == 0) {
        in_.error_at(fmt::format("'{}' outside of a loop", tag), name.line, name.column);
      }
      stmt.kind = tag == "break" ? StmtKind::kBreak : StmtKind::kContinue;
      return;
    }
    in_.error_at(fmt::format("unknown tag '{}'", tag), name.line, name.column);
  }

  void if_block(Stmt& stmt, const Token& open) {
    stmt.kind = StmtKind::kIf;
    while (true) {
      Branch branch;
      branch.test = in_.tuple(ExprParser::Conditional::kNo);
      end_tag();
      branch.body = until({"elif", "else", "endif"}, "if", open);
      stmt.branches.push_back(std::move(branch));
      const Token end = in_.next();
      if (end.text == "elif") continue;
      if (end.text == "else") {
        Branch otherwise;
        otherwise.body = block("endif", "if", open);
        stmt.branches.push_back(std::move(otherwise));
      }
      return;
    }
  }

  void for_block(Stmt& stmt, const Token& open) {
    stmt.kind = StmtKind::kFor;
    stmt.target = in_.target(ExprParser::AllowAttribute::kNo);
    if (!in_.skip_name("in")) in_.error("unexpected token in 'for'; want 'in'");
    stmt.expr = in_.tuple(ExprParser::Conditional::kNo);
    if (in_.skip_name("if")) stmt.condition = in_.expression();
    if (in_.current().is_name("recursive")) in_.error("recursive loops are not supported");
    end_tag();
    ++n_loops_;
    stmt.body = until({"else", "endfor"}, "for", open);
    --n_loops_;
    if (in_.next().text == "else") stmt.otherwise = block("endfor", "for", open);
  }

  void set(Stmt& stmt, const Token& open) {
    stmt.target = in_.target(ExprParser::AllowAttribute::kYes);
    if (in_.skip_operator("=")) {
      stmt.kind = StmtKind::kSet;
      stmt.expr = in_.tuple(ExprParser::Conditional::kYes);
      return;
    }
    stmt.kind = StmtKind::kSetBlock;
    if (in_.skip_operator("|")) stmt.expr = in_.filter_chain();
    stmt.body = block("endset", "set", open);
  }

  void parameters(MacroNode& node) {
    in_.expect_operator("(");
    while (!in_.current().is_operator(")")) {
      if (!node.parameters.empty()) in_.expect_operator(",");
      MacroNode::Parameter parameter;
      parameter.name = in_.expect_name();
      if (in_.skip_operator("=")) {
        parameter.default_value = in_.expression();
      } else if (!node.parameters.empty() && node.parameters.back().default_value) {
        in_.error("parameter without a default after one with");
      }
      node.parameters.push_back(std::move(parameter));
    }
    in_.expect_operator(")");
  }

  /// The body of a macro is no part of the loop around it.
  void macro_body(MacroNode& node, std::string_view end, std::string_view tag, const Token& open) {
    const int n_loops = std::exchange(n_loops_, 0);
    node.body = block(end, tag, open);
    n_loops_ = n_loops;
  }

  void macro(Stmt& stmt, const Token& open) {
    stmt.kind = StmtKind::kMacro;
    stmt.macro = std::make_unique<MacroNode>();
    stmt.macro->name = in_.expect_name();
    in_.macros().push_back(stmt.macro.get());
    parameters(*stmt.macro);
    macro_body(*stmt.macro, "endmacro", "macro", open);
    in_.macros().pop_back();
  }

  void call_block(Stmt& stmt, const Token& open) {
    stmt.kind = StmtKind::kCall;
    stmt.macro = std::make_unique<MacroNode>();
    stmt.macro->name = "caller";
    if (in_.current().is_operator("(")) parameters(*stmt.macro);
    const Token at = in_.current();
    stmt.expr = in_.unary_expression();
    if (stmt.expr->kind != ExprKind::kCall) {
      in_.error_at("unexpected expression in 'call'; want a call", at.line, at.column);
    }
    macro_body(*stmt.macro, "endcall", "call", open);
  }

  void with_block(Stmt& stmt, const Token& open) {
    stmt.kind = StmtKind::kWith;
    while (in_.current().kind != TokenKind::kBlockEnd) {
      if (!stmt.bindings.empty()) in_.expect_operator(",");
      Binding binding;
      binding.target.name = in_.expect_name();
      in_.expect_operator("=");
      binding.value = in_.expression();
      stmt.bindings.push_back(std::move(binding));
    }
    stmt.body = block("endwith", "with", open);
  }

  ExprParser in_;
  int n_loops_ = 0;
};

}  // namespace

Body parse(std::string_view source, const TemplateLimits& limits) {
  return Parser(source, limits).run();
}

}  // namespace kvasir::text::jinja
