// Pieces of pictures and reports that are written by hand: text that is no markup, lines.
#pragma once

#include <string>
#include <string_view>

namespace kvasir::eval {

inline constexpr const char* kInkColor = "#24292f";
inline constexpr const char* kGridColor = "#d0d7de";

/// Text that is no markup, in elements and in quoted attributes; other control characters than XML
/// allows are left out, and bytes that are no UTF-8 become '?'.
std::string escaped(std::string_view text);

/// Text that stands at a point: "start", "middle" or "end" of it. `text` is any text.
std::string text_at(double x, double y, const char* anchor, const char* color,
                    std::string_view text);

/// `style`: attributes.
std::string line_from(double x1, double y1, double x2, double y2, std::string_view style);

/// The opening tag, and a white ground.
std::string svg_begin(double width, double height);

}  // namespace kvasir::eval
