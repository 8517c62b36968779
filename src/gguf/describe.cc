#include "gguf/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/units.h"
#include "gguf/printable.h"

namespace kvasir::gguf {
namespace {

constexpr std::size_t kNameBytesMax = 256;

std::string describe_element(const Array& array, std::size_t index,
                             const DescribeOptions& options) {
  switch (array.element_type()) {
    case ValueType::kString:
      return fmt::format("\"{}\"", printable(array.string_at(index), options.string_bytes_max));
    case ValueType::kBool:
      return array.int_at(index) != 0 ? "true" : "false";
    case ValueType::kFloat32:
      return fmt::format("{}", static_cast<float>(array.double_at(index)));
    case ValueType::kFloat64:
      return fmt::format("{}", array.double_at(index));
    default:
      return fmt::format("{}", array.int_at(index));
  }
}

std::string describe_array(const Array& array, const DescribeOptions& options) {
  std::string out = "[";
  const std::size_t n_shown = std::min(array.size(), options.array_elements_max);
  for (std::size_t i = 0; i < n_shown; ++i) {
    if (i > 0) out += ", ";
    out += describe_element(array, i, options);
  }
  if (n_shown < array.size()) {
    fmt::format_to(std::back_inserter(out), "{}... ({} elements)", n_shown > 0 ? ", " : "",
                   array.size());
  }
  return out + "]";
}

struct DescribeData {
  ValueType type;
  const DescribeOptions& options;

  std::string operator()(std::uint64_t number) const { return fmt::format("{}", number); }
  std::string operator()(std::int64_t number) const { return fmt::format("{}", number); }
  std::string operator()(double number) const {
    // The shortest digits that give the number back in the precision it was stored in.
    return type == ValueType::kFloat32 ? fmt::format("{}", static_cast<float>(number))
                                       : fmt::format("{}", number);
  }
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(std::string_view text) const {
    return printable(text, options.string_bytes_max);
  }
  std::string operator()(const Array& array) const { return describe_array(array, options); }
};

std::string describe_type(const Value& value) {
  if (const auto* array = std::get_if<Array>(&value.data)) {
    return fmt::format("array of {}", value_type_name(array->element_type()));
  }
  return std::string(value_type_name(value.type));
}

TensorSummary describe_tensor(const TensorInfo& tensor) {
  return {.name = printable(tensor.name, kNameBytesMax),
          .type = type_traits(tensor.type)->name,
          .shape = {tensor.shape.begin(), tensor.shape.begin() + tensor.n_dims},
          .file_offset = tensor.file_offset,
          .n_values = tensor.n_values(),
          .n_bytes = tensor.data.size()};
}

void add_to_totals(const TensorSummary& tensor, std::vector<TypeTotal>* totals) {
  auto total = std::find_if(totals->begin(), totals->end(),
                            [&](const TypeTotal& t) { return t.type == tensor.type; });
  if (total == totals->end()) total = totals->insert(total, TypeTotal{.type = tensor.type});
  total->n_tensors += 1;
  total->n_values += tensor.n_values;
  total->n_bytes += tensor.n_bytes;
}

/// "12345678" -> "12.3 M".
std::string format_count(std::uint64_t count) {
  if (count >= 1'000'000'000) return fmt::format("{:.2f} G", static_cast<double>(count) * 1e-9);
  if (count >= 1'000'000) return fmt::format("{:.1f} M", static_cast<double>(count) * 1e-6);
  if (count >= 1'000) return fmt::format("{:.1f} k", static_cast<double>(count) * 1e-3);
  return fmt::format("{}", count);
}

}  // namespace

std::string describe_value(const Value& value, const DescribeOptions& options) {
  return std::visit(DescribeData{value.type, options}, value.data);
}

Summary describe(const File& file, const DescribeOptions& options) {
  Summary summary{.name = printable(file.name(), kNameBytesMax),
                  .version = file.version(),
                  .alignment = file.alignment(),
                  .file_bytes = file.bytes().size(),
                  .metadata = {},
                  .tensors = {},
                  .totals = {}};
  summary.metadata.reserve(file.metadata().size());
  for (const File::Entry& entry : file.metadata()) {
    summary.metadata.push_back({.key = printable(entry.key, kNameBytesMax),
                                .type = describe_type(entry.value),
                                .value = describe_value(entry.value, options)});
  }
  summary.tensors.reserve(file.tensors().size());
  for (const TensorInfo& info : file.tensors()) {
    summary.tensors.push_back(describe_tensor(info));
    const TensorSummary& tensor = summary.tensors.back();
    summary.tensor_bytes += tensor.n_bytes;
    summary.n_parameters += tensor.n_values;
    add_to_totals(tensor, &summary.totals);
  }
  std::stable_sort(summary.totals.begin(), summary.totals.end(),
                   [](const TypeTotal& a, const TypeTotal& b) { return a.n_bytes > b.n_bytes; });
  return summary;
}

std::string format_summary(const Summary& summary) {
  std::string out;
  const auto line = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
    out += '\n';
  };
  line("file        {}", summary.name);
  line("format      GGUF version {}, alignment {} B", summary.version, summary.alignment);
  line("size        {} ({} B), tensors {}", format_bytes(summary.file_bytes), summary.file_bytes,
       format_bytes(summary.tensor_bytes));
  line("parameters  {} ({})", format_count(summary.n_parameters), summary.n_parameters);

  line("\nmetadata ({} entries)", summary.metadata.size());
  std::size_t key_width = 0;
  std::size_t type_width = 0;
  for (const MetadataSummary& entry : summary.metadata) {
    key_width = std::max(key_width, std::min<std::size_t>(entry.key.size(), 48));
    type_width = std::max(type_width, entry.type.size());
  }
  for (const MetadataSummary& entry : summary.metadata) {
    line("  {:<{}}  {:<{}}  {}", entry.key, key_width, entry.type, type_width, entry.value);
  }

  line("\ntensors ({})", summary.tensors.size());
  std::size_t name_width = 0;
  for (const TensorSummary& tensor : summary.tensors) {
    name_width = std::max(name_width, std::min<std::size_t>(tensor.name.size(), 48));
  }
  for (const TensorSummary& tensor : summary.tensors) {
    line("  {:<{}}  {:<7}  {:<20}  at {:>12}  {:>10}", tensor.name, name_width, tensor.type,
         fmt::format("{}", fmt::join(tensor.shape, " x ")), tensor.file_offset,
         format_bytes(tensor.n_bytes));
  }

  line("\ntotals by type");
  for (const TypeTotal& total : summary.totals) {
    line("  {:<7}  {:>6} tensors  {:>9} values  {:>10}", total.type, total.n_tensors,
         format_count(total.n_values), format_bytes(total.n_bytes));
  }
  return out;
}

}  // namespace kvasir::gguf
