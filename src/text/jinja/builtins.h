// The names a template finds ready: filters, tests, methods and functions.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "text/jinja/object.h"

namespace kvasir::text::jinja {

/// Filters and tests take their subject as `self`. Null: there is none of this name.
Builtin find_filter(std::string_view name);
Builtin find_string_filter(std::string_view name);
Builtin find_sequence_filter(std::string_view name);
Builtin find_test(std::string_view name);
/// Methods of strings, lists and dicts that change nothing.
Builtin find_method(const Obj& self, std::string_view name);
Builtin find_string_method(std::string_view name);
Builtin find_function(std::string_view name);

/// A call's arguments sorted into the parameters of the function called.
class Params {
 public:
  /// Fails on too many or unknown arguments, as Python does. `n_required` must be given.
  Params(std::string_view function, const CallArgs& args,
         std::initializer_list<std::string_view> names, std::size_t n_required = 0);

  /// Null if not given.
  const Obj* get(std::size_t i) const { return values_[i]; }
  const Obj& operator[](std::size_t i) const { return *values_[i]; }
  bool flag(std::size_t i, bool otherwise) const;
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  /// The text of a string argument; null if not given or none. Fails on other types.
  const Text* text(std::size_t i) const;
  Obj value(std::size_t i, Obj otherwise) const { return values_[i] ? *values_[i] : otherwise; }

 private:
  std::string_view function_;
  std::vector<const Obj*> values_;
};

/// Reads `a.b.0` off an object, as the `attribute` argument of filters has it.
Obj attribute_path(Interpreter& interpreter, const Obj& obj, const Obj& path);
/// Numbers and case-folded strings of `a` and `b`, in order.
int compare_folded(Budget& budget, const Obj& a, const Obj& b, bool case_sensitive);
/// `text % arguments` of Python.
Text format_percent(Budget& budget, const Text& format, const Obj& arguments);
/// `text.format(...)` of Python without attribute access.
Text format_braces(Budget& budget, const Text& format, const CallArgs& args);
/// Joins the str() of the items.
Text join(Budget& budget, const std::vector<Obj>& items, const Text& separator);
Text replace(Budget& budget, const Text& text, const Text& from, const Text& to,
             std::int64_t n_max);
/// Characters special in HTML become entities; markup stays as it is. The result is markup.
Text escape_markup(Budget& budget, const Text& text);
Text repeat(Budget& budget, const Text& text, std::int64_t n);

}  // namespace kvasir::text::jinja
