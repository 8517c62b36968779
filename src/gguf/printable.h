// Text from a file made safe to print: what a model file says must not drive a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvasir::gguf {

/// `text` as valid UTF-8 without control or direction-changing characters: those, and bytes that
/// are no UTF-8, become \n, \t, \r or \xNN. At most `max_bytes` bytes of the input are shown; "..."
/// and its size in bytes follow a cut.
std::string printable(std::string_view text, std::size_t max_bytes);

}  // namespace kvasir::gguf
