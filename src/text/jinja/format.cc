// Python's two ways of formatting: "..." % values and "...".format(values).
#include <cmath>

#include <fmt/format.h>

#include "text/jinja/builtins.h"

namespace kvasir::text::jinja {

namespace {

/// One conversion's width, flags and type; the same for both ways.
struct Spec {
  Text fill = Text(" ");
  char align = '\0';  ///< '<', '>', '^', '=' (after the sign)
  char sign = '-';    ///< '+', ' ' or '-'
  bool alternate = false;
  bool thousands = false;
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = '\0';
};

constexpr std::int64_t kPrecisionMax = 500;

std::int64_t read_number(std::string_view text, std::size_t& pos) {
  std::int64_t value = 0;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    value = std::min<std::int64_t>(value * 10 + (text[pos++] - '0'), INT32_MAX);
  }
  return value;
}

void append_padded(Budget& budget, const Spec& spec, const Text& body, char align,
                   TextBuilder& out) {
  const auto n = static_cast<std::int64_t>(count_characters(body.view()));
  const std::int64_t n_pad = std::max<std::int64_t>(0, spec.width - n);
  const char first = body.empty() ? '\0' : body.view()[0];
  const std::size_t n_sign = align == '=' && (first == '-' || first == '+' || first == ' ') ? 1 : 0;
  const std::int64_t n_before = align == '<' ? 0 : align == '^' ? n_pad / 2 : n_pad;
  out.append(body, 0, n_sign);
  out.append(repeat(budget, spec.fill, n_before));
  out.append(body, n_sign, body.size());
  out.append(repeat(budget, spec.fill, n_pad - n_before));
}

std::string group_thousands(const std::string& digits) {
  const std::size_t start = digits.find_first_of("0123456789");
  if (start == std::string::npos) return digits;
  std::size_t end = start;
  while (end < digits.size() && std::isdigit(static_cast<unsigned char>(digits[end]))) ++end;
  std::string out = digits.substr(0, start);
  for (std::size_t i = start; i < end; ++i) {
    if (i > start && (end - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out + digits.substr(end);
}

/// The digits of a number with its sign, without padding.
std::string format_number(const Spec& spec, const Obj& value) {
  const double number = number_of(value).value_or(0);
  const bool negative = std::signbit(number);
  std::string digits;
  const auto integer = integer_of(value);
  std::string_view type(&spec.type, spec.type == '\0' ? 0 : 1);
  if (type.empty() || type == "d" || type == "i" || type == "u" || type == "n") {
    digits = integer ? std::to_string(*integer) : float_repr(number);
    if (!digits.empty() && digits[0] == '-') digits.erase(0, 1);
  } else if (std::string_view("xXobc").find(spec.type) != std::string_view::npos) {
    if (!integer) fail(fmt::format("unknown format code '{}' for float", spec.type));
    const std::uint64_t magnitude = *integer < 0 ? 0 - static_cast<std::uint64_t>(*integer)
                                                 : static_cast<std::uint64_t>(*integer);
    if (spec.alternate && spec.type != 'c') digits = std::string("0") + spec.type;
    if (spec.type == 'x') digits += fmt::format("{:x}", magnitude);
    if (spec.type == 'X') digits += fmt::format("{:X}", magnitude);
    if (spec.type == 'b') digits += fmt::format("{:b}", magnitude);
    if (spec.type == 'o') digits += fmt::format("{:o}", magnitude);
    if (spec.type == 'c') {
      append_utf8(magnitude > 0x10FFFF ? -1 : static_cast<std::int32_t>(magnitude), digits);
    }
  } else {
    const auto precision =
        static_cast<int>(std::min(spec.precision < 0 ? 6 : spec.precision, kPrecisionMax));
    const double magnitude = std::abs(number) * (spec.type == '%' ? 100 : 1);
    if (spec.type == 'e') digits = fmt::format("{:.{}e}", magnitude, precision);
    if (spec.type == 'E') digits = fmt::format("{:.{}E}", magnitude, precision);
    if (spec.type == 'g') digits = fmt::format("{:.{}g}", magnitude, precision);
    if (spec.type == 'G') digits = fmt::format("{:.{}G}", magnitude, precision);
    if (spec.type == 'f' || spec.type == 'F' || spec.type == '%') {
      digits = fmt::format("{:.{}f}", magnitude, precision);
    }
    if (spec.type == '%') digits += '%';
  }
  if (spec.thousands) digits = group_thousands(digits);
  if (negative) return "-" + digits;
  return spec.sign == '-' ? digits : spec.sign + digits;
}

Text shortened(const Text& text, std::int64_t n_max) {
  if (n_max < 0) return text;
  Text out;
  out.append(text, 0, offset_of_character(text.view(), n_max));
  return out;
}

Text shown(Budget& budget, const Obj& value, char conversion) {
  if (conversion != 'r' && conversion != 'a') return *to_text(budget, value);
  TextBuilder out(budget);
  append_repr(budget, value, out);
  return out.take();
}

/// The arguments of %: a tuple's items one after another, a dict's by name, or one value.
class PercentValues {
 public:
  PercentValues(Budget& budget, const Obj& arguments) : budget_(budget), arguments_(arguments) {
    const Seq* seq = arguments.as_seq();
    tuple_ = seq && seq->is_tuple() ? seq : nullptr;
  }
  const Obj& next() {
    const std::size_t n = tuple_ ? tuple_->items.size() : 1;
    if (n_used_ >= n) fail("not enough arguments for format string");
    return tuple_ ? tuple_->items[n_used_++] : (++n_used_, arguments_);
  }
  const Obj& named(std::string_view name) {
    by_name_ = true;
    if (!arguments_.as_map()) fail("format requires a mapping");
    const Obj* value = arguments_.as_map()->find(name);
    if (!value) fail(fmt::format("key '{}' is missing", name));
    return *value;
  }
  void check_all_used() const {
    const bool lenient = by_name_ || arguments_.as_map() || (!tuple_ && arguments_.as_seq());
    if (!lenient && n_used_ < (tuple_ ? tuple_->items.size() : 1)) {
      fail("not all arguments converted during string formatting");
    }
  }

 private:
  Budget& budget_;
  const Obj& arguments_;
  const Seq* tuple_ = nullptr;
  std::size_t n_used_ = 0;
  bool by_name_ = false;
};

/// Reads flags, width and precision; `pos` is past the name and ends at the type.
Spec read_percent_spec(std::string_view format, std::size_t& pos, PercentValues& values) {
  Spec spec;
  spec.align = '>';
  for (; pos < format.size(); ++pos) {
    if (format[pos] == '-') {
      spec.align = '<';
      spec.fill = Text(" ");
    } else if (format[pos] == '0') {
      if (spec.align != '<') {
        spec.fill = Text("0");
        spec.align = '=';
      }
    } else if (format[pos] == '+' || (format[pos] == ' ' && spec.sign != '+')) {
      spec.sign = format[pos];
    } else if (format[pos] == '#') {
      spec.alternate = true;
    } else if (format[pos] != ' ') {
      break;
    }
  }
  const auto number = [&] {
    if (pos < format.size() && format[pos] == '*') {
      ++pos;
      const auto given = integer_of(values.next());
      if (!given) fail("* wants int");
      return *given;
    }
    return read_number(format, pos);
  };
  spec.width = number();
  if (spec.width < 0) {
    spec.align = '<';
    spec.width = spec.width == INT64_MIN ? INT64_MAX : -spec.width;
  }
  if (pos < format.size() && format[pos] == '.') {
    ++pos;
    spec.precision = std::max<std::int64_t>(0, number());
  }
  return spec;
}

void append_percent(Budget& budget, const Spec& spec, const Obj& value, TextBuilder& out) {
  value.require_defined();
  if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
    const Text text = shortened(shown(budget, value, spec.type), spec.precision);
    Spec spaces = spec;
    spaces.fill = Text(" ");
    return append_padded(budget, spaces, text, spec.align == '<' ? '<' : '>', out);
  }
  if (std::string_view("diuxXofFeEgGc").find(spec.type) == std::string_view::npos) {
    fail(fmt::format("unsupported format character '{}'", spec.type));
  }
  if (spec.type == 'c' && value.as_text()) {
    return append_padded(budget, spec, *value.as_text(), spec.align, out);
  }
  if (!number_of(value)) {
    fail(fmt::format("%{} format: a number is required, not {}", spec.type, type_name(value)));
  }
  const bool whole = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
  Obj number = value;
  if (const double* d = value.as_double(); whole && d) {
    if (!(std::abs(*d) < 9.2e18)) fail("cannot convert float to 64-bit integer");
    number = Obj(static_cast<std::int64_t>(*d));
  }
  append_padded(budget, spec, Text(format_number(spec, number)), spec.align, out);
}

}  // namespace

Text format_percent(Budget& budget, const Text& format, const Obj& arguments) {
  TextBuilder out(budget);
  PercentValues values(budget, arguments);
  const std::string_view view = format.view();
  std::size_t pos = 0;
  while (pos < view.size()) {
    budget.step();
    const std::size_t percent = std::min(view.find('%', pos), view.size());
    out.append(format, pos, percent);
    if (percent == view.size()) break;
    pos = percent + 1;
    const Obj* named = nullptr;
    if (pos < view.size() && view[pos] == '(') {
      const std::size_t close = view.find(')', pos);
      if (close == std::string_view::npos) fail("incomplete format key");
      named = &values.named(view.substr(pos + 1, close - pos - 1));
      pos = close + 1;
    }
    Spec spec = read_percent_spec(view, pos, values);
    if (pos >= view.size()) fail("incomplete format");
    spec.type = view[pos++];
    if (spec.type == '%') {
      out.append(format, pos - 1, pos);
    } else {
      append_percent(budget, spec, named ? *named : values.next(), out);
    }
  }
  values.check_all_used();
  return out.take();
}

namespace {

/// "[[fill]align][sign][#][0][width][,][.precision][type]"
Spec read_brace_spec(const Text& format, std::size_t pos, std::size_t end) {
  Spec spec;
  const std::string_view view = format.view().substr(0, end);
  const auto is_align = [&](std::size_t at) {
    return at < end && std::string_view("<>^=").find(view[at]) != std::string_view::npos;
  };
  if (pos < end) {
    const Character fill = character_at(view, pos);
    if (is_align(fill.end)) {
      spec.fill = Text();
      spec.fill.append(format, fill.begin, fill.end);
      spec.align = view[fill.end];
      pos = fill.end + 1;
    } else if (is_align(pos)) {
      spec.align = view[pos++];
    }
  }
  if (pos < end && (view[pos] == '+' || view[pos] == '-' || view[pos] == ' ')) {
    spec.sign = view[pos++];
  }
  if (pos < end && view[pos] == '#') {
    spec.alternate = true;
    ++pos;
  }
  if (pos < end && view[pos] == '0' && spec.align == '\0') {
    spec.fill = Text("0");
    spec.align = '=';
    ++pos;
  }
  spec.width = read_number(view, pos);
  if (pos < end && view[pos] == ',') {
    spec.thousands = true;
    ++pos;
  }
  if (pos < end && view[pos] == '.') spec.precision = read_number(view, ++pos);
  if (pos < end) spec.type = view[pos++];
  if (pos < end) fail("invalid format specifier");
  return spec;
}

void append_braces(Budget& budget, const Spec& spec, const Obj& value, char conversion,
                   TextBuilder& out) {
  const bool numeric =
      conversion == '\0' && number_of(value) && !value.as_bool() && spec.type != 's';
  if (numeric) {
    Spec adjusted = spec;
    const bool is_float = value.as_double() != nullptr;
    if (is_float && spec.type == '\0' && spec.precision >= 0) adjusted.type = 'g';
    if (std::string_view("dxXobcneEfFgG%").find(adjusted.type) == std::string_view::npos &&
        adjusted.type != '\0') {
      fail(fmt::format("unknown format code '{}'", adjusted.type));
    }
    if (is_float && adjusted.type == 'd')
      fail("unknown format code 'd' for object of type 'float'");
    const Text body(format_number(adjusted, value));
    return append_padded(budget, spec, body, spec.align ? spec.align : '>', out);
  }
  if (spec.type != '\0' && spec.type != 's') {
    fail(fmt::format("unknown format code '{}' for object of type '{}'", spec.type,
                     type_name(value)));
  }
  const Text text = shortened(shown(budget, value, conversion), spec.precision);
  append_padded(budget, spec, text, spec.align && spec.align != '=' ? spec.align : '<', out);
}

/// The argument a replacement field names: by place, by name, or the next one.
const Obj& field_value(std::string_view name, const CallArgs& args, std::size_t& n_automatic) {
  const bool is_number =
      !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
  if (name.empty() || is_number) {
    std::size_t pos = 0;
    const std::size_t at =
        name.empty() ? n_automatic++ : static_cast<std::size_t>(read_number(name, pos));
    if (at >= args.positional.size()) {
      fail("Replacement index out of range for positional args tuple");
    }
    return args.positional[at];
  }
  for (const auto& [key, value] : args.keyword) {
    if (key == name) return value;
  }
  fail(fmt::format("format(): no argument named '{}'", name.substr(0, 80)));
}

}  // namespace

Text format_braces(Budget& budget, const Text& format, const CallArgs& args) {
  TextBuilder out(budget);
  const std::string_view view = format.view();
  std::size_t n_automatic = 0;
  for (std::size_t pos = 0; pos < view.size();) {
    budget.step();
    const std::size_t brace = std::min(view.find_first_of("{}", pos), view.size());
    out.append(format, pos, brace);
    if (brace == view.size()) break;
    if (brace + 1 < view.size() && view[brace + 1] == view[brace]) {
      out.append(format, brace, brace + 1);
      pos = brace + 2;
      continue;
    }
    const std::size_t close = view.find('}', brace);
    if (view[brace] == '}' || close == std::string_view::npos) {
      fail(fmt::format("Single '{}' encountered in format string", view[brace]));
    }
    const std::string_view field = view.substr(brace + 1, close - brace - 1);
    if (field.find('{') != std::string_view::npos) fail("nested fields are not supported");
    const std::size_t colon = std::min(field.find(':'), field.size());
    std::string_view name = field.substr(0, colon);
    char conversion = '\0';
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      conversion = name.back();
      name.remove_suffix(2);
    }
    const std::size_t spec_begin = std::min(brace + 1 + colon + 1, close);
    const Spec spec = read_brace_spec(format, spec_begin, close);
    append_braces(budget, spec, field_value(name, args, n_automatic), conversion, out);
    pos = close + 1;
  }
  return out.take();
}

}  // namespace kvasir::text::jinja
