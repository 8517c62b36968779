// Operators of Python on template values.
#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "text/jinja/builtins.h"

namespace kvasir::text::jinja {

namespace {

[[noreturn]] void overflow() { fail("integer out of range; want 64 bits"); }

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (a == INT64_MIN && b == -1) overflow();
  const std::int64_t quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

std::int64_t modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Obj power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return Obj(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow();
  }
  return Obj(result);
}

Obj integers(std::string_view op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) overflow();
  } else if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) overflow();
  } else if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) overflow();
  } else if (op == "/") {
    if (b == 0) fail("division by zero");
    return Obj(static_cast<double>(a) / static_cast<double>(b));
  } else if (op == "//") {
    result = floor_div(a, b);
  } else if (op == "%") {
    result = modulo(a, b);
  } else {
    return power(a, b);
  }
  return Obj(result);
}

Obj floats(std::string_view op, double a, double b) {
  if (op == "+") return Obj(a + b);
  if (op == "-") return Obj(a - b);
  if (op == "*") return Obj(a * b);
  if (op == "**") {
    const double result = std::pow(a, b);
    if (a < 0 && std::isnan(result)) fail("complex numbers are not supported");
    return Obj(result);
  }
  if (b == 0) fail(op == "/" ? "float division by zero" : "float floor division by zero");
  if (op == "/") return Obj(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == "%") return Obj(rest == 0 ? std::copysign(0.0, b) : rest);
  return Obj(std::floor((a - rest) / b + 0.5));
}

Obj repeat_items(Budget& budget, const Seq& seq, std::int64_t n) {
  std::vector<Obj> items;
  for (std::int64_t i = 0; i < n && !seq.items.empty(); ++i) {
    budget.step(seq.items.size());
    items.insert(items.end(), seq.items.begin(), seq.items.end());
  }
  return make_seq(budget, std::move(items), seq.kind);
}

/// Sequence times number, either way around; undefined if it is something else.
std::optional<Obj> repeated(Budget& budget, const Obj& a, const Obj& b) {
  const auto n = integer_of(b);
  if (!n) return std::nullopt;
  if (const Text* text = a.as_text()) return Obj(repeat(budget, *text, *n));
  const Seq* seq = a.as_seq();
  if (seq && (seq->is_list() || seq->is_tuple())) return repeat_items(budget, *seq, *n);
  return std::nullopt;
}

std::optional<Obj> added(Budget& budget, const Obj& a, const Obj& b) {
  if (a.as_text() && b.as_text()) {
    const bool is_markup = a.as_text()->is_markup() || b.as_text()->is_markup();
    TextBuilder out(budget);
    for (const Text* part : {a.as_text(), b.as_text()}) {
      out.append(is_markup ? escape_markup(budget, *part) : *part);
    }
    Text sum = out.take();
    if (is_markup) sum.set_markup();
    return Obj(std::move(sum));
  }
  const Seq* left = a.as_seq();
  const Seq* right = b.as_seq();
  if (!left || !right || left->kind != right->kind) return std::nullopt;
  if (!left->is_list() && !left->is_tuple()) return std::nullopt;
  budget.step(left->items.size() + right->items.size());
  std::vector<Obj> items = left->items;
  items.insert(items.end(), right->items.begin(), right->items.end());
  return make_seq(budget, std::move(items), left->kind);
}

/// Resolves the bounds of a slice as Python's slice.indices() does.
struct Bounds {
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::int64_t step = 1;
};

std::int64_t bound(const Obj& value, std::int64_t otherwise, std::int64_t n, bool backward) {
  value.require_defined();
  if (value.is_none()) return otherwise;
  const auto i = integer_of(value);
  if (!i) fail("slice indices must be integers or None or have an __index__ method");
  const std::int64_t from_end = *i < 0 ? *i + n : *i;
  return std::clamp<std::int64_t>(from_end, backward ? -1 : 0, backward ? n - 1 : n);
}

Bounds bounds(const Obj& start, const Obj& stop, const Obj& step, std::int64_t n) {
  Bounds b;
  step.require_defined();
  if (!step.is_none()) {
    const auto value = integer_of(step);
    if (!value) fail("slice indices must be integers or None or have an __index__ method");
    if (*value == 0) fail("slice step cannot be zero");
    // Past the length every step is the same; the clamp keeps additions in range.
    b.step = std::clamp<std::int64_t>(*value, -n - 1, n + 1);
  }
  const bool backward = b.step < 0;
  b.start = bound(start, backward ? n - 1 : 0, n, backward);
  b.stop = bound(stop, backward ? -1 : n, n, backward);
  return b;
}

template <class Take>
void for_slice(const Bounds& b, Take take) {
  for (std::int64_t i = b.start; b.step > 0 ? i < b.stop : i > b.stop; i += b.step) {
    take(static_cast<std::size_t>(i));
  }
}

Obj slice_text(Budget& budget, const Text& text, const Obj& start, const Obj& stop,
               const Obj& step) {
  const std::string_view view = text.view();
  budget.bytes(text.size(), text.size());
  const Bounds b = bounds(start, stop, step, static_cast<std::int64_t>(count_characters(view)));
  TextBuilder out(budget);
  if (b.step == 1) {
    if (b.start < b.stop) {
      out.append(text, offset_of_character(view, b.start), offset_of_character(view, b.stop));
    }
  } else {
    const std::vector<std::size_t> offsets = character_offsets(budget, view);
    for_slice(b, [&](std::size_t i) { out.append(text, offsets[i], offsets[i + 1]); });
  }
  return Obj(out.take());
}

Obj item_of_text(Budget& budget, const Text& text, std::int64_t index) {
  budget.bytes(text.size(), text.size());
  if (index < 0) index += static_cast<std::int64_t>(count_characters(text.view()));
  const std::size_t at = index < 0 ? text.size() : offset_of_character(text.view(), index);
  if (at == text.size()) return Obj::undefined("string index out of range");
  Text one;
  one.append(text, at, character_at(text.view(), at).end);
  return Obj(std::move(one));
}

}  // namespace

Obj binary(Budget& budget, std::string_view op, const Obj& a, const Obj& b) {
  a.require_defined();
  if (op == "%" && a.as_text()) return Obj(format_percent(budget, *a.as_text(), b));
  b.require_defined();
  const auto int_a = integer_of(a);
  const auto int_b = integer_of(b);
  if (int_a && int_b) return integers(op, *int_a, *int_b);
  const auto number_a = number_of(a);
  const auto number_b = number_of(b);
  if (number_a && number_b) return floats(op, *number_a, *number_b);
  std::optional<Obj> result;
  if (op == "+") {
    result = added(budget, a, b);
  } else if (op == "*") {
    result = repeated(budget, a, b);
    if (!result) result = repeated(budget, b, a);
  }
  if (result) return *std::move(result);
  fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a),
                   type_name(b)));
}

Obj negate(const Obj& operand) {
  operand.require_defined();
  if (const auto i = integer_of(operand)) {
    if (*i == INT64_MIN) overflow();
    return Obj(-*i);
  }
  if (const double* d = operand.as_double()) return Obj(-*d);
  fail(fmt::format("bad operand type for unary -: '{}'", type_name(operand)));
}

Obj item(Budget& budget, const Obj& obj, const Obj& subscript) {
  obj.require_defined();
  budget.step();
  if (const Map* map = obj.as_map()) {
    if (const Seq* seq = subscript.as_seq(); subscript.as_map() || (seq && !seq->is_tuple())) {
      return Obj::undefined("dict has no such item");
    }
    if (const Obj* value = find(budget, *map, subscript)) return *value;
  } else if (const auto index = integer_of(subscript)) {
    if (const Text* text = obj.as_text()) return item_of_text(budget, *text, *index);
    const Seq* seq = obj.as_seq();
    if (seq && seq->has_index()) {
      const auto n = static_cast<std::int64_t>(seq->items.size());
      const std::int64_t at = *index < 0 ? *index + n : *index;
      if (at >= 0 && at < n) return seq->items[static_cast<std::size_t>(at)];
    }
  }
  const Text* name = subscript.as_text();
  constexpr std::size_t kNameBytesMax = 80;  // of a name in an error message
  return Obj::undefined(fmt::format("'{} object' has no {} {}", type_name(obj),
                                    name ? "attribute" : "element",
                                    name ? "'" + name->bytes().substr(0, kNameBytesMax) + "'"
                                    : integer_of(subscript) ? std::to_string(*integer_of(subscript))
                                                            : std::string(type_name(subscript))));
}

Obj slice(Budget& budget, const Obj& obj, const Obj& start, const Obj& stop, const Obj& step) {
  obj.require_defined();
  if (const Text* text = obj.as_text()) return slice_text(budget, *text, start, stop, step);
  const Seq* seq = obj.as_seq();
  if (!seq || !seq->has_index()) {
    fail(fmt::format("'{}' object is not subscriptable", type_name(obj)));
  }
  const Bounds b = bounds(start, stop, step, static_cast<std::int64_t>(seq->items.size()));
  std::vector<Obj> items;
  for_slice(b, [&](std::size_t i) {
    budget.step();
    items.push_back(seq->items[i]);
  });
  return make_seq(budget, std::move(items), seq->kind, seq->shown);
}

}  // namespace kvasir::text::jinja
