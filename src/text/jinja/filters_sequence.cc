// Filters on lists, dicts and anything that can be iterated over.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace kvasir::text::jinja {

namespace {

Obj filter_default(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("default", args, {"default_value", "boolean"});
  const bool missing = self.is_undefined() || (params.flag(1, false) && !truth(self));
  return missing ? params.value(0, Obj(Text())) : self;
}

Obj filter_length(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("length", args, {});
  if (const Text* text = self.as_text()) in.budget().bytes(text->size(), text->size());
  return Obj(length(self));
}

Obj filter_list(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("list", args, {});
  return make_seq(in.budget(), iterate(in.budget(), self));
}

Obj filter_first(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("first", args, {});
  const Seq* seq = self.as_seq();
  if (seq && !seq->items.empty()) return seq->items.front();
  const std::vector<Obj> items = iterate(in.budget(), self);
  return items.empty() ? Obj::undefined("No first item, sequence was empty.") : items.front();
}

Obj filter_last(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("last", args, {});
  const Seq* seq = self.as_seq();
  if (seq && !seq->items.empty()) return seq->items.back();
  const std::vector<Obj> items = iterate(in.budget(), self);
  return items.empty() ? Obj::undefined("No last item, sequence was empty.") : items.back();
}

Obj filter_join(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("join", args, {"d", "attribute"});
  std::vector<Obj> items = iterate(in.budget(), self);
  if (const Obj* path = params.get(1); path && !path->is_none()) {
    for (Obj& item : items) item = attribute_path(in, item, *path);
  }
  const TextPtr separator = to_text(in.budget(), params.value(0, Obj(Text())));
  return Obj(join(in.budget(), items, *separator));
}

Obj filter_reverse(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("reverse", args, {});
  std::vector<Obj> items = iterate(in.budget(), self.require_defined());
  std::reverse(items.begin(), items.end());
  if (self.as_text()) return Obj(join(in.budget(), items, Text()));
  return make_generator(in.budget(), std::move(items));
}

Obj filter_items(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("items", args, {});
  std::vector<Obj> items;
  if (const Map* map = self.as_map()) {
    for (const auto& [key, value] : map->entries) {
      items.push_back(make_seq(in.budget(), {key, value}, SeqKind::kTuple));
    }
  } else if (!self.is_undefined()) {
    fail("Can only get item pairs from a mapping.");
  }
  return make_generator(in.budget(), std::move(items));
}

/// What sort, unique, min and max compare by: the item, an attribute, or several.
Obj sort_key(Interpreter& in, const Obj& item, const Obj* attribute) {
  if (!attribute || attribute->is_none()) return item;
  const Text* text = attribute->as_text();
  if (!text || text->view().find(',') == std::string_view::npos) {
    return attribute_path(in, item, *attribute);
  }
  std::vector<Obj> keys;
  for (const Range& part : split(in.budget(), text->view(), ",", -1)) {
    Text path;
    path.append(*text, part.begin, part.end);
    keys.push_back(attribute_path(in, item, Obj(std::move(path))));
  }
  return make_seq(in.budget(), std::move(keys));
}

/// Sorts pairs of key and item; equal keys keep their order, also when reversed.
std::vector<Obj> sort_by_key(Budget& budget, std::vector<std::pair<Obj, Obj>> pairs,
                             bool case_sensitive, bool reverse) {
  std::stable_sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) {
    const int order = compare_folded(budget, a.first, b.first, case_sensitive);
    return reverse ? order > 0 : order < 0;
  });
  std::vector<Obj> sorted;
  for (auto& pair : pairs) sorted.push_back(std::move(pair.second));
  return sorted;
}

Obj filter_sort(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Obj, Obj>> pairs;
  for (const Obj& item : iterate(in.budget(), self)) {
    pairs.emplace_back(sort_key(in, item, params.get(2)), item);
  }
  return make_seq(in.budget(), sort_by_key(in.budget(), std::move(pairs), params.flag(1, false),
                                           params.flag(0, false)));
}

Obj filter_dictsort(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("dictsort", args, {"case_sensitive", "by", "reverse"});
  const Map* map = self.require_defined().as_map();
  if (!map) fail(fmt::format("'{}' object has no attribute 'items'", type_name(self)));
  const std::string_view by = params.text(1) ? params.text(1)->view() : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  std::vector<std::pair<Obj, Obj>> pairs;
  for (const auto& [key, value] : map->entries) {
    pairs.emplace_back(by == "key" ? key : value,
                       make_seq(in.budget(), {key, value}, SeqKind::kTuple));
  }
  return make_seq(in.budget(), sort_by_key(in.budget(), std::move(pairs), params.flag(0, false),
                                           params.flag(2, false)));
}

Obj filter_unique(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("unique", args, {"case_sensitive", "attribute"});
  std::unordered_set<std::string> seen;
  std::vector<Obj> items;
  for (const Obj& item : iterate(in.budget(), self)) {
    std::string key = hash_key(in.budget(), sort_key(in, item, params.get(1)));
    if (!params.flag(0, false)) key = lower(key);
    if (seen.insert(std::move(key)).second) items.push_back(item);
  }
  return make_generator(in.budget(), std::move(items));
}

template <int sign>
Obj filter_extreme(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params(sign < 0 ? "min" : "max", args, {"case_sensitive", "attribute"});
  const std::vector<Obj> items = iterate(in.budget(), self);
  if (items.empty()) return Obj::undefined("No aggregated item, sequence was empty.");
  std::size_t best = 0;
  Obj best_key = sort_key(in, items[0], params.get(1));
  for (std::size_t i = 1; i < items.size(); ++i) {
    Obj key = sort_key(in, items[i], params.get(1));
    const int order = compare_folded(in.budget(), key, best_key, params.flag(0, false));
    if (order * sign > 0) {
      best = i;
      best_key = std::move(key);
    }
  }
  return items[best];
}

Obj filter_sum(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("sum", args, {"attribute", "start"});
  Obj total = params.value(1, Obj(std::int64_t{0}));
  if (total.as_text()) fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Obj& item : iterate(in.budget(), self)) {
    const bool by_attribute = params.get(0) && !params[0].is_none();
    total =
        binary(in.budget(), "+", total, by_attribute ? attribute_path(in, item, params[0]) : item);
  }
  return total;
}

Obj filter_batch(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("batch", args, {"linecount", "fill_with"}, 1);
  const std::int64_t n = params.integer(0, 1);
  if (n < 1) fail("batch(): linecount must be positive");
  std::vector<Obj> rows;
  std::vector<Obj> row;
  for (const Obj& item : iterate(in.budget(), self)) {
    if (static_cast<std::int64_t>(row.size()) == n) {
      rows.push_back(make_seq(in.budget(), std::exchange(row, {})));
    }
    row.push_back(item);
  }
  if (!row.empty()) {
    while (params.get(1) && !params[1].is_none() && static_cast<std::int64_t>(row.size()) < n) {
      in.budget().step();
      row.push_back(params[1]);
    }
    rows.push_back(make_seq(in.budget(), std::move(row)));
  }
  return make_generator(in.budget(), std::move(rows));
}

/// The arguments after the first `n`, for the filter or test that they go on to.
CallArgs rest_of(const CallArgs& args, std::size_t n) {
  CallArgs rest;
  rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(n),
                         args.positional.end());
  rest.keyword = args.keyword;
  return rest;
}

std::string name_argument(const CallArgs& args, std::size_t i, std::string_view function) {
  if (i >= args.positional.size() || !args.positional[i].as_text()) {
    fail(fmt::format("{}(): a name is missing", function));
  }
  return args.positional[i].as_text()->bytes();
}

/// map, select and the like take anything false, none included, for an empty sequence.
std::vector<Obj> iterate_if_true(Budget& budget, const Obj& obj) {
  return truth(obj) ? iterate(budget, obj) : std::vector<Obj>();
}

Obj filter_map(Interpreter& in, const Obj& self, const CallArgs& args) {
  std::vector<Obj> items = iterate_if_true(in.budget(), self);
  if (args.positional.empty()) {
    const Params params("map", args, {"attribute", "default"}, 1);
    for (Obj& item : items) {
      item = attribute_path(in, item, params[0]);
      if (item.is_undefined() && params.get(1)) item = params[1];
    }
  } else {
    const std::string name = name_argument(args, 0, "map");
    const CallArgs rest = rest_of(args, 1);
    in.budget().step(items.size() * rest.positional.size());
    for (Obj& item : items) item = in.filter(name, item, rest);
  }
  return make_generator(in.budget(), std::move(items));
}

/// select, reject, selectattr, rejectattr.
template <bool by_attribute, bool wanted>
Obj filter_select(Interpreter& in, const Obj& self, const CallArgs& args) {
  const std::size_t n_own = by_attribute ? 1 : 0;
  if (args.positional.size() < n_own) fail("selectattr(): missing parameter for attribute name");
  const bool has_test = args.positional.size() > n_own;
  const std::string name = has_test ? name_argument(args, n_own, "select") : "";
  const CallArgs rest = has_test ? rest_of(args, n_own + 1) : CallArgs{};
  std::vector<Obj> kept;
  for (const Obj& item : iterate_if_true(in.budget(), self)) {
    in.budget().step();
    const Obj subject = by_attribute ? attribute_path(in, item, args.positional[0]) : item;
    const bool passes = has_test ? in.test(name, subject, rest) : truth(subject);
    if (passes == wanted) kept.push_back(item);
  }
  return make_generator(in.budget(), std::move(kept));
}

}  // namespace

Builtin find_sequence_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Builtin> kFilters = {
      {"default", filter_default},
      {"d", filter_default},
      {"length", filter_length},
      {"count", filter_length},
      {"list", filter_list},
      {"first", filter_first},
      {"last", filter_last},
      {"join", filter_join},
      {"reverse", filter_reverse},
      {"items", filter_items},
      {"sort", filter_sort},
      {"dictsort", filter_dictsort},
      {"unique", filter_unique},
      {"min", filter_extreme<-1>},
      {"max", filter_extreme<1>},
      {"sum", filter_sum},
      {"batch", filter_batch},
      {"map", filter_map},
      {"select", filter_select<false, true>},
      {"reject", filter_select<false, false>},
      {"selectattr", filter_select<true, true>},
      {"rejectattr", filter_select<true, false>},
  };
  const auto at = kFilters.find(name);
  return at == kFilters.end() ? nullptr : at->second;
}

}  // namespace kvasir::text::jinja
