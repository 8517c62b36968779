#include "eval/svg.h"

#include <fmt/core.h>

namespace kvasir::eval {

namespace {

/// Bytes of the UTF-8 character that `text` begins with; 0: it begins with none.
std::size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const std::size_t n = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < n) return 0;
  for (std::size_t i = 1; i < n; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  return n;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const std::size_t n = character_length(text);
    const char c = text[0];
    if (n != 1) {
      safe += n == 0 ? "?" : text.substr(0, n);
    } else if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (c == '"') {
      safe += "&quot;";
    } else if (c == '\'') {
      safe += "&#39;";
    } else if (c >= 0x20) {
      safe += c;
    }
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return safe;
}

std::string text_at(double x, double y, const char* anchor, const char* color,
                    std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n",
                     x, y, anchor, color, escaped(text));
}

std::string line_from(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, style);
}

std::string svg_begin(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      width, height);
}

}  // namespace kvasir::eval
