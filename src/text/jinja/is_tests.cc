// Tests: what may follow `is`.
#include <unordered_map>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace kvasir::text::jinja {

namespace {

/// A test without arguments, from a predicate.
template <bool (*predicate)(const Obj&)>
Obj plain(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("test", args, {});
  return Obj(predicate(self));
}

bool is_defined(const Obj& obj) { return !obj.is_undefined(); }
bool is_undefined(const Obj& obj) { return obj.is_undefined(); }
bool is_none(const Obj& obj) { return obj.is_none(); }
bool is_string(const Obj& obj) { return obj.as_text() != nullptr; }
bool is_number(const Obj& obj) { return number_of(obj).has_value(); }
bool is_integer(const Obj& obj) { return obj.as_int() != nullptr; }
bool is_float(const Obj& obj) { return obj.as_double() != nullptr; }
bool is_boolean(const Obj& obj) { return obj.as_bool() != nullptr; }
bool is_true(const Obj& obj) { return obj.as_bool() && *obj.as_bool(); }
bool is_false(const Obj& obj) { return obj.as_bool() && !*obj.as_bool(); }
bool is_mapping(const Obj& obj) { return obj.as_map() != nullptr; }
bool is_callable(const Obj& obj) { return obj.as_callable() != nullptr; }
bool is_iterable(const Obj& obj) {
  return obj.as_text() || obj.as_seq() || obj.as_map() || obj.as_loop() || obj.is_undefined();
}
bool is_sequence(const Obj& obj) {
  if (const Seq* seq = obj.as_seq()) return seq->has_index();
  return obj.as_text() || obj.as_map() || obj.is_undefined();
}

std::int64_t integer_subject(const Obj& self) {
  const auto value = integer_of(self.require_defined());
  if (!value) {
    fail(fmt::format("unsupported operand type(s) for %: '{}' and 'int'", type_name(self)));
  }
  return *value;
}
bool is_odd(const Obj& obj) { return integer_subject(obj) % 2 != 0; }
bool is_even(const Obj& obj) { return integer_subject(obj) % 2 == 0; }

/// True if some letter has a case and all that do have this one.
template <Case wanted>
bool has_case(const Obj& obj) {
  const Text* text = obj.as_text();
  if (!text) return false;
  bool found = false;
  for (std::size_t pos = 0; pos < text->size();) {
    const Character c = character_at(text->view(), pos);
    const bool upper = is_upper(c.code_point);
    if (upper || is_lower(c.code_point)) {
      if (upper != (wanted == Case::kUpper)) return false;
      found = true;
    }
    pos = c.end;
  }
  return found;
}

enum class Op { kEq, kNe, kLt, kLe, kGt, kGe };
template <Op op>
Obj comparison(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("comparison", args, {"other"}, 1);
  if (op == Op::kEq) return Obj(equal(in.budget(), self, params[0]));
  if (op == Op::kNe) return Obj(!equal(in.budget(), self, params[0]));
  const int order = compare(in.budget(), self, params[0]);
  if (op == Op::kLt) return Obj(order < 0);
  if (op == Op::kLe) return Obj(order <= 0);
  return Obj(op == Op::kGt ? order > 0 : order >= 0);
}

Obj test_in(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("in", args, {"seq"}, 1);
  return Obj(contains(in.budget(), params[0], self));
}

Obj test_sameas(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("sameas", args, {"other"}, 1);
  const Obj& other = params[0];
  if (self.data().index() != other.data().index()) return Obj(false);
  if (self.as_seq()) return Obj(self.as_seq() == other.as_seq());
  if (self.as_map()) return Obj(self.as_map() == other.as_map());
  return Obj(equal(in.budget(), self, other));
}

Obj test_divisibleby(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("divisibleby", args, {"num"}, 1);
  const Obj rest = binary(in.budget(), "%", Obj(integer_subject(self)), params[0]);
  return Obj(!truth(rest));
}

Obj test_filter(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("filter", args, {});
  return Obj(self.as_text() && find_filter(self.as_text()->view()) != nullptr);
}

Obj test_test(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("test", args, {});
  return Obj(self.as_text() && find_test(self.as_text()->view()) != nullptr);
}

}  // namespace

Builtin find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, Builtin> kTests = {
      {"defined", plain<is_defined>},
      {"undefined", plain<is_undefined>},
      {"none", plain<is_none>},
      {"string", plain<is_string>},
      {"number", plain<is_number>},
      {"integer", plain<is_integer>},
      {"float", plain<is_float>},
      {"boolean", plain<is_boolean>},
      {"true", plain<is_true>},
      {"false", plain<is_false>},
      {"mapping", plain<is_mapping>},
      {"callable", plain<is_callable>},
      {"iterable", plain<is_iterable>},
      {"sequence", plain<is_sequence>},
      {"odd", plain<is_odd>},
      {"even", plain<is_even>},
      {"upper", plain<has_case<Case::kUpper>>},
      {"lower", plain<has_case<Case::kLower>>},
      {"eq", comparison<Op::kEq>},
      {"equalto", comparison<Op::kEq>},
      {"==", comparison<Op::kEq>},
      {"ne", comparison<Op::kNe>},
      {"!=", comparison<Op::kNe>},
      {"lt", comparison<Op::kLt>},
      {"lessthan", comparison<Op::kLt>},
      {"<", comparison<Op::kLt>},
      {"le", comparison<Op::kLe>},
      {"<=", comparison<Op::kLe>},
      {"gt", comparison<Op::kGt>},
      {"greaterthan", comparison<Op::kGt>},
      {">", comparison<Op::kGt>},
      {"ge", comparison<Op::kGe>},
      {">=", comparison<Op::kGe>},
      {"in", test_in},
      {"sameas", test_sameas},
      {"divisibleby", test_divisibleby},
      {"filter", test_filter},
      {"test", test_test},
  };
  const auto at = kTests.find(name);
  return at == kTests.end() ? nullptr : at->second;
}

}  // namespace kvasir::text::jinja
