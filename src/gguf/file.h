// Reads a GGUF file as hostile input: every length and offset is checked once, here, against the
// bytes that are really there; afterwards the rest of the house may trust them.
//
// Invariants
// I1 Every span handed out lies inside the file's bytes.
// I2 A tensor's `data` has exactly the bytes its type and shape say; offsets are aligned; no two
//    tensors overlap.
// I3 Nothing is allocated for a length that has not been checked against the bytes remaining.
// Thread safety: immutable after open; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/env.h"
#include "base/result.h"
#include "gguf/types.h"

namespace kvasir::gguf {

/// Limits on what a file may ask for (ux_reliability.md 3d).
struct Limits {
  std::uint64_t n_metadata_max = 64 * 1024;
  std::uint64_t n_tensors_max = 64 * 1024;
  std::uint64_t string_bytes_max = std::uint64_t{64} << 20;
  std::uint64_t array_elements_max = std::uint64_t{64} << 20;
  std::uint64_t key_bytes_max = 65535;
  std::uint64_t alignment_max = std::uint64_t{1} << 20;
};

/// An array value, decoded on access. String elements were located at open, so access is O(1).
class Array {
 public:
  ValueType element_type() const { return element_type_; }
  std::size_t size() const { return size_; }
  /// Requires: element_type() is kString, index < size().
  std::string_view string_at(std::size_t index) const;
  /// Any integer or bool type widened; uint64 above INT64_MAX saturates. Requires: is_integer().
  std::int64_t int_at(std::size_t index) const;
  /// Any number. Requires: is_integer() or a float type.
  double double_at(std::size_t index) const;
  bool is_integer() const;
  bool is_number() const;

 private:
  friend class Parser;
  ValueType element_type_ = ValueType::kUint8;
  std::size_t size_ = 0;
  std::span<const std::uint8_t> payload_;  // fixed-size elements, unaligned
  // Of each string's length field within payload_. A string ends where the next one's field begins,
  // so a length is never read twice from a file that someone might be writing to.
  std::vector<std::uint64_t> string_offsets_;
};

struct Value {
  ValueType type = ValueType::kUint8;
  /// Integers and bools widen to (u)int64 / bool; floats to double; strings view the file.
  std::variant<std::uint64_t, std::int64_t, double, bool, std::string_view, Array> data;
};

struct TensorInfo {
  std::string name;
  TensorType type = TensorType::kF32;
  std::uint32_t n_dims = 1;
  /// Extents, innermost (contiguous) first, as the file has them; unused ones are 1.
  std::array<std::uint64_t, 4> shape{1, 1, 1, 1};
  std::uint64_t file_offset = 0;  ///< bytes from the start of the file
  std::span<const std::uint8_t> data;

  std::uint64_t n_values() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

class File {
 public:
  /// Errors: kNotFound, kIo; kInvalidModel naming the key or tensor and the byte offset.
  static Result<File> open(Env& env, const std::string& path);
  /// The same over bytes in memory, which must outlive the File. `name` is used in messages.
  static Result<File> parse(std::span<const std::uint8_t> bytes, std::string name,
                            const Limits& limits = {});

  const std::string& name() const { return name_; }
  std::uint32_t version() const { return version_; }
  std::uint64_t alignment() const { return alignment_; }
  std::span<const std::uint8_t> bytes() const { return bytes_; }

  /// Metadata in file order.
  struct Entry {
    std::string_view key;
    Value value;
  };
  std::span<const Entry> metadata() const { return metadata_; }
  const Value* find(std::string_view key) const;

  /// Typed lookups: nullopt when the key is absent; kInvalidModel when it has another type, or does
  /// not fit. Any integer type serves for an integer; any number for a double.
  Result<std::optional<std::int64_t>> get_int(std::string_view key) const;
  Result<std::optional<double>> get_double(std::string_view key) const;
  Result<std::optional<bool>> get_bool(std::string_view key) const;
  Result<std::optional<std::string_view>> get_string(std::string_view key) const;
  Result<const Array*> get_array(std::string_view key) const;  ///< null when absent

  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* tensor(std::string_view name) const;

  /// Lets the memory of a tensor that has been copied elsewhere go. No-op for `parse`d files.
  void drop(const TensorInfo& tensor) const;

 private:
  friend class Parser;
  std::string name_;
  std::unique_ptr<FileMapping> mapping_;
  std::span<const std::uint8_t> bytes_;
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = 32;
  std::vector<Entry> metadata_;
  std::vector<TensorInfo> tensors_;
  // Sorted by key and by name: a hostile file cannot make look-ups collide, as it could in a hash.
  std::vector<std::uint32_t> metadata_order_;
  std::vector<std::uint32_t> tensor_order_;
};

}  // namespace kvasir::gguf
