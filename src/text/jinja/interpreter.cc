// The interpreter: statements.
#include "text/jinja/interpreter.h"

#include <fmt/format.h>

namespace kvasir::text::jinja {

Interpreter::Interpreter(const TemplateLimits& limits, const std::map<std::string, Value>& globals)
    : budget_(limits), main_output_(budget_), root_(std::make_shared<Frame>()), frame_(root_) {
  for (const auto& [name, value] : globals) root_->variables[name] = from_value(budget_, value);
}

Interpreter::~Interpreter() {
  for (const NamespacePtr& object : namespaces_) object->attributes.clear();
  for (const FramePtr& frame : captured_frames_) frame->variables.clear();
  root_->variables.clear();
}

// An error ends the render: nothing catches it on the way to here and goes on, so the functions
// below do not restore frame_, out_ and the like when one passes.
Text Interpreter::run(const Body& body) {
  try {
    run_body(body);
  } catch (TemplateError& error) {
    if (error.line == 0) {
      error.line = line_;
      error.column = column_;
    }
    throw;
  }
  return main_output_.take();
}

NamespacePtr Interpreter::make_namespace() {
  budget_.step();
  namespaces_.push_back(std::make_shared<Namespace>());
  return namespaces_.back();
}

const Obj* Interpreter::global(const std::string& name) const {
  const auto at = root_->variables.find(name);
  return at == root_->variables.end() ? nullptr : &at->second;
}

Interpreter::Flow Interpreter::run_body(const Body& body) {
  for (const auto& stmt : body) {
    const Flow flow = run_stmt(*stmt);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_stmt(const Stmt& stmt) {
  const Nested nested(*this);
  line_ = stmt.line;
  column_ = stmt.column;
  switch (stmt.kind) {
    case StmtKind::kData:
      out_->append(*stmt.data);
      return Flow::kNext;
    case StmtKind::kOutput:
      output(eval(*stmt.expr));
      return Flow::kNext;
    case StmtKind::kIf:
      return run_if(stmt);
    case StmtKind::kFor:
      return run_for(stmt);
    case StmtKind::kSet:
      assign(stmt.target, eval(*stmt.expr));
      return Flow::kNext;
    case StmtKind::kSetBlock:
    case StmtKind::kFilter:
      return run_capture(stmt);
    case StmtKind::kMacro:
      define_macro(stmt);
      return Flow::kNext;
    case StmtKind::kCall:
      run_call(stmt);
      return Flow::kNext;
    case StmtKind::kWith:
      return run_with(stmt);
    case StmtKind::kScope:
      return run_scope(stmt.body);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::output(const Obj& value) { out_->append(*to_text(budget_, value)); }

Interpreter::Flow Interpreter::run_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    if (!branch.test || truth(eval(*branch.test))) return run_body(branch.body);
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_scope(const Body& body) {
  const FramePtr outer = frame_;
  frame_ = std::make_shared<Frame>();
  frame_->parent = outer;
  const Flow flow = run_body(body);
  frame_ = outer;
  return flow;
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt) {
  const Obj iterable = eval(*stmt.expr);
  at(*stmt.expr);
  std::vector<Obj> items = iterate(budget_, iterable);
  if (stmt.condition) {
    // The condition sees the target, but not what the body sets.
    const FramePtr outer = frame_;
    std::vector<Obj> kept;
    for (const Obj& item : items) {
      frame_ = std::make_shared<Frame>();
      frame_->parent = outer;
      assign(stmt.target, item);
      if (truth(eval(*stmt.condition))) kept.push_back(item);
    }
    frame_ = outer;
    items = std::move(kept);
  }
  if (items.empty()) return run_scope(stmt.otherwise);
  return run_loop(stmt, std::move(items));
}

Interpreter::Flow Interpreter::run_loop(const Stmt& stmt, std::vector<Obj> items) {
  const auto loop = std::make_shared<LoopState>();
  loop->items = std::move(items);
  loop->length = static_cast<std::int64_t>(loop->items.size());
  const FramePtr outer = frame_;
  Flow flow = Flow::kNext;
  for (std::int64_t i = 0; i < loop->length && flow != Flow::kBreak; ++i) {
    budget_.step();
    loop->index = i;
    frame_ = std::make_shared<Frame>();
    frame_->parent = outer;
    frame_->variables["loop"] = Obj(loop);
    assign(stmt.target, loop->items[static_cast<std::size_t>(i)]);
    flow = run_body(stmt.body);
  }
  frame_ = outer;
  loop->items.clear();
  loop->changed.clear();
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_capture(const Stmt& stmt) {
  TextBuilder captured(budget_);
  TextBuilder* const outer = std::exchange(out_, &captured);
  const Flow flow = run_scope(stmt.body);
  out_ = outer;
  Obj value(captured.take());
  if (flow != Flow::kNext && stmt.kind == StmtKind::kSetBlock) return flow;
  if (stmt.expr) {
    block_subject_ = std::move(value);
    value = eval(*stmt.expr);
  }
  if (stmt.kind == StmtKind::kSetBlock) {
    assign(stmt.target, value);
  } else {
    output(value);
  }
  return flow;
}

Interpreter::Flow Interpreter::run_with(const Stmt& stmt) {
  const FramePtr outer = frame_;
  auto inner = std::make_shared<Frame>();
  inner->parent = outer;
  // The values are computed outside: a binding does not see the ones before it.
  for (const Binding& binding : stmt.bindings) {
    inner->variables[binding.target.name] = eval(*binding.value);
  }
  frame_ = inner;
  const Flow flow = run_body(stmt.body);
  frame_ = outer;
  return flow;
}

void Interpreter::assign(const Target& target, const Obj& value) {
  budget_.step();
  if (target.is_tuple) {
    const std::vector<Obj> items = iterate(budget_, value);
    if (items.size() != target.parts.size()) {
      fail(fmt::format("cannot unpack; got {} values, want {}", items.size(), target.parts.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) {
    frame_->variables[target.name] = value;
    return;
  }
  const Obj object = variable(target.name);
  if (!object.as_namespace()) fail("cannot assign attribute on non-namespace object");
  object.as_namespace()->attributes[target.attribute] = value;
}

CallablePtr Interpreter::make_macro(const MacroNode& node) {
  auto macro = std::make_shared<Callable>();
  macro->name = node.name;
  macro->macro = &node;
  macro->frame = frame_;
  if (captured_frames_.empty() || captured_frames_.back() != frame_) {
    captured_frames_.push_back(frame_);
  }
  return macro;
}

void Interpreter::define_macro(const Stmt& stmt) {
  frame_->variables[stmt.macro->name] = Obj(make_macro(*stmt.macro));
}

void Interpreter::run_call(const Stmt& stmt) {
  const Expr& expr = *stmt.expr;
  const Obj callee = eval(*expr.children[0]);
  CallArgs args = eval_arguments(expr.arguments);
  args.keyword.emplace_back("caller", Obj(make_macro(*stmt.macro)));
  at(expr);
  output(call(callee, args));
}

void Interpreter::bind_parameters(const Callable& macro, const CallArgs& args) {
  const MacroNode& node = *macro.macro;
  std::vector<std::pair<Obj, Obj>> left_over;
  std::vector<Obj> surplus;
  auto& variables = frame_->variables;
  for (std::size_t i = 0; i < args.positional.size(); ++i) {
    if (i < node.parameters.size()) {
      variables[node.parameters[i].name] = args.positional[i];
    } else {
      surplus.push_back(args.positional[i]);
    }
  }
  for (const auto& [name, value] : args.keyword) {
    bool known = false;
    for (std::size_t i = 0; i < node.parameters.size(); ++i) {
      if (node.parameters[i].name != name) continue;
      if (i < args.positional.size()) {
        fail(fmt::format("macro '{}' got multiple values for argument '{}'", node.name, name));
      }
      known = true;
    }
    known |= name == "caller" && node.uses_caller;
    if (known) {
      variables[name] = value;
    } else {
      left_over.emplace_back(Obj::string(name), value);
    }
  }
  if (!surplus.empty() && !node.uses_varargs) {
    fail(fmt::format("macro '{}' takes not more than {} argument(s)", node.name,
                     node.parameters.size()));
  }
  if (!left_over.empty() && !node.uses_kwargs) {
    fail(fmt::format("macro '{}' takes no keyword argument '{}'", node.name,
                     left_over.front().first.as_text()->bytes()));
  }
  if (node.uses_varargs) variables["varargs"] = make_seq(budget_, surplus, SeqKind::kTuple);
  if (node.uses_kwargs) variables["kwargs"] = make_map(budget_, left_over);
  if (node.uses_caller && !variables.contains("caller")) {
    variables["caller"] = Obj::undefined("No caller defined");
  }
  for (const MacroNode::Parameter& parameter : node.parameters) {
    if (variables.contains(parameter.name)) continue;
    if (parameter.default_value) {
      variables[parameter.name] = eval(*parameter.default_value);
    } else {
      variables[parameter.name] =
          Obj::undefined(fmt::format("parameter '{}' was not provided", parameter.name));
    }
  }
}

Obj Interpreter::call_macro(const Callable& macro, const CallArgs& args) {
  const Nested nested(*this);
  TextBuilder text(budget_);
  const FramePtr caller_frame = std::exchange(frame_, std::make_shared<Frame>());
  TextBuilder* const caller_out = std::exchange(out_, &text);
  frame_->parent = macro.frame;
  bind_parameters(macro, args);
  run_body(macro.macro->body);
  frame_ = caller_frame;
  out_ = caller_out;
  return Obj(text.take());
}

}  // namespace kvasir::text::jinja
