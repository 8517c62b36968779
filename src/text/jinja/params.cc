// Arguments sorted into parameters, and lookups by name.
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"

namespace kvasir::text::jinja {

Params::Params(std::string_view function, const CallArgs& args,
               std::initializer_list<std::string_view> names, std::size_t n_required)
    : function_(function), values_(names.size(), nullptr) {
  if (args.positional.size() > names.size()) {
    fail(fmt::format("{}() takes at most {} arguments ({} given)", function, names.size(),
                     args.positional.size()));
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.keyword) {
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) {
      fail(fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    }
    const Obj*& slot = values_[static_cast<std::size_t>(at - names.begin())];
    if (slot) fail(fmt::format("{}() got multiple values for argument '{}'", function, name));
    slot = &value;
  }
  for (std::size_t i = 0; i < n_required; ++i) {
    if (!values_[i]) {
      fail(fmt::format("{}() is missing its argument '{}'", function, names.begin()[i]));
    }
  }
}

bool Params::flag(std::size_t i, bool otherwise) const {
  return values_[i] ? truth(*values_[i]) : otherwise;
}

std::int64_t Params::integer(std::size_t i, std::int64_t otherwise) const {
  if (!values_[i]) return otherwise;
  const auto value = integer_of(values_[i]->require_defined());
  if (!value) {
    fail(fmt::format("{}(): '{}' object cannot be interpreted as an integer", function_,
                     type_name(*values_[i])));
  }
  return *value;
}

const Text* Params::text(std::size_t i) const {
  if (!values_[i] || values_[i]->is_none()) return nullptr;
  const Text* text = values_[i]->require_defined().as_text();
  if (!text) {
    fail(fmt::format("{}(): argument must be str, not {}", function_, type_name(*values_[i])));
  }
  return text;
}

Obj attribute_path(Interpreter& interpreter, const Obj& obj, const Obj& path) {
  const Text* text = path.as_text();
  if (!text) return interpreter.subscript(obj, path);
  Obj current = obj;
  for (const Range& part : split(interpreter.budget(), text->view(), ".", -1)) {
    const std::string_view name = text->view().substr(part.begin, part.end - part.begin);
    const bool is_index = !name.empty() && name.size() < 10 &&
                          name.find_first_not_of("0123456789") == std::string_view::npos;
    const Obj key = is_index ? Obj(std::int64_t{std::stoi(std::string(name))}) : Obj::string(name);
    current = interpreter.subscript(current, key);
  }
  return current;
}

int compare_folded(Budget& budget, const Obj& a, const Obj& b, bool case_sensitive) {
  const Text* text_a = a.as_text();
  const Text* text_b = b.as_text();
  if (case_sensitive || !text_a || !text_b) return compare(budget, a, b);
  budget.bytes(text_a->size() + text_b->size(), text_a->size() + text_b->size());
  return lower(text_a->view()).compare(lower(text_b->view()));
}

Builtin find_filter(std::string_view name) {
  const Builtin builtin = find_string_filter(name);
  return builtin ? builtin : find_sequence_filter(name);
}

}  // namespace kvasir::text::jinja
