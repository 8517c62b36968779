// Walks a template's tree and writes its text. One object per render; one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/parser.h"

namespace kvasir::text::jinja {

/// Variables of one scope; lookups go on to the scope around it.
struct Frame {
  std::shared_ptr<Frame> parent;
  std::unordered_map<std::string, Obj> variables;
};
using FramePtr = std::shared_ptr<Frame>;

class Interpreter {
 public:
  Interpreter(const TemplateLimits& limits, const std::map<std::string, Value>& globals);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// Throws TemplateError.
  Text run(const Body& body);

  // What filters and functions use.
  Budget& budget() { return budget_; }
  /// obj.name: a method first, then an item. Undefined if there is neither.
  Obj attribute(const Obj& obj, std::string_view name);
  /// obj[subscript]: an item first, then a method.
  Obj subscript(const Obj& obj, const Obj& subscript);
  Obj call(const Obj& callee, const CallArgs& args);
  Obj filter(const std::string& name, const Obj& subject, const CallArgs& args);
  bool test(const std::string& name, const Obj& subject, const CallArgs& args);
  /// A namespace that is emptied when the render ends, so that it may hold itself.
  NamespacePtr make_namespace();
  /// Null if the caller passed no such variable.
  const Obj* global(const std::string& name) const;

 private:
  enum class Flow { kNext, kBreak, kContinue };

  /// Counts one evaluation inside another while it lives.
  class Nested {
   public:
    explicit Nested(Interpreter& interpreter) : interpreter_(interpreter) {
      interpreter_.budget_.step();
      interpreter_.budget_.depth(interpreter_.nesting_ / kEvaluationsPerLevel + 1);
      ++interpreter_.nesting_;
    }
    ~Nested() { --interpreter_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Interpreter& interpreter_;
  };

  Flow run_body(const Body& body);
  Flow run_stmt(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt);
  Flow run_loop(const Stmt& stmt, std::vector<Obj> items);
  Flow run_capture(const Stmt& stmt);
  Flow run_with(const Stmt& stmt);
  void run_call(const Stmt& stmt);
  void define_macro(const Stmt& stmt);
  /// Runs a body in a scope of its own.
  Flow run_scope(const Body& body);
  void assign(const Target& target, const Obj& value);
  void output(const Obj& value);

  Obj eval(const Expr& expr);
  Obj eval_kind(const Expr& expr);
  Obj variable(const std::string& name);
  Obj eval_dict(const Expr& expr);
  Obj eval_compare(const Expr& expr);
  Obj eval_filter(const Expr& expr);
  Obj eval_call(const Expr& expr);
  std::vector<Obj> eval_all(const Expr& expr);
  Obj eval_or_none(const ExprPtr& expr) { return expr ? eval(*expr) : Obj(nullptr); }
  CallArgs eval_arguments(const std::vector<Argument>& arguments);
  bool compare_one(const std::string& op, const Obj& a, const Obj& b);

  CallablePtr make_macro(const MacroNode& node);
  Obj call_macro(const Callable& macro, const CallArgs& args);
  void bind_parameters(const Callable& macro, const CallArgs& args);
  /// Errors from here on happened at this node.
  void at(const Expr& expr) {
    line_ = expr.line;
    column_ = expr.column;
  }

  Budget budget_;
  TextBuilder main_output_;
  TextBuilder* out_ = &main_output_;
  FramePtr root_;
  FramePtr frame_;
  Obj block_subject_;  ///< what the first filter of a filter block works on
  int nesting_ = 0;
  int line_ = 0;
  int column_ = 0;
  // Everything that may be part of a cycle; emptied one by one at the end.
  std::vector<NamespacePtr> namespaces_;
  std::vector<FramePtr> captured_frames_;
};

}  // namespace kvasir::text::jinja
