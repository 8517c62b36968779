// Functions a template can call by name.
#include <array>
#include <ctime>
#include <unordered_map>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"

namespace kvasir::text::jinja {

namespace {

Obj function_range(Interpreter& in, const Obj&, const CallArgs& args) {
  if (!args.keyword.empty()) fail("range() takes no keyword arguments");
  const Params params("range", args, {"start", "stop", "step"}, 1);
  std::int64_t start = 0;
  std::int64_t stop = params.integer(0, 0);
  if (params.get(1)) {
    start = stop;
    stop = params.integer(1, 0);
  }
  const std::int64_t step = params.integer(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  // In doubles, so that nothing overflows; near the limit below they are exact.
  const double n = (static_cast<double>(stop) - static_cast<double>(start) +
                    static_cast<double>(step) - (step > 0 ? 1 : -1)) /
                   static_cast<double>(step);
  constexpr double kLengthMax = 100000;  // as in Jinja2's sandbox
  if (n >= kLengthMax + 1)
    fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  std::vector<Obj> items;
  for (std::int64_t i = 0; static_cast<double>(i) + 1 <= n; ++i) {
    items.emplace_back(start + i * step);
  }
  std::string shown = step == 1 ? fmt::format("range({}, {})", start, stop)
                                : fmt::format("range({}, {}, {})", start, stop, step);
  return make_seq(in.budget(), std::move(items), SeqKind::kRange, std::move(shown));
}

/// The pairs of dict(...): of a mapping or a list of pairs, then the keyword arguments.
std::vector<std::pair<Obj, Obj>> pairs_of(Interpreter& in, const CallArgs& args) {
  if (args.positional.size() > 1) fail("dict expected at most 1 argument");
  std::vector<std::pair<Obj, Obj>> pairs;
  if (!args.positional.empty()) {
    const Obj& source = args.positional[0];
    if (const Map* map = source.as_map()) {
      pairs = map->entries;
    } else {
      for (const Obj& item : iterate(in.budget(), source)) {
        const std::vector<Obj> pair = iterate(in.budget(), item);
        if (pair.size() != 2) fail("dictionary update sequence element has not two parts");
        pairs.emplace_back(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : args.keyword) pairs.emplace_back(Obj::string(name), value);
  return pairs;
}

Obj function_dict(Interpreter& in, const Obj&, const CallArgs& args) {
  return make_map(in.budget(), pairs_of(in, args));
}

Obj function_namespace(Interpreter& in, const Obj&, const CallArgs& args) {
  NamespacePtr space = in.make_namespace();
  for (auto& [name, value] : pairs_of(in, args)) {
    if (!name.as_text()) fail("namespace(): names must be strings");
    in.budget().step();
    space->attributes[name.as_text()->bytes()] = value;
  }
  return Obj(std::move(space));
}

Obj function_raise_exception(Interpreter& in, const Obj&, const CallArgs& args) {
  const Params params("raise_exception", args, {"message"}, 1);
  throw TemplateError{ErrorCode::kInvalidArgument, to_text(in.budget(), params[0])->bytes()};
}

/// One conversion of strftime; `specifier` has no '%'.
std::string format_time(const std::tm& time, const std::string& specifier) {
  constexpr std::string_view kKnown = "aAbBcdDeFgGhHIjklmMnprRsStTuUVwWxXyYzZ%CP";
  const char conversion = specifier.back();
  if (kKnown.find(conversion) == std::string_view::npos) return "%" + specifier;
  std::array<char, 64> buffer;
  const std::string pattern = "%" + specifier;
  const std::size_t n = std::strftime(buffer.data(), buffer.size(), pattern.c_str(), &time);
  return std::string(buffer.data(), n);
}

/// The time is the caller's: `__now`, in seconds since 1970 UTC.
Obj function_strftime_now(Interpreter& in, const Obj&, const CallArgs& args) {
  const Params params("strftime_now", args, {"format"}, 1);
  const Text* format = params.text(0);
  if (!format) fail("strftime_now(): argument must be str");
  const Obj* now = in.global("__now");
  const std::int64_t seconds = now ? integer_of(*now).value_or(0) : 0;
  std::tm time{};
  const auto at = static_cast<std::time_t>(seconds);
  if (!gmtime_r(&at, &time)) fail("strftime_now(): time out of range");
  TextBuilder out(in.budget());
  const std::string& text = format->bytes();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' || i + 1 >= text.size()) {
      out.append(*format, i, i + 1);
      continue;
    }
    // "%-d": glibc's flag for no padding, common in templates.
    const bool has_flag = (text[i + 1] == '-' || text[i + 1] == '_') && i + 2 < text.size();
    const std::size_t n = has_flag ? 2 : 1;
    out.append(format_time(time, text.substr(i + 1, n)), format->from_input_at(i));
    i += n;
  }
  return Obj(out.take());
}

/// Called: nothing the first time, the separator ever after.
Obj call_joiner(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("joiner", args, {});
  Namespace& state = *self.as_namespace();
  if (!state.attributes.contains("used")) {
    state.attributes["used"] = Obj(true);
    return Obj(Text());
  }
  return state.attributes["separator"];
}

Obj function_joiner(Interpreter& in, const Obj&, const CallArgs& args) {
  const Params params("joiner", args, {"sep"});
  NamespacePtr state = in.make_namespace();
  state->attributes["separator"] = params.value(0, Obj(Text(", ")));
  auto joiner = std::make_shared<Callable>();
  joiner->name = "joiner";
  joiner->builtin = call_joiner;
  joiner->self = Obj(std::move(state));
  return Obj(CallablePtr(std::move(joiner)));
}

}  // namespace

Builtin find_function(std::string_view name) {
  static const std::unordered_map<std::string_view, Builtin> kFunctions = {
      {"range", function_range},
      {"dict", function_dict},
      {"namespace", function_namespace},
      {"raise_exception", function_raise_exception},
      {"strftime_now", function_strftime_now},
      {"joiner", function_joiner},
  };
  const auto at = kFunctions.find(name);
  return at == kFunctions.end() ? nullptr : at->second;
}

}  // namespace kvasir::text::jinja
