// Turns the bytes of a GGUF file into a File, or into the reason why they are none.
//
//   magic "GGUF" | version u32 | n_tensors u64 | n_metadata u64
//   n_metadata x { key string | type u32 | value }
//   n_tensors  x { name string | n_dims u32 | extents u64 x n_dims | type u32 | offset u64 }
//   padding to the alignment; tensor data (offsets count from here)
//
// string: size u64, bytes. array: element type u32, n u64, elements. All numbers little-endian.
// Source: the format's specification, ggml docs/gguf.md, versions 2 and 3.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gguf/cursor.h"
#include "gguf/file.h"

namespace kvasir::gguf {

/// Used once. Memory: at most twice the file's bytes, and a constant for the capped counts.
class Parser {
 public:
  Parser(std::span<const std::uint8_t> bytes, std::string name, const Limits& limits);
  Result<File> run();

 private:
  Status read_header();
  Status read_metadata();
  Status read_entry(std::uint64_t index);
  Status read_value(std::string_view key, ValueType type, Value* value);
  Status read_array(std::string_view key, Array* array);
  Status read_fixed_elements(std::string_view key, std::uint64_t n, Array* array);
  Status locate_strings(std::string_view key, std::uint64_t n, Array* array);
  Status read_alignment();
  Status read_tensor_infos();
  Status read_tensor_info(std::uint64_t index);
  Status read_shape(std::string_view tensor, TensorInfo* info);
  Status read_type(std::string_view tensor, TensorInfo* info);
  Status locate_tensors();
  Status locate_tensor(std::uint64_t data_begin, TensorInfo* info);
  Status check_overlap() const;
  Status index_metadata();
  Status index_tensors();

  /// A string of at most `max_bytes`. `what` names it in messages.
  Status read_string(std::string_view what, std::uint64_t max_bytes, std::string_view* value);
  template <class T>
  Status read_number(std::string_view what, T* value);

  Error error(std::string_view what) const;
  Error cut_off(std::string_view what, std::uint64_t want_bytes) const;

  Cursor cursor_;
  const Limits limits_;
  File file_;
  std::uint64_t n_metadata_ = 0;
  std::uint64_t n_tensors_ = 0;
};

}  // namespace kvasir::gguf
