// Values of a running template: making, comparing, iterating.
#include "text/jinja/object.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace kvasir::text::jinja {

const Obj& Obj::require_defined() const {
  if (const auto* undefined = std::get_if<Undefined>(&data_)) {
    fail(undefined->message ? *undefined->message : "value is undefined");
  }
  return *this;
}

int depth_of(const Obj& obj) {
  if (const Seq* seq = obj.as_seq()) return seq->depth;
  if (const Map* map = obj.as_map()) return map->depth;
  if (const Callable* callable = obj.as_callable()) return 1 + depth_of(callable->self);
  return 0;
}

Obj make_seq(Budget& budget, std::vector<Obj> items, SeqKind kind, std::string shown) {
  budget.step(1 + items.size());
  auto seq = std::make_shared<Seq>();
  for (const Obj& item : items) seq->depth = std::max(seq->depth, 1 + depth_of(item));
  budget.depth(seq->depth);
  seq->kind = kind;
  seq->items = std::move(items);
  seq->shown = std::move(shown);
  return Obj(SeqPtr(std::move(seq)));
}

Obj make_map(Budget& budget, std::vector<std::pair<Obj, Obj>> entries) {
  constexpr std::uint64_t kStepsPerEntry = 4;  // an entry takes that much more memory than an item
  budget.step(1 + kStepsPerEntry * entries.size());
  auto map = std::make_shared<Map>();
  map->entries.reserve(entries.size());
  for (auto& [key, value] : entries) {
    map->depth = std::max({map->depth, 1 + depth_of(key), 1 + depth_of(value)});
    const auto [at, is_new] = map->index.try_emplace(hash_key(budget, key), map->entries.size());
    if (is_new) {
      map->entries.emplace_back(std::move(key), std::move(value));
    } else {
      map->entries[at->second].second = std::move(value);
    }
  }
  budget.depth(map->depth);
  return Obj(MapPtr(std::move(map)));
}

namespace {

Text from_marked_string(const MarkedString& string) {
  Text text;
  for (const MarkedString::Run& run : string.runs()) text.append(run.text, run.from_input);
  return text;
}

/// Passed-in values cost no steps: they are the caller's own.
Obj convert(Budget& budget, const Value& value, int nesting) {
  budget.depth(nesting);
  if (value.is_none()) return Obj(nullptr);
  if (const bool* b = value.as_bool()) return Obj(*b);
  if (const std::int64_t* i = value.as_int()) return Obj(*i);
  if (const double* d = value.as_double()) return Obj(*d);
  if (const MarkedString* s = value.as_string()) return Obj(from_marked_string(*s));
  if (const List* list = value.as_list()) {
    auto seq = std::make_shared<Seq>();
    for (const Value& item : *list) {
      seq->items.push_back(convert(budget, item, nesting + 1));
      seq->depth = std::max(seq->depth, 1 + depth_of(seq->items.back()));
    }
    return Obj(SeqPtr(std::move(seq)));
  }
  if (const Dict* dict = value.as_dict()) {
    auto map = std::make_shared<Map>();
    for (const auto& [key, item] : *dict) {
      Obj converted = convert(budget, item, nesting + 1);
      map->depth = std::max(map->depth, 1 + depth_of(converted));
      const auto [at, is_new] = map->index.try_emplace("s" + key, map->entries.size());
      if (is_new) {
        map->entries.emplace_back(Obj(Text(key, true)), std::move(converted));
      } else {
        map->entries[at->second].second = std::move(converted);
      }
    }
    return Obj(MapPtr(std::move(map)));
  }
  return Obj();
}

}  // namespace

Obj from_value(Budget& budget, const Value& value) { return convert(budget, value, 0); }

std::string_view type_name(const Obj& obj) {
  if (const Seq* seq = obj.as_seq()) {
    constexpr std::string_view kNames[] = {"list", "tuple", "range", "dict_items", "generator"};
    return kNames[static_cast<int>(seq->kind)];
  }
  constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool",       "int",
                                         "float",     "str",      "list",       "dict",
                                         "Namespace", "function", "LoopContext"};
  return kNames[obj.data().index()];
}

bool truth(const Obj& obj) {
  if (obj.is_undefined() || obj.is_none()) return false;
  if (const bool* b = obj.as_bool()) return *b;
  if (const std::int64_t* i = obj.as_int()) return *i != 0;
  if (const double* d = obj.as_double()) return *d != 0;
  if (const Text* text = obj.as_text()) return !text->empty();
  if (const Seq* seq = obj.as_seq()) return !seq->has_length() || !seq->items.empty();
  if (const Map* map = obj.as_map()) return !map->entries.empty();
  return true;
}

std::optional<std::int64_t> integer_of(const Obj& obj) {
  if (const std::int64_t* i = obj.as_int()) return *i;
  if (const bool* b = obj.as_bool()) return *b ? 1 : 0;
  return std::nullopt;
}

std::optional<double> number_of(const Obj& obj) {
  if (const double* d = obj.as_double()) return *d;
  if (const auto i = integer_of(obj)) return static_cast<double>(*i);
  return std::nullopt;
}

std::string hash_key(Budget& budget, const Obj& obj) {
  budget.step();
  if (const Text* text = obj.as_text()) {
    budget.bytes(text->size(), text->size());
    return "s" + text->bytes();
  }
  if (obj.is_none()) return "n";
  if (obj.is_undefined()) return "u";
  if (const auto i = integer_of(obj)) return fmt::format("i{}", *i);
  if (const double* d = obj.as_double()) {
    const bool integral = std::floor(*d) == *d && std::abs(*d) < 9e15;
    return integral ? fmt::format("i{}", static_cast<std::int64_t>(*d)) : "f" + float_repr(*d);
  }
  if (const Seq* seq = obj.as_seq(); seq && seq->is_tuple()) {
    std::string key = "t";
    for (const Obj& item : seq->items) {
      const std::string part = hash_key(budget, item);
      key += fmt::format("{}:", part.size());
      key += part;
      budget.bytes(key.size(), part.size());
    }
    return key;
  }
  fail(fmt::format("unhashable type: '{}'", type_name(obj)));
}

const Obj* Map::find(std::string_view key) const {
  std::string hashed = "s";
  hashed += key;
  const auto at = index.find(hashed);
  return at == index.end() ? nullptr : &entries[at->second].second;
}

const Obj* find(Budget& budget, const Map& map, const Obj& key) {
  const auto at = map.index.find(hash_key(budget, key));
  return at == map.index.end() ? nullptr : &map.entries[at->second].second;
}

namespace {

bool equal_maps(Budget& budget, const Map& a, const Map& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [hashed, at] : a.index) {
    const auto other = b.index.find(hashed);
    if (other == b.index.end()) return false;
    if (!equal(budget, a.entries[at].second, b.entries[other->second].second)) return false;
  }
  return true;
}

bool equal_seqs(Budget& budget, const Seq& a, const Seq& b) {
  if (a.kind == SeqKind::kGenerator || a.kind != b.kind) return &a == &b;
  if (a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(budget, a.items[i], b.items[i])) return false;
  }
  return true;
}

}  // namespace

bool equal(Budget& budget, const Obj& a, const Obj& b) {
  budget.step();
  const auto int_a = integer_of(a);
  const auto int_b = integer_of(b);
  if (int_a && int_b) return *int_a == *int_b;
  const auto number_a = number_of(a);
  const auto number_b = number_of(b);
  if (number_a && number_b) return *number_a == *number_b;
  if (a.data().index() != b.data().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const Text* text = a.as_text()) {
    if (text->size() != b.as_text()->size()) return false;
    budget.bytes(text->size(), text->size());
    return text->view() == b.as_text()->view();
  }
  if (const Seq* seq = a.as_seq()) return equal_seqs(budget, *seq, *b.as_seq());
  if (const Map* map = a.as_map()) return equal_maps(budget, *map, *b.as_map());
  return a.as_namespace() == b.as_namespace() && a.as_callable() == b.as_callable() &&
         a.as_loop() == b.as_loop();
}

int compare(Budget& budget, const Obj& a, const Obj& b, std::string_view op) {
  budget.step();
  a.require_defined();
  b.require_defined();
  const auto int_a = integer_of(a);
  const auto int_b = integer_of(b);
  if (int_a && int_b) return *int_a < *int_b ? -1 : *int_a > *int_b;
  const auto number_a = number_of(a);
  const auto number_b = number_of(b);
  if (number_a && number_b) return *number_a < *number_b ? -1 : *number_a > *number_b;
  if (a.as_text() && b.as_text()) {
    const std::size_t n = std::min(a.as_text()->size(), b.as_text()->size());
    budget.bytes(n, n);
    return a.as_text()->view().compare(b.as_text()->view());
  }
  const Seq* seq_a = a.as_seq();
  const Seq* seq_b = b.as_seq();
  if (seq_a && seq_b && seq_a->kind == seq_b->kind && (seq_a->is_list() || seq_a->is_tuple())) {
    const std::size_t n = std::min(seq_a->items.size(), seq_b->items.size());
    for (std::size_t i = 0; i < n; ++i) {
      if (equal(budget, seq_a->items[i], seq_b->items[i])) continue;
      return compare(budget, seq_a->items[i], seq_b->items[i], op);
    }
    if (seq_a->items.size() == seq_b->items.size()) return 0;
    return seq_a->items.size() < seq_b->items.size() ? -1 : 1;
  }
  fail(fmt::format("'{}' not supported between instances of '{}' and '{}'", op, type_name(a),
                   type_name(b)));
}

bool contains(Budget& budget, const Obj& container, const Obj& item) {
  budget.step();
  if (const Text* text = container.as_text()) {
    item.require_defined();
    const Text* part = item.as_text();
    if (!part) {
      fail(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    }
    budget.bytes(text->size(), text->size());
    return text->view().find(part->view()) != std::string_view::npos;
  }
  if (const Map* map = container.as_map()) return find(budget, *map, item) != nullptr;
  if (const Seq* seq = container.as_seq()) {
    for (const Obj& other : seq->items) {
      if (equal(budget, other, item)) return true;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  fail(fmt::format("argument of type '{}' is not iterable", type_name(container)));
}

std::vector<Obj> iterate(Budget& budget, const Obj& obj) {
  if (const Seq* seq = obj.as_seq()) {
    budget.step(seq->items.size());
    return seq->items;
  }
  std::vector<Obj> items;
  if (obj.is_undefined()) return items;
  if (const Map* map = obj.as_map()) {
    budget.step(map->entries.size());
    for (const auto& entry : map->entries) items.push_back(entry.first);
    return items;
  }
  if (const Text* text = obj.as_text()) {
    for (std::size_t pos = 0; pos < text->size();) {
      constexpr std::uint64_t kStepsPerString = 2;
      budget.step(kStepsPerString);
      const Character c = character_at(text->view(), pos);
      Text one;
      one.append(*text, c.begin, c.end);
      items.emplace_back(std::move(one));
      pos = c.end;
    }
    return items;
  }
  fail(fmt::format("'{}' object is not iterable", type_name(obj)));
}

std::int64_t length(const Obj& obj) {
  if (obj.is_undefined()) return 0;
  if (const Text* text = obj.as_text()) {
    return static_cast<std::int64_t>(count_characters(text->view()));
  }
  if (const Seq* seq = obj.as_seq(); seq && seq->has_length()) {
    return static_cast<std::int64_t>(seq->items.size());
  }
  if (const Map* map = obj.as_map()) return static_cast<std::int64_t>(map->entries.size());
  if (const LoopState* loop = obj.as_loop()) return loop->length;
  fail(fmt::format("object of type '{}' has no len()", type_name(obj)));
}

}  // namespace kvasir::text::jinja
