// What is in a GGUF file, as plain data and as a page of text, for people to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"

namespace kvasir::gguf {

/// How much of long values is shown.
struct DescribeOptions {
  std::size_t array_elements_max = 6;
  std::size_t string_bytes_max = 120;
};

/// All strings are valid UTF-8 and safe to print: what is neither is escaped.
struct MetadataSummary {
  std::string key;
  std::string type;  ///< "uint32", "string", "array of string"
  std::string
      value;  ///< `["<s>", "</s>", ... (49152 elements)]`; strings alone stand without quotes
};

struct TensorSummary {
  std::string name;
  std::string_view type;             ///< "Q4_K"
  std::vector<std::uint64_t> shape;  ///< innermost first, n_dims of them
  std::uint64_t file_offset = 0;     ///< bytes from the start of the file
  std::uint64_t n_values = 0;
  std::uint64_t n_bytes = 0;
};

struct TypeTotal {
  std::string_view type;
  std::uint64_t n_tensors = 0;
  std::uint64_t n_values = 0;
  std::uint64_t n_bytes = 0;
};

struct Summary {
  std::string name;
  std::uint32_t version = 0;
  std::uint64_t alignment = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t n_parameters = 0;         ///< values in all tensors
  std::vector<MetadataSummary> metadata;  ///< in file order
  std::vector<TensorSummary> tensors;     ///< in file order
  std::vector<TypeTotal> totals;          ///< most bytes first
};

Summary describe(const File& file, const DescribeOptions& options = {});

/// One value as it stands in MetadataSummary.
std::string describe_value(const Value& value, const DescribeOptions& options = {});

/// `summary` as lines of text, aligned in columns; ends with a line feed.
std::string format_summary(const Summary& summary);

}  // namespace kvasir::gguf
