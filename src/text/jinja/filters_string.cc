// Filters on strings and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"

namespace kvasir::text::jinja {

Text repeat(Budget& budget, const Text& text, std::int64_t n) {
  TextBuilder out(budget);
  // Say so at once where the end could never be reached.
  const std::uint64_t n_bytes_max = budget.limits().output_bytes_max;
  if (n > 0 && !text.empty() && static_cast<std::uint64_t>(n) > n_bytes_max / text.size()) {
    budget.bytes(n_bytes_max + 1, 0);
  }
  for (std::int64_t i = 0; i < n && !text.empty(); ++i) out.append(text);
  return out.take();
}

Text join(Budget& budget, const std::vector<Obj>& items, const Text& separator) {
  TextBuilder out(budget);
  for (std::size_t i = 0; i < items.size(); ++i) {
    budget.step();
    if (i > 0) out.append(separator);
    out.append(*to_text(budget, items[i]));
  }
  return out.take();
}

Text replace(Budget& budget, const Text& text, const Text& from, const Text& to,
             std::int64_t n_max) {
  TextBuilder out(budget);
  const std::string_view view = text.view();
  std::size_t begin = 0;
  std::int64_t n = 0;
  const auto more = [&] { return n_max < 0 || n < n_max; };
  if (from.empty()) {
    // As in Python, nothing is found before every character and at the end.
    for (std::size_t pos = 0; more(); pos = character_at(view, pos).end) {
      out.append(text, begin, pos);
      out.append(to);
      begin = pos;
      ++n;
      if (pos == view.size()) break;
    }
  } else {
    while (more()) {
      const std::size_t at = view.find(from.view(), begin);
      if (at == std::string_view::npos) break;
      out.append(text, begin, at);
      out.append(to);
      begin = at + from.size();
      ++n;
    }
  }
  out.append(text, begin, text.size());
  return out.take();
}

Text escape_markup(Budget& budget, const Text& text) {
  if (text.is_markup()) return text;
  TextBuilder out(budget);
  for (std::size_t i = 0; i < text.size(); ++i) {
    constexpr std::string_view kSpecial = "&<>'\"";
    constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const std::size_t which = kSpecial.find(text.view()[i]);
    if (which == std::string_view::npos) {
      out.append(text, i, i + 1);
    } else {
      out.append(kEntities[which], text.from_input_at(i));
    }
  }
  Text escaped = out.take();
  escaped.set_markup();
  return escaped;
}

namespace {

Obj stripped(Budget& budget, const Text& text, const Text* chars) {
  const Range range =
      strip(text.view(), Side::kBoth, chars ? std::optional(chars->view()) : std::nullopt);
  TextBuilder out(budget);
  out.append(text, range.begin, range.end);
  return Obj(out.take());
}

Obj filter_trim(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("trim", args, {"chars"});
  return stripped(in.budget(), *to_text(in.budget(), self), params.text(0));
}

template <Case to>
Obj filter_case(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("case", args, {});
  return Obj(change_case(*to_text(in.budget(), self), to, in.budget()));
}

/// A word begins after white space and after any of -({[<.
Obj filter_title(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("title", args, {});
  const TextPtr text = to_text(in.budget(), self);
  TextBuilder out(in.budget());
  const auto word = [&](std::size_t begin, std::size_t end) {
    Text part;
    part.append(*text, begin, end);
    out.append(change_case(part, Case::kCapitalize, in.budget()));
  };
  std::size_t begin = 0;
  for (std::size_t pos = 0; pos < text->size();) {
    const Character c = character_at(text->view(), pos);
    const bool breaks =
        is_space(c.code_point) ||
        (c.code_point > 0 && c.code_point < 0x80 &&
         std::string_view("-({[<").find(static_cast<char>(c.code_point)) != std::string_view::npos);
    if (breaks) {
      word(begin, pos);
      out.append(*text, pos, c.end);
      begin = c.end;
    }
    pos = c.end;
  }
  word(begin, text->size());
  return Obj(out.take());
}

Obj filter_replace(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("replace", args, {"old", "new", "count"}, 2);
  Budget& budget = in.budget();
  const std::int64_t n_max = params.get(2) && !params[2].is_none() ? params.integer(2, -1) : -1;
  return Obj(replace(budget, *to_text(budget, self), *to_text(budget, params[0]),
                     *to_text(budget, params[1]), n_max));
}

Obj filter_string(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("string", args, {});
  return Obj(to_text(in.budget(), self));
}

Obj filter_safe(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("safe", args, {});
  Text text = *to_text(in.budget(), self);
  in.budget().bytes(text.size(), text.size());
  text.set_markup();
  return Obj(std::move(text));
}

Obj filter_escape(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("escape", args, {});
  return Obj(escape_markup(in.budget(), *to_text(in.budget(), self)));
}

Obj filter_indent(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("indent", args, {"width", "first", "blank"});
  Budget& budget = in.budget();
  Text indention;
  if (const Obj* width = params.get(0); width && width->as_text()) {
    indention = *width->as_text();
  } else {
    indention = repeat(budget, Text(" "), params.integer(0, 4));
  }
  const TextPtr text = to_text(budget, self);
  std::vector<Range> lines = split_lines(budget, text->view());
  // One line more where the text ends with a newline, or is empty.
  const bool ends_line = text->empty() || lines.empty() || lines.back().end < text->size();
  if (ends_line) lines.push_back({text->size(), text->size()});
  TextBuilder out(budget);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    const bool blank = lines[i].begin == lines[i].end;
    const bool indented = i == 0 ? params.flag(1, false) : !blank || params.flag(2, false);
    if (indented) out.append(indention);
    out.append(*text, lines[i].begin, lines[i].end);
  }
  return Obj(out.take());
}

Obj filter_wordcount(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("wordcount", args, {});
  const TextPtr text = to_text(in.budget(), self);
  std::int64_t n = 0;
  bool in_word = false;
  for (std::size_t pos = 0; pos < text->size();) {
    const Character c = character_at(text->view(), pos);
    const bool letter =
        is_alphabetic(c.code_point) || is_numeric(c.code_point) || c.code_point == '_';
    n += letter && !in_word ? 1 : 0;
    in_word = letter;
    pos = c.end;
  }
  return Obj(n);
}

Obj filter_tojson(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonFormat format;
  format.ensure_ascii = params.flag(0, false);
  format.sort_keys = params.flag(3, false);
  if (const Obj* indent = params.get(1); indent && !indent->is_none()) {
    format.multiline = true;
    format.item_separator = Text(",");
    const Obj spaces =
        indent->as_text() ? *indent : Obj(repeat(in.budget(), Text(" "), params.integer(1, 0)));
    format.indent = spaces.as_text()->bytes();
  }
  if (const Obj* separators = params.get(2); separators && !separators->is_none()) {
    const std::vector<Obj> pair = iterate(in.budget(), *separators);
    if (pair.size() != 2 || !pair[0].as_text() || !pair[1].as_text()) {
      fail("tojson(): separators must be two strings");
    }
    format.item_separator = *pair[0].as_text();
    format.key_separator = *pair[1].as_text();
  }
  return Obj(to_json(in.budget(), self, format));
}

/// A format filter: self % args.
Obj filter_format(Interpreter& in, const Obj& self, const CallArgs& args) {
  if (!args.positional.empty() && !args.keyword.empty()) {
    fail("can't handle positional and keyword arguments at the same time");
  }
  Budget& budget = in.budget();
  Obj values;
  if (args.keyword.empty()) {
    values = make_seq(budget, args.positional, SeqKind::kTuple);
  } else {
    std::vector<std::pair<Obj, Obj>> entries;
    for (const auto& [name, value] : args.keyword) entries.emplace_back(Obj::string(name), value);
    values = make_map(budget, std::move(entries));
  }
  return Obj(format_percent(budget, *to_text(budget, self), values));
}

Obj filter_center(Interpreter& in, const Obj& self, const CallArgs& args) {
  const Params params("center", args, {"width"});
  const Obj text(to_text(in.budget(), self));
  CallArgs width;
  width.positional.emplace_back(params.integer(0, 80));
  return find_string_method("center")(in, text, width);
}

/// Digits without the white space around them and the underscores between them.
std::string plain_number(std::string_view text) {
  const Range range = strip(text, Side::kBoth, std::nullopt);
  std::string plain;
  for (const char c : text.substr(range.begin, range.end - range.begin)) {
    if (c != '_') plain += c;
  }
  if (!plain.empty() && plain[0] == '+') plain.erase(0, 1);
  return plain;
}

std::optional<double> parse_float(std::string_view text) {
  const std::string plain = plain_number(text);
  double value = 0;
  const auto read = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (read.ec != std::errc() || read.ptr != plain.data() + plain.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_int(std::string_view text, int base) {
  std::string plain = plain_number(text);
  const bool negative = !plain.empty() && plain[0] == '-';
  if (negative) plain.erase(0, 1);
  const char prefix = plain.size() > 2 && plain[0] == '0' ? static_cast<char>(plain[1] | 0x20) : 0;
  if ((prefix == 'x' && base == 16) || (prefix == 'o' && base == 8) ||
      (prefix == 'b' && base == 2)) {
    plain.erase(0, 2);
  }
  if (negative) plain.insert(0, "-");
  std::int64_t value = 0;
  const auto read = std::from_chars(plain.data(), plain.data() + plain.size(), value, base);
  if (read.ec != std::errc() || read.ptr != plain.data() + plain.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> truncate(std::optional<double> value) {
  if (!value || !(std::abs(*value) < 9.2e18)) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

Obj filter_int(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("int", args, {"default", "base"});
  self.require_defined();
  std::optional<std::int64_t> value = integer_of(self);
  if (const double* d = self.as_double()) value = truncate(*d);
  if (const Text* text = self.as_text()) {
    const std::int64_t base = params.integer(1, 10);
    if (base >= 2 && base <= 36) value = parse_int(text->view(), static_cast<int>(base));
    if (!value) value = truncate(parse_float(text->view()));
  }
  return value ? Obj(*value) : params.value(0, Obj(std::int64_t{0}));
}

Obj filter_float(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("float", args, {"default"});
  self.require_defined();
  std::optional<double> value = number_of(self);
  if (const Text* text = self.as_text()) value = parse_float(text->view());
  return value ? Obj(*value) : params.value(0, Obj(0.0));
}

Obj filter_abs(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("abs", args, {});
  self.require_defined();
  if (const auto i = integer_of(self)) {
    if (*i == INT64_MIN) fail("integer out of range; want 64 bits");
    return Obj(*i < 0 ? -*i : *i);
  }
  if (const double* d = self.as_double()) return Obj(std::abs(*d));
  fail(fmt::format("bad operand type for abs(): '{}'", type_name(self)));
}

Obj filter_round(Interpreter&, const Obj& self, const CallArgs& args) {
  const Params params("round", args, {"precision", "method"});
  const auto number = number_of(self.require_defined());
  if (!number) fail(fmt::format("type {} doesn't define __round__", type_name(self)));
  const std::int64_t precision = params.integer(0, 0);
  constexpr std::int64_t kPrecisionMax = 300;
  if (precision < -kPrecisionMax || precision > kPrecisionMax) fail("round(): precision too large");
  const std::string_view method = params.text(1) ? params.text(1)->view() : "common";
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Obj(std::ceil(*number * scale) / scale);
  if (method == "floor") return Obj(std::floor(*number * scale) / scale);
  if (method != "common") fail("method must be common, ceil or floor");
  if (const auto i = integer_of(self); i && precision >= 0) return Obj(*i);
  if (!std::isfinite(*number)) return Obj(*number);
  if (precision < 0) {
    const double rounded = std::nearbyint(*number * scale) / scale;
    return integer_of(self) ? Obj(static_cast<std::int64_t>(rounded)) : Obj(rounded);
  }
  // Through decimal digits, so that the tie is decided by the exact binary value as in Python.
  const std::string digits = fmt::format("{:.{}f}", *number, precision);
  return Obj(std::strtod(digits.c_str(), nullptr));
}

}  // namespace

Builtin find_string_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Builtin> kFilters = {
      {"trim", filter_trim},
      {"upper", filter_case<Case::kUpper>},
      {"lower", filter_case<Case::kLower>},
      {"capitalize", filter_case<Case::kCapitalize>},
      {"title", filter_title},
      {"replace", filter_replace},
      {"string", filter_string},
      {"safe", filter_safe},
      {"escape", filter_escape},
      {"e", filter_escape},
      {"forceescape", filter_escape},
      {"indent", filter_indent},
      {"wordcount", filter_wordcount},
      {"tojson", filter_tojson},
      {"format", filter_format},
      {"center", filter_center},
      {"int", filter_int},
      {"float", filter_float},
      {"abs", filter_abs},
      {"round", filter_round},
  };
  const auto at = kFilters.find(name);
  return at == kFilters.end() ? nullptr : at->second;
}

}  // namespace kvasir::text::jinja
