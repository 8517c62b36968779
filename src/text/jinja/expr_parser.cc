// Expressions: one function per level of precedence.
#include "text/jinja/expr_parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "text/jinja/parser.h"

namespace kvasir::text::jinja {

namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    default:
      return "'" + token.text + "'";
  }
}

}  // namespace

Token ExprParser::next() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExprParser::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  next();
  return true;
}

bool ExprParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

void ExprParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) {
    error(fmt::format("unexpected token; got {}, want '{}'", describe(current()), op));
  }
}

void ExprParser::expect_kind(TokenKind kind) {
  if (current().kind != kind) {
    const Token wanted{kind, {}, 0, 0};
    error(fmt::format("unexpected token; got {}, want {}", describe(current()), describe(wanted)));
  }
  next();
}

std::string ExprParser::expect_name() {
  if (current().kind != TokenKind::kName) {
    error(fmt::format("unexpected token; got {}, want a name", describe(current())));
  }
  return next().text;
}

void ExprParser::error(std::string message) const {
  error_at(std::move(message), current().line, current().column);
}

void ExprParser::error_at(std::string message, int line, int column) const {
  throw TemplateError{ErrorCode::kInvalidModel, std::move(message), line, column};
}

ExprPtr ExprParser::make(ExprKind kind, const Token& at) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = at.line;
  expr->column = at.column;
  return expr;
}

/// Sets the height; chains such as a+b+c+... grow it without recursion, so it is limited here.
void ExprParser::measure(Expr& expr) const {
  const auto take = [&](const ExprPtr& child) {
    if (child) expr.height = std::max(expr.height, child->height + 1);
  };
  for (const ExprPtr& child : expr.children) take(child);
  for (const Argument& argument : expr.arguments) take(argument.value);
  if (expr.height > kEvaluationsPerLevel * depth_max_) {
    error_at("expression nested too deeply", expr.line, expr.column);
  }
}

ExprPtr ExprParser::adopt(ExprPtr parent, std::initializer_list<ExprPtr*> children) const {
  for (ExprPtr* child : children) parent->children.push_back(std::move(*child));
  measure(*parent);
  return parent;
}

ExprPtr ExprParser::expression() { return conditional(); }

ExprPtr ExprParser::unary_expression() { return unary(WithFilters::kYes); }

ExprPtr ExprParser::conditional() {
  const Level level(*this);
  ExprPtr value = either();
  while (current().is_name("if")) {
    ExprPtr expr = make(ExprKind::kCondition, next());
    ExprPtr test = either();
    ExprPtr otherwise;
    if (skip_name("else")) otherwise = conditional();
    value = adopt(std::move(expr), {&test, &value, &otherwise});
  }
  return value;
}

ExprPtr ExprParser::either() {
  ExprPtr left = both();
  while (current().is_name("or")) {
    ExprPtr expr = make(ExprKind::kOr, next());
    ExprPtr right = both();
    left = adopt(std::move(expr), {&left, &right});
  }
  return left;
}

ExprPtr ExprParser::both() {
  ExprPtr left = negation();
  while (current().is_name("and")) {
    ExprPtr expr = make(ExprKind::kAnd, next());
    ExprPtr right = negation();
    left = adopt(std::move(expr), {&left, &right});
  }
  return left;
}

ExprPtr ExprParser::negation() {
  if (!current().is_name("not")) return comparison();
  const Level level(*this);
  ExprPtr expr = make(ExprKind::kNot, next());
  ExprPtr operand = negation();
  return adopt(std::move(expr), {&operand});
}

ExprPtr ExprParser::comparison() {
  ExprPtr first = sum();
  ExprPtr compare;
  while (true) {
    constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
    const Token token = current();
    std::string op;
    if (token.kind == TokenKind::kOperator &&
        std::find(std::begin(kOperators), std::end(kOperators), token.text) !=
            std::end(kOperators)) {
      op = token.text;
    } else if (token.is_name("in")) {
      op = "in";
    } else if (token.is_name("not") && ahead().is_name("in")) {
      op = "not in";
      next();
    } else {
      break;
    }
    next();
    if (!compare) {
      compare = make(ExprKind::kCompare, token);
      compare->children.push_back(std::move(first));
    }
    compare->operators.push_back(op);
    compare->children.push_back(sum());
  }
  if (!compare) return first;
  measure(*compare);
  return compare;
}

ExprPtr ExprParser::sum() {
  ExprPtr left = concatenation();
  while (current().is_operator("+") || current().is_operator("-")) {
    ExprPtr expr = make(ExprKind::kBinary, current());
    expr->name = next().text;
    ExprPtr right = concatenation();
    left = adopt(std::move(expr), {&left, &right});
  }
  return left;
}

ExprPtr ExprParser::concatenation() {
  ExprPtr first = product();
  if (!current().is_operator("~")) return first;
  ExprPtr expr = make(ExprKind::kConcat, current());
  expr->children.push_back(std::move(first));
  while (skip_operator("~")) expr->children.push_back(product());
  measure(*expr);
  return expr;
}

ExprPtr ExprParser::product() {
  ExprPtr left = power();
  while (current().is_operator("*") || current().is_operator("/") || current().is_operator("//") ||
         current().is_operator("%")) {
    ExprPtr expr = make(ExprKind::kBinary, current());
    expr->name = next().text;
    ExprPtr right = power();
    left = adopt(std::move(expr), {&left, &right});
  }
  return left;
}

ExprPtr ExprParser::power() {
  ExprPtr left = unary(WithFilters::kYes);
  while (current().is_operator("**")) {
    ExprPtr expr = make(ExprKind::kBinary, current());
    expr->name = next().text;
    ExprPtr right = unary(WithFilters::kYes);
    left = adopt(std::move(expr), {&left, &right});
  }
  return left;
}

ExprPtr ExprParser::unary(WithFilters with_filters) {
  ExprPtr expr;
  if (current().is_operator("-") || current().is_operator("+")) {
    const Level level(*this);
    const Token sign = next();
    expr = make(sign.text == "-" ? ExprKind::kNegate : ExprKind::kPlus, sign);
    ExprPtr operand = unary(WithFilters::kNo);
    expr = adopt(std::move(expr), {&operand});
  } else {
    expr = primary();
  }
  expr = postfix(std::move(expr));
  return with_filters == WithFilters::kYes ? filters_and_tests(std::move(expr)) : std::move(expr);
}

ExprPtr ExprParser::primary() {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kName:
      return name();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return number();
    case TokenKind::kString: {
      ExprPtr expr = make(ExprKind::kConst, token);
      std::string text;
      while (current().kind == TokenKind::kString) text += next().text;
      expr->constant = Obj(Text(std::move(text)));
      return expr;
    }
    case TokenKind::kOperator:
      if (token.text == "(") return parenthesized();
      if (token.text == "[") return list();
      if (token.text == "{") return dict();
      break;
    default:
      break;
  }
  error(fmt::format("unexpected token; got {}, want an expression", describe(token)));
}

ExprPtr ExprParser::name() {
  const Token token = next();
  const std::string& text = token.text;
  ExprPtr expr = make(ExprKind::kConst, token);
  if (text == "true" || text == "True") {
    expr->constant = Obj(true);
  } else if (text == "false" || text == "False") {
    expr->constant = Obj(false);
  } else if (text == "none" || text == "None") {
    expr->constant = Obj(nullptr);
  } else {
    expr->kind = ExprKind::kName;
    expr->name = text;
    for (MacroNode* macro : macros_) {
      macro->uses_varargs |= text == "varargs";
      macro->uses_kwargs |= text == "kwargs";
      macro->uses_caller |= text == "caller";
    }
  }
  return expr;
}

ExprPtr ExprParser::number() {
  const Token token = next();
  ExprPtr expr = make(ExprKind::kConst, token);
  const char* end = token.text.data() + token.text.size();
  if (token.kind == TokenKind::kFloat) {
    double value = 0;
    const auto read = std::from_chars(token.text.data(), end, value);
    if (read.ec != std::errc()) error_at("number out of range", token.line, token.column);
    expr->constant = Obj(value);
  } else {
    std::int64_t value = 0;
    const auto read = std::from_chars(token.text.data(), end, value);
    if (read.ec != std::errc()) error_at("number out of range", token.line, token.column);
    expr->constant = Obj(value);
  }
  return expr;
}

bool ExprParser::at_end_of_tuple() const {
  const Token& token = current();
  return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
         token.kind == TokenKind::kEnd || token.is_operator(")");
}

ExprPtr ExprParser::tuple(Conditional allow) {
  const Token begin = current();
  const auto part = [&] { return allow == Conditional::kYes ? conditional() : either(); };
  ExprPtr first = part();
  if (!current().is_operator(",")) return first;
  ExprPtr expr = make(ExprKind::kTuple, begin);
  expr->children.push_back(std::move(first));
  while (skip_operator(",")) {
    if (at_end_of_tuple()) break;
    expr->children.push_back(part());
  }
  measure(*expr);
  return expr;
}

ExprPtr ExprParser::parenthesized() {
  const Token open = next();
  if (skip_operator(")")) return make(ExprKind::kTuple, open);
  ExprPtr expr = tuple(Conditional::kYes);
  expect_operator(")");
  return expr;
}

ExprPtr ExprParser::list() {
  ExprPtr expr = make(ExprKind::kList, next());
  while (!current().is_operator("]")) {
    if (!expr->children.empty()) {
      expect_operator(",");
      if (current().is_operator("]")) break;
    }
    expr->children.push_back(expression());
  }
  expect_operator("]");
  measure(*expr);
  return expr;
}

ExprPtr ExprParser::dict() {
  ExprPtr expr = make(ExprKind::kDict, next());
  while (!current().is_operator("}")) {
    if (!expr->children.empty()) {
      expect_operator(",");
      if (current().is_operator("}")) break;
    }
    expr->children.push_back(expression());
    expect_operator(":");
    expr->children.push_back(expression());
  }
  expect_operator("}");
  measure(*expr);
  return expr;
}

ExprPtr ExprParser::postfix(ExprPtr subject) {
  while (true) {
    if (current().is_operator(".")) {
      subject = attribute(std::move(subject));
    } else if (current().is_operator("[")) {
      subject = subscript(std::move(subject));
    } else if (current().is_operator("(")) {
      subject = call(std::move(subject));
    } else {
      return subject;
    }
  }
}

ExprPtr ExprParser::filters_and_tests(ExprPtr subject) {
  while (true) {
    if (current().is_operator("|")) {
      subject = filter(std::move(subject));
    } else if (current().is_name("is")) {
      subject = test(std::move(subject));
    } else if (current().is_operator("(")) {
      subject = call(std::move(subject));
    } else {
      return subject;
    }
  }
}

std::string ExprParser::dotted_name() {
  std::string name = expect_name();
  while (skip_operator(".")) name += "." + expect_name();
  return name;
}

ExprPtr ExprParser::filter(ExprPtr subject) {
  next();  // '|'
  ExprPtr expr = make(ExprKind::kFilter, current());
  expr->name = dotted_name();
  if (current().is_operator("(")) expr->arguments = arguments();
  return adopt(std::move(expr), {&subject});
}

ExprPtr ExprParser::filter_chain() {
  ExprPtr expr = make(ExprKind::kFilter, current());
  expr->name = dotted_name();
  if (current().is_operator("(")) expr->arguments = arguments();
  ExprPtr nothing;
  expr = adopt(std::move(expr), {&nothing});
  while (current().is_operator("|")) expr = filter(std::move(expr));
  return expr;
}

ExprPtr ExprParser::test(ExprPtr subject) {
  next();  // "is"
  ExprPtr negated;
  if (current().is_name("not")) negated = make(ExprKind::kNot, next());
  ExprPtr expr = make(ExprKind::kTest, current());
  expr->name = dotted_name();
  const Token& token = current();
  const bool is_argument = token.kind == TokenKind::kName || token.kind == TokenKind::kString ||
                           token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
                           token.is_operator("[") || token.is_operator("{");
  const bool ends = token.is_name("else") || token.is_name("or") || token.is_name("and");
  if (token.is_operator("(")) {
    expr->arguments = arguments();
  } else if (is_argument && !ends) {
    if (token.is_name("is")) error("tests cannot be chained with 'is'");
    expr->arguments.push_back({ArgumentKind::kPositional, {}, postfix(primary())});
  }
  expr = adopt(std::move(expr), {&subject});
  return negated ? adopt(std::move(negated), {&expr}) : std::move(expr);
}

ExprPtr ExprParser::attribute(ExprPtr subject) {
  const Token dot = next();
  if (current().kind == TokenKind::kInteger) {
    ExprPtr expr = make(ExprKind::kItem, dot);
    ExprPtr index = number();
    return adopt(std::move(expr), {&subject, &index});
  }
  ExprPtr expr = make(ExprKind::kAttribute, dot);
  expr->name = expect_name();
  return adopt(std::move(expr), {&subject});
}

ExprPtr ExprParser::subscript(ExprPtr subject) {
  const Token open = next();
  ExprPtr start;
  if (!current().is_operator(":")) {
    start = tuple(Conditional::kYes);
    if (skip_operator("]")) {
      return adopt(make(ExprKind::kItem, open), {&subject, &start});
    }
  }
  expect_operator(":");
  ExprPtr stop;
  ExprPtr step;
  if (!current().is_operator(":") && !current().is_operator("]")) stop = expression();
  if (skip_operator(":") && !current().is_operator("]")) step = expression();
  expect_operator("]");
  return adopt(make(ExprKind::kSlice, open), {&subject, &start, &stop, &step});
}

ExprPtr ExprParser::call(ExprPtr callee) {
  ExprPtr expr = make(ExprKind::kCall, current());
  expr->arguments = arguments();
  return adopt(std::move(expr), {&callee});
}

std::vector<Argument> ExprParser::arguments() {
  const Level level(*this);
  expect_operator("(");
  std::vector<Argument> list;
  bool keywords_only = false;
  while (!current().is_operator(")")) {
    if (!list.empty()) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    Argument argument;
    if (skip_operator("*")) {
      argument.kind = ArgumentKind::kSpreadList;
    } else if (skip_operator("**")) {
      argument.kind = ArgumentKind::kSpreadDict;
    } else if (current().kind == TokenKind::kName && ahead().is_operator("=")) {
      argument.kind = ArgumentKind::kKeyword;
      argument.name = next().text;
      next();
    } else if (keywords_only) {
      error("positional argument after a keyword argument");
    }
    keywords_only |= argument.kind == ArgumentKind::kKeyword;
    argument.value = expression();
    list.push_back(std::move(argument));
  }
  expect_operator(")");
  return list;
}

Target ExprParser::single_target(AllowAttribute allow_attribute) {
  Target target;
  if (skip_operator("(")) {
    const Level level(*this);
    target = this->target(allow_attribute);
    expect_operator(")");
    return target;
  }
  const Token token = current();
  target.name = expect_name();
  constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kReserved), std::end(kReserved), target.name) != std::end(kReserved)) {
    error_at("cannot assign to '" + target.name + "'", token.line, token.column);
  }
  if (allow_attribute == AllowAttribute::kYes && skip_operator(".")) {
    target.attribute = expect_name();
  }
  return target;
}

Target ExprParser::target(AllowAttribute allow_attribute) {
  Target first = single_target(allow_attribute);
  if (!current().is_operator(",")) return first;
  Target target;
  target.is_tuple = true;
  target.parts.push_back(std::move(first));
  while (skip_operator(",")) {
    if (current().is_name("in") || current().is_operator("=") || current().is_operator(")")) break;
    target.parts.push_back(single_target(allow_attribute));
  }
  return target;
}

}  // namespace kvasir::text::jinja
