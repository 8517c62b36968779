// Methods of strings, lists, dicts and loops; none of them changes its object.
#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"

namespace kvasir::text::jinja {

namespace {

using Table = std::unordered_map<std::string_view, Builtin>;

Builtin look_up(const Table& table, std::string_view name) {
  const auto at = table.find(name);
  return at == table.end() ? nullptr : at->second;
}

Obj part(Budget& budget, const Text& text, const Range& range) {
  TextBuilder out(budget);
  out.append(text, range.begin, range.end);
  return Obj(out.take());
}

Obj parts(Budget& budget, const Text& text, const std::vector<Range>& ranges) {
  std::vector<Obj> items;
  for (const Range& range : ranges) {
    budget.step();
    items.push_back(part(budget, text, range));
  }
  return make_seq(budget, std::move(items));
}

template <Side side>
Obj method_strip(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("strip", args, {"chars"});
  const Text& text = *self.as_text();
  const Text* chars = params.text(0);
  const Range range = strip(text.view(), side, chars ? std::optional(chars->view()) : std::nullopt);
  return part(in.budget(), text, range);
}

template <bool from_right>
Obj method_split(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("split", args, {"sep", "maxsplit"});
  const Text& text = *self.as_text();
  const Text* separator = params.text(0);
  if (separator && separator->empty()) fail("empty separator");
  const std::string_view cut = separator ? separator->view() : std::string_view();
  const std::int64_t n_max = params.integer(1, -1);
  return parts(in.budget(), text,
               from_right ? split_from_right(in.budget(), text.view(), cut, n_max)
                          : split(in.budget(), text.view(), cut, n_max));
}

Obj method_splitlines(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("splitlines", args, {"keepends"});
  const Text& text = *self.as_text();
  std::vector<Range> lines = split_lines(in.budget(), text.view());
  if (params.flag(0, false)) {
    for (std::size_t i = 0; i < lines.size(); ++i) {
      lines[i].end = i + 1 < lines.size() ? lines[i + 1].begin : text.size();
    }
  }
  return parts(in.budget(), text, lines);
}

/// The stretch of a string that the start and end arguments of find() and the like name.
Range window(const Text& text, const Params& params, std::size_t first) {
  if (!params.get(first) && !params.get(first + 1)) return {0, text.size()};
  const auto n = static_cast<std::int64_t>(count_characters(text.view()));
  const auto resolve = [&](std::size_t i, std::int64_t otherwise) {
    const bool given = params.get(i) && !params[i].is_none();
    const std::int64_t value = given ? params.integer(i, otherwise) : otherwise;
    return std::clamp<std::int64_t>(value < 0 ? value + n : value, 0, n);
  };
  return {offset_of_character(text.view(), resolve(first, 0)),
          offset_of_character(text.view(), resolve(first + 1, n))};
}

template <bool at_start>
Obj method_affix(Interpreter& in, const Obj& self, const CallArgs& args) {
  const char* name = at_start ? "startswith" : "endswith";
  const Params params(name, args, {"prefix", "start", "end"}, 1);
  const Text& text = *self.as_text();
  const Range range = window(text, params, 1);
  const std::string_view view = range.begin <= range.end
                                    ? text.view().substr(range.begin, range.end - range.begin)
                                    : std::string_view();
  std::vector<Obj> candidates = {params[0].require_defined()};
  if (const Seq* seq = params[0].as_seq(); seq && seq->is_tuple()) candidates = seq->items;
  for (const Obj& candidate : candidates) {
    in.budget().step();
    const Text* affix = candidate.as_text();
    if (!affix) {
      fail(fmt::format("{} first arg must be str or a tuple of str, not {}", name,
                       type_name(candidate)));
    }
    if (at_start ? view.starts_with(affix->view()) : view.ends_with(affix->view())) {
      return Obj(true);
    }
  }
  return Obj(false);
}

template <Case to>
Obj method_case(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("case", args, {});
  return Obj(change_case(*self.as_text(), to, in.budget()));
}

Obj method_replace(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("replace", args, {"old", "new", "count"}, 2);
  if (!params.text(0) || !params.text(1)) fail("replace() argument must be str, not None");
  return Obj(replace(in.budget(), *self.as_text(), *params.text(0), *params.text(1),
                     params.integer(2, -1)));
}

enum class Found { kFind, kRightFind, kIndex, kRightIndex };
template <Found kind>
Obj method_find(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("find", args, {"sub", "start", "end"}, 1);
  const Text& text = *self.as_text();
  const Text* sub = params.text(0);
  if (!sub) fail("find() argument must be str, not None");
  in.budget().bytes(text.size(), text.size());
  const Range range = window(text, params, 1);
  std::size_t at = std::string_view::npos;
  if (range.begin <= range.end) {
    const std::string_view view = text.view().substr(0, range.end);
    if (kind == Found::kFind || kind == Found::kIndex) {
      at = view.find(sub->view(), range.begin);
    } else {
      at = view.rfind(sub->view());
      if (at != std::string_view::npos && at < range.begin) at = std::string_view::npos;
    }
  }
  if (at != std::string_view::npos) {
    return Obj(static_cast<std::int64_t>(count_characters(text.view().substr(0, at))));
  }
  if (kind == Found::kIndex || kind == Found::kRightIndex) fail("substring not found");
  return Obj(std::int64_t{-1});
}

Obj method_count(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("count", args, {"sub", "start", "end"}, 1);
  const Text& text = *self.as_text();
  const Text* sub = params.text(0);
  if (!sub) fail("count() argument must be str, not None");
  in.budget().bytes(text.size(), text.size());
  const Range range = window(text, params, 1);
  if (range.begin > range.end) return Obj(std::int64_t{0});
  const std::string_view view = text.view().substr(range.begin, range.end - range.begin);
  if (sub->empty()) return Obj(static_cast<std::int64_t>(count_characters(view)) + 1);
  return Obj(static_cast<std::int64_t>(split(in.budget(), view, sub->view(), -1).size()) - 1);
}

Obj method_join(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("join", args, {"iterable"}, 1);
  const std::vector<Obj> items = iterate(in.budget(), params[0]);
  for (const Obj& item : items) {
    if (!item.as_text()) {
      fail(fmt::format("sequence item: expected str instance, {} found", type_name(item)));
    }
  }
  return Obj(join(in.budget(), items, *self.as_text()));
}

Obj method_format(Interpreter& in, const Obj& self, const CallArgs& args) {
  return Obj(format_braces(in.budget(), *self.as_text(), args));
}

template <bool prefix>
Obj method_remove(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("remove", args, {"affix"}, 1);
  const Text& text = *self.as_text();
  const Text* affix = params.text(0);
  if (!affix) fail("argument must be str, not None");
  const bool has =
      prefix ? text.view().starts_with(affix->view()) : text.view().ends_with(affix->view());
  Range range{0, text.size()};
  if (has && prefix) range.begin = affix->size();
  if (has && !prefix) range.end -= affix->size();
  return part(in.budget(), text, range);
}

template <bool from_right>
Obj method_partition(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("partition", args, {"sep"}, 1);
  const Text& text = *self.as_text();
  const Text* separator = params.text(0);
  if (!separator || separator->empty()) fail("empty separator");
  const std::size_t at =
      from_right ? text.view().rfind(separator->view()) : text.view().find(separator->view());
  Budget& budget = in.budget();
  if (at == std::string_view::npos) {
    const Obj empty{Text()};
    return from_right ? make_seq(budget, {empty, empty, self}, SeqKind::kTuple)
                      : make_seq(budget, {self, empty, empty}, SeqKind::kTuple);
  }
  return make_seq(budget,
                  {part(budget, text, {0, at}), part(budget, text, {at, at + separator->size()}),
                   part(budget, text, {at + separator->size(), text.size()})},
                  SeqKind::kTuple);
}

template <bool (*predicate)(std::int32_t)>
Obj method_all(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("is", args, {});
  const Text& text = *self.as_text();
  in.budget().bytes(text.size(), text.size());
  for (std::size_t pos = 0; pos < text.size();) {
    const Character c = character_at(text.view(), pos);
    if (!predicate(c.code_point)) return Obj(false);
    pos = c.end;
  }
  return Obj(!text.empty());
}

bool is_alphanumeric(std::int32_t c) { return is_alphabetic(c) || is_numeric(c); }

Obj method_test(Interpreter& in, const Obj& self, const CallArgs& args, const char* name) {
  const Params params(name, args, {});
  return Obj(in.test(name, self, {}));
}
Obj method_isupper(Interpreter& in, const Obj& self, const CallArgs& args) {
  return method_test(in, self, args, "upper");
}
Obj method_islower(Interpreter& in, const Obj& self, const CallArgs& args) {
  return method_test(in, self, args, "lower");
}

enum class Align { kLeft, kRight, kCenter, kZero };
template <Align align>
Obj method_pad(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("pad", args, {"width", "fillchar"}, 1);
  const Text& text = *self.as_text();
  const Text fill = align == Align::kZero ? Text("0")
                    : params.text(1)      ? *params.text(1)
                                          : Text(" ");
  if (count_characters(fill.view()) != 1) {
    fail("The fill character must be exactly one character long");
  }
  const auto n_text = static_cast<std::int64_t>(count_characters(text.view()));
  const std::int64_t width = params.integer(0, 0);
  const std::int64_t n_pad = std::max<std::int64_t>(0, width - n_text);
  std::int64_t n_left = align == Align::kLeft ? 0 : n_pad;
  if (align == Align::kCenter) n_left = n_pad / 2 + (n_pad & width & 1);
  TextBuilder out(in.budget());
  const bool sign =
      align == Align::kZero && !text.empty() && (text.view()[0] == '-' || text.view()[0] == '+');
  if (sign) out.append(text, 0, 1);
  out.append(repeat(in.budget(), fill, n_left));
  out.append(text, sign ? 1 : 0, text.size());
  out.append(repeat(in.budget(), fill, n_pad - n_left));
  return Obj(out.take());
}

Obj method_keys(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("keys", args, {});
  return make_seq(in.budget(), iterate(in.budget(), self), SeqKind::kDictView, "dict_keys");
}

Obj method_values(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("values", args, {});
  std::vector<Obj> items;
  for (const auto& entry : self.as_map()->entries) items.push_back(entry.second);
  return make_seq(in.budget(), std::move(items), SeqKind::kDictView, "dict_values");
}

Obj method_items(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("items", args, {});
  std::vector<Obj> items;
  for (const auto& [key, value] : self.as_map()->entries) {
    items.push_back(make_seq(in.budget(), {key, value}, SeqKind::kTuple));
  }
  return make_seq(in.budget(), std::move(items), SeqKind::kDictView, "dict_items");
}

Obj method_get(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("get", args, {"key", "default"}, 1);
  const Obj* found = find(in.budget(), *self.as_map(), params[0]);
  return found ? *found : params.value(1, Obj(nullptr));
}

Obj method_copy(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("copy", args, {});
  return self;
}

Obj method_list_count(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("count", args, {"value"}, 1);
  std::int64_t n = 0;
  for (const Obj& item : self.as_seq()->items) n += equal(in.budget(), item, params[0]) ? 1 : 0;
  return Obj(n);
}

Obj method_list_index(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("index", args, {"value"}, 1);
  const std::vector<Obj>& items = self.as_seq()->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(in.budget(), items[i], params[0])) return Obj(static_cast<std::int64_t>(i));
  }
  fail("value is not in list");
}

Obj method_cycle(Interpreter&, const Obj& self, const CallArgs& args) {
  if (args.positional.empty()) fail("no items for cycling given");
  const auto n = static_cast<std::int64_t>(args.positional.size());
  return args.positional[static_cast<std::size_t>(self.as_loop()->index % n)];
}

Obj method_changed(Interpreter& in, const Obj& self, const CallArgs& args) {
  LoopState& loop = *self.as_loop();
  bool same = loop.has_changed && loop.changed.size() == args.positional.size();
  for (std::size_t i = 0; same && i < args.positional.size(); ++i) {
    same = equal(in.budget(), loop.changed[i], args.positional[i]);
  }
  loop.changed = args.positional;
  loop.has_changed = true;
  return Obj(!same);
}

}  // namespace

Builtin find_string_method(std::string_view name) {
  static const Table kMethods = {
      {"strip", method_strip<Side::kBoth>},
      {"lstrip", method_strip<Side::kLeft>},
      {"rstrip", method_strip<Side::kRight>},
      {"split", method_split<false>},
      {"rsplit", method_split<true>},
      {"splitlines", method_splitlines},
      {"startswith", method_affix<true>},
      {"endswith", method_affix<false>},
      {"upper", method_case<Case::kUpper>},
      {"lower", method_case<Case::kLower>},
      {"title", method_case<Case::kTitle>},
      {"capitalize", method_case<Case::kCapitalize>},
      {"swapcase", method_case<Case::kSwap>},
      {"replace", method_replace},
      {"find", method_find<Found::kFind>},
      {"rfind", method_find<Found::kRightFind>},
      {"index", method_find<Found::kIndex>},
      {"rindex", method_find<Found::kRightIndex>},
      {"count", method_count},
      {"join", method_join},
      {"format", method_format},
      {"removeprefix", method_remove<true>},
      {"removesuffix", method_remove<false>},
      {"partition", method_partition<false>},
      {"rpartition", method_partition<true>},
      {"isdigit", method_all<is_numeric>},
      {"isdecimal", method_all<is_numeric>},
      {"isnumeric", method_all<is_numeric>},
      {"isalpha", method_all<is_alphabetic>},
      {"isalnum", method_all<is_alphanumeric>},
      {"isspace", method_all<is_space>},
      {"isupper", method_isupper},
      {"islower", method_islower},
      {"ljust", method_pad<Align::kLeft>},
      {"rjust", method_pad<Align::kRight>},
      {"center", method_pad<Align::kCenter>},
      {"zfill", method_pad<Align::kZero>},
  };
  return look_up(kMethods, name);
}

Builtin find_method(const Obj& self, std::string_view name) {
  static const Table kDict = {{"keys", method_keys},
                              {"values", method_values},
                              {"items", method_items},
                              {"get", method_get},
                              {"copy", method_copy}};
  static const Table kList = {
      {"count", method_list_count}, {"index", method_list_index}, {"copy", method_copy}};
  static const Table kLoop = {{"cycle", method_cycle}, {"changed", method_changed}};
  if (self.as_text()) return find_string_method(name);
  if (self.as_map()) return look_up(kDict, name);
  if (self.as_loop()) return look_up(kLoop, name);
  const Seq* seq = self.as_seq();
  return seq && (seq->is_list() || seq->is_tuple()) ? look_up(kList, name) : nullptr;
}

}  // namespace kvasir::text::jinja
