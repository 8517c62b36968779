// Arithmetic, subscripts and slices as Python has them.
#pragma once

#include <string_view>

#include "text/jinja/object.h"

namespace kvasir::text::jinja {

/// `a op b` for + - * / // % **.
Obj binary(Budget& budget, std::string_view op, const Obj& a, const Obj& b);
Obj negate(const Obj& operand);
/// obj[subscript]; undefined when there is no such item.
Obj item(Budget& budget, const Obj& obj, const Obj& subscript);
/// obj[start:stop:step]; none stands for what is left out.
Obj slice(Budget& budget, const Obj& obj, const Obj& start, const Obj& stop, const Obj& step);

}  // namespace kvasir::text::jinja
