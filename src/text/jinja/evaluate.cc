// The interpreter: expressions.
#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace kvasir::text::jinja {

namespace {

Obj loop_attribute(const LoopState& loop, std::string_view name) {
  const std::int64_t i = loop.index;
  const std::int64_t n = loop.length;
  if (name == "index") return Obj(i + 1);
  if (name == "index0") return Obj(i);
  if (name == "first") return Obj(i == 0);
  if (name == "last") return Obj(i == n - 1);
  if (name == "length") return Obj(n);
  if (name == "revindex") return Obj(n - i);
  if (name == "revindex0") return Obj(n - i - 1);
  if (name == "depth") return Obj(std::int64_t{1});  // more in recursive loops only
  if (name == "depth0") return Obj(std::int64_t{0});
  const auto neighbour = [&](std::int64_t at) {
    if (at < 0 || at >= static_cast<std::int64_t>(loop.items.size())) {
      return Obj::undefined(fmt::format("there is no {}", name));
    }
    return loop.items[static_cast<std::size_t>(at)];
  };
  if (name == "previtem") return neighbour(i - 1);
  if (name == "nextitem") return neighbour(i + 1);
  return Obj::undefined(fmt::format("'loop' has no attribute '{}'", name));
}

}  // namespace

Obj Interpreter::eval(const Expr& expr) {
  const Nested nested(*this);
  at(expr);
  return eval_kind(expr);
}

Obj Interpreter::eval_kind(const Expr& expr) {
  const auto child = [&](std::size_t i) { return eval(*expr.children[i]); };
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kName:
      return variable(expr.name);
    case ExprKind::kTuple:
      return make_seq(budget_, eval_all(expr), SeqKind::kTuple);
    case ExprKind::kList:
      return make_seq(budget_, eval_all(expr));
    case ExprKind::kDict:
      return eval_dict(expr);
    case ExprKind::kCondition:
      if (truth(child(0))) return child(1);
      if (expr.children[2]) return child(2);
      return Obj::undefined("the inline if-expression evaluated to false and has no else");
    case ExprKind::kOr: {
      Obj left = child(0);
      return truth(left) ? left : child(1);
    }
    case ExprKind::kAnd: {
      Obj left = child(0);
      return truth(left) ? child(1) : left;
    }
    case ExprKind::kNot:
      return Obj(!truth(child(0)));
    case ExprKind::kNegate: {
      const Obj operand = child(0);
      at(expr);
      return negate(operand);
    }
    case ExprKind::kPlus: {
      const Obj operand = child(0);
      at(expr);
      return binary(budget_, "+", Obj(std::int64_t{0}), operand);
    }
    case ExprKind::kBinary: {
      const Obj left = child(0);
      const Obj right = child(1);
      at(expr);
      return binary(budget_, expr.name, left, right);
    }
    case ExprKind::kConcat: {
      TextBuilder out(budget_);
      for (std::size_t i = 0; i < expr.children.size(); ++i) {
        out.append(*to_text(budget_, child(i)));
      }
      return Obj(out.take());
    }
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kFilter:
      return eval_filter(expr);
    case ExprKind::kTest: {
      const Obj subject = child(0);
      const CallArgs args = eval_arguments(expr.arguments);
      at(expr);
      return Obj(test(expr.name, subject, args));
    }
    case ExprKind::kAttribute: {
      const Obj subject = child(0);
      at(expr);
      return attribute(subject, expr.name);
    }
    case ExprKind::kItem: {
      const Obj subject = child(0);
      const Obj key = child(1);
      at(expr);
      return subscript(subject, key);
    }
    case ExprKind::kSlice: {
      const Obj subject = child(0);
      const Obj start = eval_or_none(expr.children[1]);
      const Obj stop = eval_or_none(expr.children[2]);
      const Obj step = eval_or_none(expr.children[3]);
      at(expr);
      return slice(budget_, subject, start, stop, step);
    }
    case ExprKind::kCall:
      return eval_call(expr);
  }
  return Obj();
}

Obj Interpreter::variable(const std::string& name) {
  for (const Frame* frame = frame_.get(); frame; frame = frame->parent.get()) {
    const auto at = frame->variables.find(name);
    if (at != frame->variables.end()) return at->second;
  }
  if (const Builtin function = find_function(name)) {
    auto callable = std::make_shared<Callable>();
    callable->name = name;
    callable->builtin = function;
    return Obj(CallablePtr(std::move(callable)));
  }
  return Obj::undefined(fmt::format("'{}' is undefined", name));
}

std::vector<Obj> Interpreter::eval_all(const Expr& expr) {
  std::vector<Obj> items;
  for (const ExprPtr& child : expr.children) items.push_back(eval(*child));
  return items;
}

Obj Interpreter::eval_dict(const Expr& expr) {
  std::vector<std::pair<Obj, Obj>> entries;
  for (std::size_t i = 0; i < expr.children.size(); i += 2) {
    Obj key = eval(*expr.children[i]);
    entries.emplace_back(std::move(key), eval(*expr.children[i + 1]));
  }
  at(expr);
  return make_map(budget_, std::move(entries));
}

bool Interpreter::compare_one(const std::string& op, const Obj& a, const Obj& b) {
  if (op == "==") return equal(budget_, a, b);
  if (op == "!=") return !equal(budget_, a, b);
  if (op == "in") return contains(budget_, b, a);
  if (op == "not in") return !contains(budget_, b, a);
  // Comparing with NaN is false whatever the order.
  const auto number_a = number_of(a);
  const auto number_b = number_of(b);
  if (number_a && number_b && (*number_a != *number_a || *number_b != *number_b)) return false;
  const int order = compare(budget_, a, b, op);
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

Obj Interpreter::eval_compare(const Expr& expr) {
  Obj left = eval(*expr.children[0]);
  for (std::size_t i = 0; i < expr.operators.size(); ++i) {
    Obj right = eval(*expr.children[i + 1]);
    at(expr);
    if (!compare_one(expr.operators[i], left, right)) return Obj(false);
    left = std::move(right);
  }
  return Obj(true);
}

Obj Interpreter::eval_filter(const Expr& expr) {
  const Obj subject = expr.children[0] ? eval(*expr.children[0]) : std::move(block_subject_);
  const CallArgs args = eval_arguments(expr.arguments);
  at(expr);
  return filter(expr.name, subject, args);
}

Obj Interpreter::eval_call(const Expr& expr) {
  const Obj callee = eval(*expr.children[0]);
  const CallArgs args = eval_arguments(expr.arguments);
  at(expr);
  return call(callee, args);
}

CallArgs Interpreter::eval_arguments(const std::vector<Argument>& arguments) {
  CallArgs args;
  for (const Argument& argument : arguments) {
    Obj value = eval(*argument.value);
    switch (argument.kind) {
      case ArgumentKind::kPositional:
        args.positional.push_back(std::move(value));
        break;
      case ArgumentKind::kKeyword:
        args.keyword.emplace_back(argument.name, std::move(value));
        break;
      case ArgumentKind::kSpreadList:
        for (Obj& item : iterate(budget_, value)) args.positional.push_back(std::move(item));
        break;
      case ArgumentKind::kSpreadDict:
        if (!value.as_map()) fail("argument after ** must be a mapping");
        for (const auto& [key, item] : value.as_map()->entries) {
          if (!key.as_text()) fail("keywords must be strings");
          budget_.step();
          args.keyword.emplace_back(key.as_text()->bytes(), item);
        }
        break;
    }
  }
  return args;
}

Obj Interpreter::attribute(const Obj& obj, std::string_view name) {
  obj.require_defined();
  if (const Namespace* space = obj.as_namespace()) {
    const auto at = space->attributes.find(std::string(name));
    if (at != space->attributes.end()) return at->second;
    return Obj::undefined(fmt::format("namespace has no attribute '{}'", name));
  }
  if (const Builtin method = find_method(obj, name)) {
    auto callable = std::make_shared<Callable>();
    callable->name = name;
    callable->builtin = method;
    callable->self = obj;
    return Obj(CallablePtr(std::move(callable)));
  }
  if (const LoopState* loop = obj.as_loop()) return loop_attribute(*loop, name);
  return item(budget_, obj, Obj::string(name));
}

Obj Interpreter::subscript(const Obj& obj, const Obj& subscript) {
  Obj found = item(budget_, obj, subscript);
  if (!found.is_undefined()) return found;
  const Text* name = subscript.as_text();
  if (!name || (obj.as_map() && !find_method(obj, name->view()))) return found;
  return attribute(obj, name->view());
}

Obj Interpreter::call(const Obj& callee, const CallArgs& args) {
  callee.require_defined();
  const Callable* callable = callee.as_callable();
  if (!callable) fail(fmt::format("'{}' object is not callable", type_name(callee)));
  if (callable->macro) return call_macro(*callable, args);
  const Nested nested(*this);
  return callable->builtin(*this, callable->self, args);
}

Obj Interpreter::filter(const std::string& name, const Obj& subject, const CallArgs& args) {
  const Builtin builtin = find_filter(name);
  if (!builtin) fail(fmt::format("no filter named '{}'", name));
  const Nested nested(*this);
  return builtin(*this, subject, args);
}

bool Interpreter::test(const std::string& name, const Obj& subject, const CallArgs& args) {
  const Builtin builtin = find_test(name);
  if (!builtin) fail(fmt::format("no test named '{}'", name));
  const Nested nested(*this);
  return truth(builtin(*this, subject, args));
}

}  // namespace kvasir::text::jinja
