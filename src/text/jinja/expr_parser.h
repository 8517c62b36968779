// Parses the expressions of a template with Jinja2's precedence, by recursive descent.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace kvasir::text::jinja {

class ExprParser {
 public:
  ExprParser(std::vector<Token> tokens, int depth_max)
      : tokens_(std::move(tokens)), depth_max_(depth_max) {}

  // The token stream.
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next();
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_operator(std::string_view op);
  void expect_kind(TokenKind kind);
  std::string expect_name();
  [[noreturn]] void error(std::string message) const;
  [[noreturn]] void error_at(std::string message, int line, int column) const;

  /// With or without `a if b else c`, which the iterable of a for cannot be.
  enum class Conditional { kNo, kYes };
  ExprPtr expression();
  /// An expression, or a tuple when a comma follows.
  ExprPtr tuple(Conditional conditional);
  /// `name(.name)*(args)?(|...)*` on a null subject.
  ExprPtr filter_chain();
  /// Postfix operators and a call, as the call block has it.
  ExprPtr unary_expression();
  /// `a`, `a, b`, `(a, b)`, and `a.b` where a namespace may be assigned to.
  enum class AllowAttribute { kNo, kYes };
  Target target(AllowAttribute allow_attribute);

  /// Counts one level of nesting while it lives.
  class Level {
   public:
    explicit Level(ExprParser& parser) : parser_(parser) {
      if (++parser_.depth_ > parser_.depth_max_) parser_.error("nested too deeply");
    }
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    ExprParser& parser_;
  };

  /// The macros around the current token: names read in expressions are noted in them.
  std::vector<MacroNode*>& macros() { return macros_; }

 private:
  ExprPtr make(ExprKind kind, const Token& at) const;
  ExprPtr adopt(ExprPtr parent, std::initializer_list<ExprPtr*> children) const;
  void measure(Expr& expr) const;

  ExprPtr conditional();
  ExprPtr either();  // or
  ExprPtr both();    // and
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  enum class WithFilters { kNo, kYes };
  ExprPtr unary(WithFilters with_filters);
  ExprPtr primary();
  ExprPtr name();
  ExprPtr number();
  ExprPtr parenthesized();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr subject);
  ExprPtr filters_and_tests(ExprPtr subject);
  ExprPtr filter(ExprPtr subject);
  ExprPtr test(ExprPtr subject);
  ExprPtr attribute(ExprPtr subject);
  ExprPtr subscript(ExprPtr subject);
  ExprPtr call(ExprPtr callee);
  std::string dotted_name();
  std::vector<Argument> arguments();
  bool at_end_of_tuple() const;
  Target single_target(AllowAttribute allow_attribute);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  const int depth_max_;
  std::vector<MacroNode*> macros_;
};

}  // namespace kvasir::text::jinja
