// How values print: str(), repr() and json.dumps() of Python.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "text/jinja/object.h"

namespace kvasir::text::jinja {

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer;
  // Shortest digits that read back as the same number: "d.ddde+XX".
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific);
  std::string text(buffer.data(), end.ptr);
  const std::size_t e = text.find('e');
  int exponent = 0;
  const char* digits_of_exponent = text.c_str() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, text.c_str() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    return text.substr(0, e) +
           fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const bool negative = text[0] == '-';
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string out = negative ? "-" : "";
  const auto n_digits = static_cast<int>(digits.size());
  if (exponent < 0) {
    out += "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else if (n_digits <= exponent + 1) {
    out += digits + std::string(static_cast<std::size_t>(exponent + 1 - n_digits), '0') + ".0";
  } else {
    const auto n_whole = static_cast<std::size_t>(exponent + 1);
    out += digits.substr(0, n_whole) + "." + digits.substr(n_whole);
  }
  return out;
}

namespace {

void append_string_repr(const Text& text, TextBuilder& out) {
  const std::string_view view = text.view();
  const bool has_single = view.find('\'') != std::string_view::npos;
  const char quote = has_single && view.find('"') == std::string_view::npos ? '"' : '\'';
  const std::string_view quotes(&quote, 1);
  out.append(quotes);
  for (std::size_t pos = 0; pos < view.size();) {
    const Character c = character_at(view, pos);
    const bool mark = text.from_input_at(pos);
    if (c.code_point == quote || c.code_point == '\\') {
      out.append("\\", mark);
      out.append(view.substr(c.begin, 1), mark);
    } else if (c.code_point == '\n') {
      out.append("\\n", mark);
    } else if (c.code_point == '\r') {
      out.append("\\r", mark);
    } else if (c.code_point == '\t') {
      out.append("\\t", mark);
    } else if (c.code_point < 0 || is_printable(c.code_point)) {
      out.append(view.substr(c.begin, c.end - c.begin), mark);
    } else if (c.code_point < 0x100) {
      out.append(fmt::format("\\x{:02x}", c.code_point), mark);
    } else if (c.code_point < 0x10000) {
      out.append(fmt::format("\\u{:04x}", c.code_point), mark);
    } else {
      out.append(fmt::format("\\U{:08x}", c.code_point), mark);
    }
    pos = c.end;
  }
  out.append(quotes);
}

void append_seq_repr(Budget& budget, const Seq& seq, TextBuilder& out) {
  if (!seq.is_list() && !seq.is_tuple()) {
    out.append(seq.shown);
    if (seq.kind != SeqKind::kDictView) return;
  }
  const bool tuple = seq.is_tuple();
  if (seq.kind == SeqKind::kDictView) out.append("(");
  out.append(tuple ? "(" : "[");
  for (std::size_t i = 0; i < seq.items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(budget, seq.items[i], out);
  }
  if (tuple && seq.items.size() == 1) out.append(",");
  out.append(tuple ? ")" : "]");
  if (seq.kind == SeqKind::kDictView) out.append(")");
}

}  // namespace

void append_repr(Budget& budget, const Obj& obj, TextBuilder& out) {
  budget.step();
  if (const Text* text = obj.as_text()) {
    append_string_repr(*text, out);
  } else if (const Seq* seq = obj.as_seq()) {
    append_seq_repr(budget, *seq, out);
  } else if (const Map* map = obj.as_map()) {
    out.append("{");
    bool first = true;
    for (const auto& [key, value] : map->entries) {
      if (!first) out.append(", ");
      first = false;
      append_repr(budget, key, out);
      out.append(": ");
      append_repr(budget, value, out);
    }
    out.append("}");
  } else if (obj.is_undefined()) {
    out.append("Undefined");
  } else {
    out.append(*to_text(budget, obj));
  }
}

TextPtr to_text(Budget& budget, const Obj& obj) {
  if (const auto* text = std::get_if<TextPtr>(&obj.data())) return *text;
  std::string plain;
  if (obj.is_undefined()) {
    plain = "";
  } else if (obj.is_none()) {
    plain = "None";
  } else if (const bool* b = obj.as_bool()) {
    plain = *b ? "True" : "False";
  } else if (const std::int64_t* i = obj.as_int()) {
    plain = std::to_string(*i);
  } else if (const double* d = obj.as_double()) {
    plain = float_repr(*d);
  } else if (const Callable* callable = obj.as_callable()) {
    plain = callable->macro ? fmt::format("<Macro '{}'>", callable->name)
                            : fmt::format("<function {}>", callable->name);
  } else if (const LoopState* loop = obj.as_loop()) {
    plain = fmt::format("<LoopContext {}/{}>", loop->index + 1, loop->length);
  } else if (obj.as_namespace()) {
    plain = "<Namespace>";  // what it holds may hold the namespace itself
  } else {
    TextBuilder out(budget);
    append_repr(budget, obj, out);
    return std::make_shared<const Text>(out.take());
  }
  return std::make_shared<const Text>(Text(std::move(plain)));
}

namespace {

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonFormat& format)
      : budget_(budget), format_(format), out_(budget) {}

  Text write(const Obj& obj) {
    value(obj, 0);
    return out_.take();
  }

 private:
  void value(const Obj& obj, int nesting) {
    budget_.step();
    if (const Text* text = obj.as_text()) {
      string(*text);
    } else if (obj.is_none()) {
      out_.append("null");
    } else if (const bool* b = obj.as_bool()) {
      out_.append(*b ? "true" : "false");
    } else if (const std::int64_t* i = obj.as_int()) {
      out_.append(std::to_string(*i));
    } else if (const double* d = obj.as_double()) {
      out_.append(number(*d));
    } else if (const Seq* seq = obj.as_seq(); seq && (seq->is_list() || seq->is_tuple())) {
      list(*seq, nesting);
    } else if (const Map* map = obj.as_map()) {
      dict(*map, nesting);
    } else {
      fail(fmt::format("Object of type {} is not JSON serializable", type_name(obj)));
    }
  }

  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return float_repr(d);
  }

  void newline(int nesting) {
    if (!format_.multiline) return;
    out_.append("\n");
    for (int i = 0; i < nesting; ++i) out_.append(format_.indent);
  }

  void list(const Seq& seq, int nesting) {
    if (seq.items.empty()) return out_.append("[]");
    out_.append("[");
    for (std::size_t i = 0; i < seq.items.size(); ++i) {
      if (i > 0) out_.append(format_.item_separator);
      newline(nesting + 1);
      value(seq.items[i], nesting + 1);
    }
    newline(nesting);
    out_.append("]");
  }

  void dict(const Map& map, int nesting) {
    if (map.entries.empty()) return out_.append("{}");
    std::vector<const std::pair<Obj, Obj>*> entries;
    for (const auto& entry : map.entries) entries.push_back(&entry);
    if (format_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        return compare(budget_, a->first, b->first) < 0;
      });
    }
    out_.append("{");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(format_.item_separator);
      newline(nesting + 1);
      key(entries[i]->first);
      out_.append(format_.key_separator);
      value(entries[i]->second, nesting + 1);
    }
    newline(nesting);
    out_.append("}");
  }

  void key(const Obj& obj) {
    if (const Text* text = obj.as_text()) return string(*text);
    if (obj.is_none()) return out_.append("\"null\"");
    if (const bool* b = obj.as_bool()) return out_.append(*b ? "\"true\"" : "\"false\"");
    if (const std::int64_t* i = obj.as_int()) return out_.append(fmt::format("\"{}\"", *i));
    if (const double* d = obj.as_double()) return out_.append("\"" + number(*d) + "\"");
    fail(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(obj)));
  }

  void string(const Text& text) {
    out_.append("\"");
    const std::string_view view = text.view();
    std::size_t plain_begin = 0;
    for (std::size_t pos = 0; pos < view.size();) {
      const Character c = character_at(view, pos);
      const std::string escaped = escape(c.code_point);
      if (!escaped.empty()) {
        out_.append(text, plain_begin, pos);
        out_.append(escaped, text.from_input_at(pos));
        plain_begin = c.end;
      }
      pos = c.end;
    }
    out_.append(text, plain_begin, view.size());
    out_.append("\"");
  }

  /// Empty: the character stands for itself.
  std::string escape(std::int32_t c) const {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    if (c < 0) return {};
    if (c < 0x20) return fmt::format("\\u{:04x}", c);
    if (c < 0x7F || !format_.ensure_ascii) return {};
    if (c == 0x7F) return {};
    if (c < 0x10000) return fmt::format("\\u{:04x}", c);
    const std::int32_t offset = c - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
  }

  Budget& budget_;
  const JsonFormat& format_;
  TextBuilder out_;
};

}  // namespace

Text to_json(Budget& budget, const Obj& obj, const JsonFormat& format) {
  return JsonWriter(budget, format).write(obj);
}

}  // namespace kvasir::text::jinja
