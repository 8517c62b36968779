// Builds GGUF files in memory for tests: correct ones with the named functions, wrong ones with the
// raw_* functions and the overrides.
//
//   GgufWriter writer;
//   writer.add_string("general.architecture", "llama");
//   writer.add_uint32("llama.block_count", 2);
//   writer.add_tensor("output_norm.weight", gguf::TensorType::kF32, {64}, bytes);
//   const std::vector<std::uint8_t> file = writer.build();
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gguf/types.h"

namespace kvasir::testing {

class GgufWriter {
 public:
  using Bytes = std::vector<std::uint8_t>;

  void add_uint8(std::string_view key, std::uint8_t v) { add(key, gguf::ValueType::kUint8, v); }
  void add_int8(std::string_view key, std::int8_t v) { add(key, gguf::ValueType::kInt8, v); }
  void add_uint16(std::string_view key, std::uint16_t v) { add(key, gguf::ValueType::kUint16, v); }
  void add_int16(std::string_view key, std::int16_t v) { add(key, gguf::ValueType::kInt16, v); }
  void add_uint32(std::string_view key, std::uint32_t v) { add(key, gguf::ValueType::kUint32, v); }
  void add_int32(std::string_view key, std::int32_t v) { add(key, gguf::ValueType::kInt32, v); }
  void add_uint64(std::string_view key, std::uint64_t v) { add(key, gguf::ValueType::kUint64, v); }
  void add_int64(std::string_view key, std::int64_t v) { add(key, gguf::ValueType::kInt64, v); }
  void add_float32(std::string_view key, float v) { add(key, gguf::ValueType::kFloat32, v); }
  void add_float64(std::string_view key, double v) { add(key, gguf::ValueType::kFloat64, v); }
  void add_bool(std::string_view key, bool v) {
    add(key, gguf::ValueType::kBool, static_cast<std::uint8_t>(v ? 1 : 0));
  }
  void add_string(std::string_view key, std::string_view text) {
    raw_metadata(key, number(gguf::ValueType::kString), string_bytes(text));
  }

  /// An array of numbers of T's type.
  template <class T>
  void add_array(std::string_view key, const std::vector<T>& values) {
    Bytes payload = array_header(value_type_of<T>(), values.size());
    for (const T value : values) append(value, &payload);
    raw_metadata(key, number(gguf::ValueType::kArray), payload);
  }
  void add_bool_array(std::string_view key, const std::vector<bool>& values) {
    Bytes payload = array_header(gguf::ValueType::kBool, values.size());
    for (const bool value : values) payload.push_back(value ? 1 : 0);
    raw_metadata(key, number(gguf::ValueType::kArray), payload);
  }
  void add_string_array(std::string_view key, const std::vector<std::string>& values) {
    Bytes payload = array_header(gguf::ValueType::kString, values.size());
    for (const std::string& value : values) append_bytes(string_bytes(value), &payload);
    raw_metadata(key, number(gguf::ValueType::kArray), payload);
  }

  /// Writes `general.alignment` and pads with it.
  void set_alignment(std::uint32_t alignment) {
    add_uint32("general.alignment", alignment);
    alignment_ = alignment;
  }

  /// Drops every entry of that key, so that another can take its place.
  void remove(std::string_view key) {
    std::erase_if(metadata_, [&](const Entry& entry) { return entry.key == key; });
  }
  void remove_tensor(std::string_view name) {
    std::erase_if(tensors_, [&](const RawTensor& tensor) { return tensor.name == name; });
  }

  /// `shape` innermost first. `data` is written as it is, right size or not.
  void add_tensor(std::string_view name, gguf::TensorType type, std::vector<std::uint64_t> shape,
                  Bytes data) {
    RawTensor tensor;
    tensor.name = std::string(name);
    tensor.type = static_cast<std::uint32_t>(type);
    tensor.n_dims = static_cast<std::uint32_t>(shape.size());
    tensor.shape = std::move(shape);
    tensor.data = std::move(data);
    raw_tensor(std::move(tensor));
  }
  void add_f32_tensor(std::string_view name, std::vector<std::uint64_t> shape,
                      const std::vector<float>& values) {
    Bytes data;
    for (const float value : values) append(value, &data);
    add_tensor(name, gguf::TensorType::kF32, std::move(shape), std::move(data));
  }

  // What a correct writer would not do.

  struct RawTensor {
    std::string name;
    std::uint32_t n_dims = 1;          ///< may differ from shape.size()
    std::vector<std::uint64_t> shape;  ///< all of it is written
    std::uint32_t type = 0;
    std::optional<std::uint64_t> offset;  ///< instead of where `data` lies
    Bytes data;
  };
  void raw_tensor(RawTensor tensor) { tensors_.push_back(std::move(tensor)); }
  void raw_metadata(std::string_view key, std::uint32_t type, Bytes payload) {
    metadata_.push_back({std::string(key), type, std::move(payload)});
  }
  std::optional<std::string> magic;
  std::optional<std::uint32_t> version;
  std::optional<std::uint64_t> n_tensors;
  std::optional<std::uint64_t> n_metadata;

  /// Header, metadata and tensor entries, without the padding after them.
  Bytes build_metadata() const {
    Bytes out;
    const std::string magic_text = magic.value_or("GGUF");
    out.insert(out.end(), magic_text.begin(), magic_text.end());
    append(version.value_or(3u), &out);
    append(n_tensors.value_or(tensors_.size()), &out);
    append(n_metadata.value_or(metadata_.size()), &out);
    for (const Entry& entry : metadata_) {
      append_bytes(string_bytes(entry.key), &out);
      append(entry.type, &out);
      append_bytes(entry.payload, &out);
    }
    std::uint64_t offset = 0;
    for (const RawTensor& tensor : tensors_) {
      append_bytes(string_bytes(tensor.name), &out);
      append(tensor.n_dims, &out);
      for (const std::uint64_t extent : tensor.shape) append(extent, &out);
      append(tensor.type, &out);
      append(tensor.offset.value_or(offset), &out);
      offset = padded(offset + tensor.data.size());
    }
    return out;
  }

  Bytes build() const {
    Bytes out = build_metadata();
    if (tensors_.empty()) return out;
    out.resize(padded(out.size()));
    const std::size_t data_begin = out.size();
    for (const RawTensor& tensor : tensors_) {
      out.resize(data_begin + padded(out.size() - data_begin));
      append_bytes(tensor.data, &out);
    }
    return out;
  }

  template <class T>
  static void append(T value, Bytes* out) {
    static_assert(std::is_arithmetic_v<T>);
    const std::size_t at = out->size();
    out->resize(at + sizeof(T));
    std::memcpy(out->data() + at, &value, sizeof(T));
  }
  static void append_bytes(const Bytes& bytes, Bytes* out) {
    out->insert(out->end(), bytes.begin(), bytes.end());
  }
  static Bytes string_bytes(std::string_view text) {
    Bytes out;
    append(static_cast<std::uint64_t>(text.size()), &out);
    out.insert(out.end(), text.begin(), text.end());
    return out;
  }
  static Bytes array_header(gguf::ValueType element_type, std::uint64_t size) {
    Bytes out;
    append(number(element_type), &out);
    append(size, &out);
    return out;
  }
  static std::uint32_t number(gguf::ValueType type) { return static_cast<std::uint32_t>(type); }

 private:
  struct Entry {
    std::string key;
    std::uint32_t type;
    Bytes payload;
  };

  template <class T>
  void add(std::string_view key, gguf::ValueType type, T value) {
    Bytes payload;
    append(value, &payload);
    raw_metadata(key, number(type), std::move(payload));
  }

  template <class T>
  static constexpr gguf::ValueType value_type_of() {
    if constexpr (std::is_same_v<T, float>) return gguf::ValueType::kFloat32;
    if constexpr (std::is_same_v<T, double>) return gguf::ValueType::kFloat64;
    if constexpr (std::is_same_v<T, std::uint8_t>) return gguf::ValueType::kUint8;
    if constexpr (std::is_same_v<T, std::int8_t>) return gguf::ValueType::kInt8;
    if constexpr (std::is_same_v<T, std::uint16_t>) return gguf::ValueType::kUint16;
    if constexpr (std::is_same_v<T, std::int16_t>) return gguf::ValueType::kInt16;
    if constexpr (std::is_same_v<T, std::uint32_t>) return gguf::ValueType::kUint32;
    if constexpr (std::is_same_v<T, std::int32_t>) return gguf::ValueType::kInt32;
    if constexpr (std::is_same_v<T, std::uint64_t>) return gguf::ValueType::kUint64;
    if constexpr (std::is_same_v<T, std::int64_t>) return gguf::ValueType::kInt64;
  }

  std::uint64_t padded(std::uint64_t size) const {
    return (size + alignment_ - 1) / alignment_ * alignment_;
  }

  std::uint64_t alignment_ = 32;
  std::vector<Entry> metadata_;
  std::vector<RawTensor> tensors_;
};

}  // namespace kvasir::testing
