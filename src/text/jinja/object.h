// The values inside a running template: Value's kinds plus tuples, namespaces, macros and methods.
//
// Invariants: strings, sequences and maps never change once made, so they hold no cycles and their
// nesting is known; only namespaces change, and the interpreter empties them when it ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/marked_text.h"
#include "text/value.h"

namespace kvasir::text::jinja {

class Interpreter;
struct Seq;
struct Map;
struct Namespace;
struct Callable;
struct LoopState;

using TextPtr = std::shared_ptr<const Text>;
using SeqPtr = std::shared_ptr<const Seq>;
using MapPtr = std::shared_ptr<const Map>;
using NamespacePtr = std::shared_ptr<Namespace>;
using CallablePtr = std::shared_ptr<const Callable>;
using LoopPtr = std::shared_ptr<LoopState>;

/// What a lookup that found nothing gives; using it for more than a truth test or printing fails
/// with `message`.
struct Undefined {
  std::shared_ptr<const std::string> message;
};

class Obj {
 public:
  using Data = std::variant<Undefined, std::nullptr_t, bool, std::int64_t, double, TextPtr, SeqPtr,
                            MapPtr, NamespacePtr, CallablePtr, LoopPtr>;
  Obj() = default;
  Obj(std::nullptr_t) : data_(nullptr) {}
  Obj(bool value) : data_(value) {}
  Obj(std::int64_t value) : data_(value) {}
  Obj(double value) : data_(value) {}
  Obj(Text value) : data_(std::make_shared<const Text>(std::move(value))) {}
  Obj(TextPtr value) : data_(std::move(value)) {}
  Obj(SeqPtr value) : data_(std::move(value)) {}
  Obj(MapPtr value) : data_(std::move(value)) {}
  Obj(NamespacePtr value) : data_(std::move(value)) {}
  Obj(CallablePtr value) : data_(std::move(value)) {}
  Obj(LoopPtr value) : data_(std::move(value)) {}
  Obj(const char*) = delete;
  static Obj undefined(std::string message) {
    Obj obj;
    obj.data_ = Undefined{std::make_shared<const std::string>(std::move(message))};
    return obj;
  }
  static Obj string(std::string_view text) { return Obj(Text(std::string(text))); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<std::nullptr_t>(data_); }
  const bool* as_bool() const { return std::get_if<bool>(&data_); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&data_); }
  const double* as_double() const { return std::get_if<double>(&data_); }
  const Text* as_text() const { return pointee<TextPtr>(); }
  const Seq* as_seq() const { return pointee<SeqPtr>(); }
  const Map* as_map() const { return pointee<MapPtr>(); }
  Namespace* as_namespace() const { return pointee<NamespacePtr>(); }
  const Callable* as_callable() const { return pointee<CallablePtr>(); }
  LoopState* as_loop() const { return pointee<LoopPtr>(); }
  const Data& data() const { return data_; }

  /// Fails if this is undefined; most operations begin with it.
  const Obj& require_defined() const;

 private:
  template <class Pointer>
  typename Pointer::element_type* pointee() const {
    const Pointer* pointer = std::get_if<Pointer>(&data_);
    return pointer ? pointer->get() : nullptr;
  }
  Data data_;
};

enum class SeqKind { kList, kTuple, kRange, kDictView, kGenerator };
struct Seq {
  SeqKind kind = SeqKind::kList;
  int depth = 1;
  std::vector<Obj> items;
  std::string shown;  ///< how a range, view or generator prints

  bool is_list() const { return kind == SeqKind::kList; }
  bool is_tuple() const { return kind == SeqKind::kTuple; }
  bool has_length() const { return kind != SeqKind::kGenerator; }
  bool has_index() const { return kind != SeqKind::kGenerator && kind != SeqKind::kDictView; }
};

/// A dict in insertion order.
struct Map {
  int depth = 1;
  std::vector<std::pair<Obj, Obj>> entries;
  std::unordered_map<std::string, std::size_t> index;  ///< hash_key() -> position in entries

  const Obj* find(std::string_view key) const;
};

struct Namespace {
  std::map<std::string, Obj> attributes;
};

/// What a call was given.
struct CallArgs {
  std::vector<Obj> positional;
  std::vector<std::pair<std::string, Obj>> keyword;
};

using Builtin = Obj (*)(Interpreter&, const Obj& self, const CallArgs&);
struct Frame;
struct MacroNode;

struct Callable {
  std::string name;
  Builtin builtin = nullptr;
  Obj self;                          ///< what a method is bound to
  const MacroNode* macro = nullptr;  ///< for a macro, and the frame it was defined in
  std::shared_ptr<Frame> frame;
};

/// `loop` inside a for. The items are let go when the loop ends.
struct LoopState {
  std::vector<Obj> items;
  std::int64_t index = 0;
  std::int64_t length = 0;
  std::vector<Obj> changed;
  bool has_changed = false;
};

/// Containers are made here, so that nesting and cost are always accounted for.
Obj make_seq(Budget& budget, std::vector<Obj> items, SeqKind kind = SeqKind::kList,
             std::string shown = {});
inline Obj make_generator(Budget& budget, std::vector<Obj> items) {
  return make_seq(budget, std::move(items), SeqKind::kGenerator, "<generator object>");
}
/// Later entries win over earlier ones of the same key and keep their place.
Obj make_map(Budget& budget, std::vector<std::pair<Obj, Obj>> entries);
/// What the caller passed in. Keys of dicts count as input: they come from requests.
Obj from_value(Budget& budget, const Value& value);

int depth_of(const Obj& obj);
/// Python's name for the type, as error messages have it.
std::string_view type_name(const Obj& obj);
bool truth(const Obj& obj);
/// Two keys of a dict are the same when their hash keys are. Fails on lists and dicts.
std::string hash_key(Budget& budget, const Obj& obj);
const Obj* find(Budget& budget, const Map& map, const Obj& key);
bool equal(Budget& budget, const Obj& a, const Obj& b);
/// < 0, 0, > 0; fails with Python's words when the two have no order.
int compare(Budget& budget, const Obj& a, const Obj& b, std::string_view op = "<");
bool contains(Budget& budget, const Obj& container, const Obj& item);
/// What a for loop over this sees. Fails on what cannot be iterated over.
std::vector<Obj> iterate(Budget& budget, const Obj& obj);
std::int64_t length(const Obj& obj);
/// int, bool; nothing for the rest.
std::optional<std::int64_t> integer_of(const Obj& obj);
/// int, bool, float; nothing for the rest.
std::optional<double> number_of(const Obj& obj);

/// str() and repr() of Python.
TextPtr to_text(Budget& budget, const Obj& obj);
void append_repr(Budget& budget, const Obj& obj, TextBuilder& out);
std::string float_repr(double value);
/// json.dumps. `indent` < 0: on one line.
struct JsonFormat {
  std::string indent;
  bool multiline = false;
  Text item_separator = Text(", ");
  Text key_separator = Text(": ");
  bool ensure_ascii = false;
  bool sort_keys = false;
};
Text to_json(Budget& budget, const Obj& obj, const JsonFormat& format);

}  // namespace kvasir::text::jinja
