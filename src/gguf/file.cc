#include "gguf/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/check.h"
#include "gguf/cursor.h"
#include "gguf/parser.h"
#include "gguf/printable.h"

namespace kvasir::gguf {
namespace {

constexpr std::uint64_t kInt64Max =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

Error wrong_type(const File& file, std::string_view key, const Value& value, const char* want) {
  return {ErrorCode::kInvalidModel,
          fmt::format("gguf: {}: key '{}' has the wrong type; got {}, want {}", file.name(),
                      printable(key, 96), value_type_name(value.type), want)};
}

}  // namespace

std::string_view Array::string_at(std::size_t index) const {
  KVASIR_CHECK(element_type_ == ValueType::kString && index < size_);
  const std::uint64_t begin = string_offsets_[index] + sizeof(std::uint64_t);
  const std::uint64_t end = index + 1 < size_ ? string_offsets_[index + 1] : payload_.size();
  return {reinterpret_cast<const char*>(payload_.data()) + begin, end - begin};
}

std::int64_t Array::int_at(std::size_t index) const {
  KVASIR_CHECK(is_integer() && index < size_);
  const std::uint8_t* element = payload_.data() + index * value_type_bytes(element_type_);
  switch (element_type_) {
    case ValueType::kInt8:
      return load<std::int8_t>(element);
    case ValueType::kUint16:
      return load<std::uint16_t>(element);
    case ValueType::kInt16:
      return load<std::int16_t>(element);
    case ValueType::kUint32:
      return load<std::uint32_t>(element);
    case ValueType::kInt32:
      return load<std::int32_t>(element);
    case ValueType::kInt64:
      return load<std::int64_t>(element);
    case ValueType::kUint64:
      return static_cast<std::int64_t>(std::min(load<std::uint64_t>(element), kInt64Max));
    default:
      return *element;  // uint8, bool
  }
}

double Array::double_at(std::size_t index) const {
  KVASIR_CHECK(is_number() && index < size_);
  const std::uint8_t* element = payload_.data() + index * value_type_bytes(element_type_);
  switch (element_type_) {
    case ValueType::kFloat32:
      return static_cast<double>(load<float>(element));
    case ValueType::kFloat64:
      return load<double>(element);
    case ValueType::kUint64:
      return static_cast<double>(load<std::uint64_t>(element));
    default:
      return static_cast<double>(int_at(index));
  }
}

bool Array::is_integer() const {
  return is_number() && element_type_ != ValueType::kFloat32 &&
         element_type_ != ValueType::kFloat64;
}

bool Array::is_number() const { return value_type_bytes(element_type_) != 0; }

Result<File> File::open(Env& env, const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(auto mapping, env.map_file(path));
  KVASIR_ASSIGN_OR_RETURN(File file, parse(mapping->bytes(), path));
  file.mapping_ = std::move(mapping);
  return file;
}

Result<File> File::parse(std::span<const std::uint8_t> bytes, std::string name,
                         const Limits& limits) {
  try {
    return Parser(bytes, std::move(name), limits).run();
  } catch (const std::bad_alloc&) {
    return Error{
        ErrorCode::kExhausted,
        fmt::format("gguf: out of memory for the metadata of a file of {} B", bytes.size())};
  }
}

const Value* File::find(std::string_view key) const {
  const auto at = std::lower_bound(
      metadata_order_.begin(), metadata_order_.end(), key,
      [&](std::uint32_t index, std::string_view k) { return metadata_[index].key < k; });
  if (at == metadata_order_.end() || metadata_[*at].key != key) return nullptr;
  return &metadata_[*at].value;
}

const TensorInfo* File::tensor(std::string_view name) const {
  const auto at = std::lower_bound(
      tensor_order_.begin(), tensor_order_.end(), name,
      [&](std::uint32_t index, std::string_view n) { return tensors_[index].name < n; });
  if (at == tensor_order_.end() || tensors_[*at].name != name) return nullptr;
  return &tensors_[*at];
}

Result<std::optional<std::int64_t>> File::get_int(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::optional<std::int64_t>();
  if (const auto* number = std::get_if<std::int64_t>(&value->data)) return std::optional(*number);
  const auto* number = std::get_if<std::uint64_t>(&value->data);
  if (number == nullptr) return wrong_type(*this, key, *value, "an integer");
  if (*number > kInt64Max) {
    return Error{ErrorCode::kInvalidModel,
                 fmt::format("gguf: {}: key '{}' is too large; got {}, want at most {}", name_,
                             printable(key, 96), *number, kInt64Max)};
  }
  return std::optional(static_cast<std::int64_t>(*number));
}

Result<std::optional<double>> File::get_double(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::optional<double>();
  if (const auto* number = std::get_if<double>(&value->data)) return std::optional(*number);
  if (const auto* number = std::get_if<std::int64_t>(&value->data)) {
    return std::optional(static_cast<double>(*number));
  }
  if (const auto* number = std::get_if<std::uint64_t>(&value->data)) {
    return std::optional(static_cast<double>(*number));
  }
  return wrong_type(*this, key, *value, "a number");
}

Result<std::optional<bool>> File::get_bool(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::optional<bool>();
  if (const auto* flag = std::get_if<bool>(&value->data)) return std::optional(*flag);
  return wrong_type(*this, key, *value, "a bool");
}

Result<std::optional<std::string_view>> File::get_string(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (const auto* text = std::get_if<std::string_view>(&value->data)) return std::optional(*text);
  return wrong_type(*this, key, *value, "a string");
}

Result<const Array*> File::get_array(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return static_cast<const Array*>(nullptr);
  if (const auto* array = std::get_if<Array>(&value->data)) return array;
  return wrong_type(*this, key, *value, "an array");
}

void File::drop(const TensorInfo& tensor) const {
  if (mapping_ != nullptr) mapping_->drop(tensor.file_offset, tensor.data.size());
}

}  // namespace kvasir::gguf
