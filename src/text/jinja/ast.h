// The parsed template: statements and expressions as trees that never change.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/jinja/object.h"

namespace kvasir::text::jinja {

enum class ExprKind {
  kConst,      // constant
  kName,       // name
  kTuple,      // children
  kList,       // children
  kDict,       // children: key, value, key, value, ...
  kCondition,  // children: test, then, else (may be null)
  kOr,         // children: left, right
  kAnd,        // children: left, right
  kNot,        // children: operand
  kNegate,     // children: operand
  kPlus,       // children: operand
  kBinary,     // children: left, right; name: the operator
  kConcat,     // children: one or more, joined by ~
  kCompare,    // children: first, then one per entry of operators
  kFilter,     // children[0]: subject (null inside a filter block); name; arguments
  kTest,       // children[0]: subject; name; arguments
  kAttribute,  // children[0]: subject; name
  kItem,       // children: subject, subscript
  kSlice,      // children: subject, start, stop, step (the last three may be null)
  kCall        // children[0]: callee; arguments
};

enum class ArgumentKind { kPositional, kKeyword, kSpreadList, kSpreadDict };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Argument {
  ArgumentKind kind = ArgumentKind::kPositional;
  std::string name;
  ExprPtr value;
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int column = 0;
  int height = 1;  ///< levels below and including this one
  Obj constant;
  std::string name;
  std::vector<ExprPtr> children;
  std::vector<std::string> operators;
  std::vector<Argument> arguments;
};

/// What an assignment writes to: a name, `name.attribute` of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> parts;
  bool is_tuple = false;
};

enum class StmtKind {
  kData,      // data
  kOutput,    // expr
  kIf,        // branches; a null test is the else
  kFor,       // target, expr, condition (may be null), body, otherwise
  kSet,       // target, expr
  kSetBlock,  // target, expr (filters applied to null; may be null), body
  kMacro,     // macro
  kCall,      // expr (a call), macro (the body as `caller`)
  kFilter,    // expr (filters applied to null), body
  kWith,      // bindings, body
  kScope,     // body
  kBreak,
  kContinue
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Branch {
  ExprPtr test;
  Body body;
};

struct Binding {
  Target target;
  ExprPtr value;
};

struct MacroNode {
  struct Parameter {
    std::string name;
    ExprPtr default_value;  ///< may be null
  };
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  // Which of the implicit names the body mentions; without them, left-over arguments are errors.
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct Stmt {
  StmtKind kind = StmtKind::kData;
  int line = 0;
  int column = 0;
  TextPtr data;
  ExprPtr expr;
  ExprPtr condition;
  Target target;
  Body body;
  Body otherwise;
  std::vector<Branch> branches;
  std::vector<Binding> bindings;
  std::unique_ptr<MacroNode> macro;
};

}  // namespace kvasir::text::jinja
