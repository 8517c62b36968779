#include "gguf/printable.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace kvasir::gguf {
namespace {

/// One character: its code point and how many bytes it takes; 0 bytes when they are no UTF-8.
struct Decoded {
  std::uint32_t code_point = 0;
  std::size_t n_bytes = 0;
};

// Well-formed UTF-8: Unicode 15, table 3-7 (no overlong forms, no surrogates, at most U+10FFFF).
Decoded decode_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  std::size_t n_bytes = 0;
  std::uint32_t code_point = 0;
  std::uint32_t minimum = 0;
  if (lead >= 0xc2 && lead <= 0xdf) {
    n_bytes = 2, code_point = lead & 0x1fu, minimum = 0x80;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    n_bytes = 3, code_point = lead & 0x0fu, minimum = 0x800;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    n_bytes = 4, code_point = lead & 0x07u, minimum = 0x10000;
  }
  if (n_bytes == 0 || text.size() < n_bytes) return {};
  for (std::size_t i = 1; i < n_bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code_point = code_point << 6 | (byte(i) & 0x3fu);
  }
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  if (code_point < minimum || code_point > 0x10ffff || surrogate) return {};
  return {code_point, n_bytes};
}

/// C0, DEL and C1 controls; line and paragraph separators; the bidirectional overrides.
bool is_unsafe(std::uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7f && code_point <= 0x9f) ||
         (code_point >= 0x200e && code_point <= 0x200f) ||
         (code_point >= 0x2028 && code_point <= 0x202e) ||
         (code_point >= 0x2066 && code_point <= 0x2069);
}

void append_escaped(std::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    switch (c) {
      case '\n':
        *out += "\\n";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\r':
        *out += "\\r";
        break;
      default:
        fmt::format_to(std::back_inserter(*out), "\\x{:02x}", static_cast<std::uint8_t>(c));
    }
  }
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string out;
  std::size_t position = 0;
  while (position < text.size()) {
    const Decoded decoded = decode_utf8(text.substr(position));
    const std::size_t n_bytes = decoded.n_bytes == 0 ? 1 : decoded.n_bytes;
    if (position + n_bytes > max_bytes) {
      fmt::format_to(std::back_inserter(out), "... ({} B)", text.size());
      return out;
    }
    const std::string_view character = text.substr(position, n_bytes);
    if (decoded.n_bytes == 0 || is_unsafe(decoded.code_point)) {
      append_escaped(character, &out);
    } else {
      out += character;
    }
    position += n_bytes;
  }
  return out;
}

}  // namespace kvasir::gguf
