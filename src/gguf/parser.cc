#include "gguf/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "gguf/printable.h"

namespace kvasir::gguf {
namespace {

// The fewest bytes an item can take in the file: a count above remaining / minimum is a lie.
constexpr std::uint64_t kEntryBytesMin = 8 + 1 + 4 + 1;           // key size, key, type, value
constexpr std::uint64_t kTensorBytesMin = 8 + 1 + 4 + 8 + 4 + 8;  // one dimension
constexpr std::uint64_t kStringBytesMin = 8;
constexpr std::uint32_t kDimsMax = 4;
constexpr std::size_t kShownBytes = 96;  // of a name, in messages

std::string quoted(std::string_view text) {
  return fmt::format("'{}'", printable(text, kShownBytes));
}

std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Parser::Parser(std::span<const std::uint8_t> bytes, std::string name, const Limits& limits)
    : cursor_(bytes), limits_(limits) {
  file_.name_ = std::move(name);
  file_.bytes_ = bytes;
}

Result<File> Parser::run() {
  KVASIR_RETURN_IF_ERROR(read_header());
  KVASIR_RETURN_IF_ERROR(read_metadata());
  KVASIR_RETURN_IF_ERROR(index_metadata());
  KVASIR_RETURN_IF_ERROR(read_alignment());
  KVASIR_RETURN_IF_ERROR(read_tensor_infos());
  KVASIR_RETURN_IF_ERROR(index_tensors());
  KVASIR_RETURN_IF_ERROR(locate_tensors());
  KVASIR_RETURN_IF_ERROR(check_overlap());
  return std::move(file_);
}

Error Parser::error(std::string_view what) const {
  return {ErrorCode::kInvalidModel, fmt::format("gguf: {}: {}", file_.name_, what)};
}

Error Parser::cut_off(std::string_view what, std::uint64_t want_bytes) const {
  return error(fmt::format("file ends inside {} at byte {}; got {} B, want {} B", what,
                           cursor_.offset(), cursor_.remaining(), want_bytes));
}

template <class T>
Status Parser::read_number(std::string_view what, T* value) {
  if (!cursor_.read(value)) return cut_off(what, sizeof(T));
  return {};
}

Status Parser::read_string(std::string_view what, std::uint64_t max_bytes,
                           std::string_view* value) {
  std::uint64_t size = 0;
  KVASIR_RETURN_IF_ERROR(read_number(what, &size));
  if (size > max_bytes) {
    return error(fmt::format("{} is too long, byte {}; got {} B, want at most {} B", what,
                             cursor_.offset() - sizeof(size), size, max_bytes));
  }
  std::span<const std::uint8_t> bytes;
  if (!cursor_.take(size, &bytes)) return cut_off(what, size);
  *value = as_text(bytes);
  return {};
}

Status Parser::read_header() {
  std::span<const std::uint8_t> magic;
  if (!cursor_.take(4, &magic)) return cut_off("the magic", 4);
  if (as_text(magic) != "GGUF") {
    return error(fmt::format("not a GGUF file; got magic {}, want 'GGUF'", quoted(as_text(magic))));
  }
  std::uint32_t version = 0;
  KVASIR_RETURN_IF_ERROR(read_number("the version", &version));
  const std::uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= 3) {
    return error(fmt::format("big-endian file (version {}); want little-endian", swapped));
  }
  if (version != 2 && version != 3) {
    return error(fmt::format("unsupported GGUF version; got {}, want 2 or 3{}", version,
                             version == 1 ? " (version 1 had 32-bit lengths; convert again)" : ""));
  }
  file_.version_ = version;
  KVASIR_RETURN_IF_ERROR(read_number("the tensor count", &n_tensors_));
  KVASIR_RETURN_IF_ERROR(read_number("the metadata count", &n_metadata_));
  const std::uint64_t n_tensors_max =
      std::min(limits_.n_tensors_max, cursor_.remaining() / kTensorBytesMin);
  if (n_tensors_ > n_tensors_max) {
    return error(fmt::format("too many tensors for this file, byte 8; got {}, want at most {}",
                             n_tensors_, n_tensors_max));
  }
  const std::uint64_t n_metadata_max =
      std::min(limits_.n_metadata_max, cursor_.remaining() / kEntryBytesMin);
  if (n_metadata_ > n_metadata_max) {
    return error(
        fmt::format("too many metadata entries for this file, byte 16; got {}, "
                    "want at most {}",
                    n_metadata_, n_metadata_max));
  }
  return {};
}

Status Parser::read_metadata() {
  file_.metadata_.reserve(n_metadata_);
  for (std::uint64_t i = 0; i < n_metadata_; ++i) KVASIR_RETURN_IF_ERROR(read_entry(i));
  return {};
}

Status Parser::read_entry(std::uint64_t index) {
  File::Entry entry;
  const std::uint64_t begin = cursor_.offset();
  KVASIR_RETURN_IF_ERROR(
      read_string(fmt::format("metadata key {}", index), limits_.key_bytes_max, &entry.key));
  if (entry.key.empty())
    return error(fmt::format("metadata key {} is empty, byte {}", index, begin));
  std::uint32_t type = 0;
  KVASIR_RETURN_IF_ERROR(read_number(fmt::format("the type of key {}", quoted(entry.key)), &type));
  KVASIR_RETURN_IF_ERROR(read_value(entry.key, static_cast<ValueType>(type), &entry.value));
  file_.metadata_.push_back(std::move(entry));
  return {};
}

Status Parser::read_value(std::string_view key, ValueType type, Value* value) {
  value->type = type;
  const std::string what = fmt::format("the value of key {}", quoted(key));
  const auto read_as = [&]<class Raw, class Wide>(Raw raw, Wide) -> Status {
    KVASIR_RETURN_IF_ERROR(read_number(what, &raw));
    value->data = static_cast<Wide>(raw);
    return {};
  };
  using U = std::uint64_t;
  using I = std::int64_t;
  switch (type) {
    case ValueType::kUint8:
      return read_as(std::uint8_t{}, U{});
    case ValueType::kUint16:
      return read_as(std::uint16_t{}, U{});
    case ValueType::kUint32:
      return read_as(std::uint32_t{}, U{});
    case ValueType::kUint64:
      return read_as(std::uint64_t{}, U{});
    case ValueType::kInt8:
      return read_as(std::int8_t{}, I{});
    case ValueType::kInt16:
      return read_as(std::int16_t{}, I{});
    case ValueType::kInt32:
      return read_as(std::int32_t{}, I{});
    case ValueType::kInt64:
      return read_as(std::int64_t{}, I{});
    case ValueType::kFloat32:
      return read_as(float{}, double{});
    case ValueType::kFloat64:
      return read_as(double{}, double{});
    case ValueType::kBool: {
      std::uint8_t raw = 0;
      KVASIR_RETURN_IF_ERROR(read_number(what, &raw));
      if (raw > 1) {
        return error(fmt::format("{} is no bool, byte {}; got {}, want 0 or 1", what,
                                 cursor_.offset() - 1, raw));
      }
      value->data = raw == 1;
      return {};
    }
    case ValueType::kString: {
      std::string_view text;
      KVASIR_RETURN_IF_ERROR(read_string(what, limits_.string_bytes_max, &text));
      value->data = text;
      return {};
    }
    case ValueType::kArray: {
      Array array;
      KVASIR_RETURN_IF_ERROR(read_array(key, &array));
      value->data = std::move(array);
      return {};
    }
  }
  return error(fmt::format("key {} has an unknown value type, byte {}; got {}, want 0..12",
                           quoted(key), cursor_.offset() - 4, static_cast<std::uint32_t>(type)));
}

Status Parser::read_array(std::string_view key, Array* array) {
  const std::string what = fmt::format("the array of key {}", quoted(key));
  std::uint32_t type = 0;
  std::uint64_t n = 0;
  KVASIR_RETURN_IF_ERROR(read_number(what, &type));
  KVASIR_RETURN_IF_ERROR(read_number(what, &n));
  array->element_type_ = static_cast<ValueType>(type);
  if (array->element_type_ == ValueType::kArray) {
    return error(fmt::format("{} holds arrays, byte {}; nested arrays are not supported", what,
                             cursor_.offset() - 12));
  }
  if (n > limits_.array_elements_max) {
    return error(fmt::format("{} is too long, byte {}; got {} elements, want at most {}", what,
                             cursor_.offset() - 8, n, limits_.array_elements_max));
  }
  if (array->element_type_ == ValueType::kString) return locate_strings(key, n, array);
  if (value_type_bytes(array->element_type_) == 0) {
    return error(fmt::format("{} has an unknown element type, byte {}; got {}, want 0..12", what,
                             cursor_.offset() - 12, type));
  }
  return read_fixed_elements(key, n, array);
}

Status Parser::read_fixed_elements(std::string_view key, std::uint64_t n, Array* array) {
  std::uint64_t n_bytes = 0;
  if (!checked_mul(n, value_type_bytes(array->element_type_), &n_bytes) ||
      !cursor_.take(n_bytes, &array->payload_)) {
    return cut_off(fmt::format("the array of key {} ({} elements of {})", quoted(key), n,
                               value_type_name(array->element_type_)),
                   n_bytes);
  }
  array->size_ = n;
  if (array->element_type_ != ValueType::kBool) return {};
  const auto bad = std::find_if(array->payload_.begin(), array->payload_.end(),
                                [](std::uint8_t byte) { return byte > 1; });
  if (bad == array->payload_.end()) return {};
  return error(
      fmt::format("the array of key {} has an element that is no bool; got {}, want 0 or 1",
                  quoted(key), *bad));
}

Status Parser::locate_strings(std::string_view key, std::uint64_t n, Array* array) {
  if (n > cursor_.remaining() / kStringBytesMin) {
    return error(
        fmt::format("the array of key {} is too long for this file, byte {}; got {} "
                    "strings, want at most {}",
                    quoted(key), cursor_.offset() - 8, n, cursor_.remaining() / kStringBytesMin));
  }
  const std::string what = fmt::format("a string of the array of key {}", quoted(key));
  const std::uint64_t begin = cursor_.offset();
  array->string_offsets_.reserve(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    array->string_offsets_.push_back(cursor_.offset() - begin);
    std::string_view text;
    KVASIR_RETURN_IF_ERROR(read_string(what, limits_.string_bytes_max, &text));
  }
  array->size_ = n;
  array->payload_ = file_.bytes_.subspan(begin, cursor_.offset() - begin);
  return {};
}

Status Parser::read_alignment() {
  KVASIR_ASSIGN_OR_RETURN(const auto alignment, file_.get_int("general.alignment"));
  if (!alignment.has_value()) return {};
  if (*alignment <= 0 || !std::has_single_bit(static_cast<std::uint64_t>(*alignment)) ||
      static_cast<std::uint64_t>(*alignment) > limits_.alignment_max) {
    return error(fmt::format("key 'general.alignment'; got {}, want a power of two up to {}",
                             *alignment, limits_.alignment_max));
  }
  file_.alignment_ = static_cast<std::uint64_t>(*alignment);
  return {};
}

Status Parser::read_tensor_infos() {
  // The metadata may have eaten what the header's check still saw.
  if (n_tensors_ > cursor_.remaining() / kTensorBytesMin) {
    return cut_off(fmt::format("the list of {} tensors", n_tensors_), n_tensors_ * kTensorBytesMin);
  }
  file_.tensors_.reserve(n_tensors_);
  for (std::uint64_t i = 0; i < n_tensors_; ++i) KVASIR_RETURN_IF_ERROR(read_tensor_info(i));
  return {};
}

Status Parser::read_tensor_info(std::uint64_t index) {
  TensorInfo info;
  const std::uint64_t begin = cursor_.offset();
  std::string_view name;
  KVASIR_RETURN_IF_ERROR(
      read_string(fmt::format("the name of tensor {}", index), limits_.key_bytes_max, &name));
  if (name.empty()) {
    return error(fmt::format("the name of tensor {} is empty, byte {}", index, begin));
  }
  info.name = std::string(name);
  const std::string tensor = fmt::format("tensor {}", quoted(name));
  KVASIR_RETURN_IF_ERROR(read_shape(tensor, &info));
  KVASIR_RETURN_IF_ERROR(read_type(tensor, &info));
  // From the start of the data for now: where that is, the last tensor's entry decides.
  KVASIR_RETURN_IF_ERROR(read_number(tensor, &info.file_offset));
  file_.tensors_.push_back(std::move(info));
  return {};
}

Status Parser::read_shape(std::string_view tensor, TensorInfo* info) {
  KVASIR_RETURN_IF_ERROR(read_number(tensor, &info->n_dims));
  if (info->n_dims < 1 || info->n_dims > kDimsMax) {
    return error(fmt::format("{}: number of dimensions, byte {}; got {}, want 1..{}", tensor,
                             cursor_.offset() - 4, info->n_dims, kDimsMax));
  }
  std::uint64_t n_values = 1;
  for (std::uint32_t dim = 0; dim < info->n_dims; ++dim) {
    std::uint64_t extent = 0;
    KVASIR_RETURN_IF_ERROR(read_number(tensor, &extent));
    if (extent == 0) {
      return error(
          fmt::format("{}: dimension {} is 0, byte {}", tensor, dim, cursor_.offset() - 8));
    }
    // Signed counts are used later on, so half the range is out of bounds too.
    if (!checked_mul(n_values, extent, &n_values) ||
        n_values > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return error(
          fmt::format("{}: dimension {} is too large, byte {}; got {}, and more than "
                      "2^63 values in all",
                      tensor, dim, cursor_.offset() - 8, extent));
    }
    info->shape[dim] = extent;
  }
  return {};
}

Status Parser::read_type(std::string_view tensor, TensorInfo* info) {
  std::uint32_t number = 0;
  KVASIR_RETURN_IF_ERROR(read_number(tensor, &number));
  info->type = static_cast<TensorType>(number);
  const TypeTraits* traits = type_traits(info->type);
  if (traits == nullptr) {
    const std::string_view retired = retired_type_name(number);
    return error(retired.empty() ? fmt::format("{}: unknown tensor type, byte {}; got {}", tensor,
                                               cursor_.offset() - 4, number)
                                 : fmt::format("{}: tensor type {} ({}) is retired, byte {}",
                                               tensor, number, retired, cursor_.offset() - 4));
  }
  if (info->shape[0] % traits->block_values != 0) {
    return error(
        fmt::format("{}: row does not divide into {} blocks; got {} values, want a "
                    "multiple of {}",
                    tensor, traits->name, info->shape[0], traits->block_values));
  }
  return {};
}

Status Parser::locate_tensors() {
  // No overflow: the offset is inside the file and the alignment is capped.
  const std::uint64_t alignment = file_.alignment_;
  const std::uint64_t data_begin = (cursor_.offset() + alignment - 1) / alignment * alignment;
  for (TensorInfo& info : file_.tensors_) KVASIR_RETURN_IF_ERROR(locate_tensor(data_begin, &info));
  return {};
}

Status Parser::locate_tensor(std::uint64_t data_begin, TensorInfo* info) {
  const TypeTraits& traits = *type_traits(info->type);
  const std::uint64_t offset = info->file_offset;
  const std::uint64_t n_blocks = info->n_values() / traits.block_values;
  std::uint64_t n_bytes = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  if (offset % file_.alignment_ != 0) {
    return error(fmt::format("tensor {}: offset is not aligned; got {}, want a multiple of {}",
                             quoted(info->name), offset, file_.alignment_));
  }
  const bool fits = checked_mul(n_blocks, traits.block_bytes, &n_bytes) &&
                    checked_add(data_begin, offset, &begin) && checked_add(begin, n_bytes, &end) &&
                    end <= file_.bytes_.size();
  if (!fits) {
    return error(fmt::format(
        "tensor {} ends past the file; data begins at byte {}, offset {} B, "
        "{} blocks of {} B, file {} B",
        quoted(info->name), data_begin, offset, n_blocks, traits.block_bytes, file_.bytes_.size()));
  }
  info->file_offset = begin;
  info->data = file_.bytes_.subspan(begin, n_bytes);
  return {};
}

Status Parser::check_overlap() const {
  std::vector<const TensorInfo*> by_offset;
  by_offset.reserve(file_.tensors_.size());
  for (const TensorInfo& info : file_.tensors_) by_offset.push_back(&info);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return a->file_offset < b->file_offset;
  });
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const TensorInfo& before = *by_offset[i - 1];
    const TensorInfo& after = *by_offset[i];
    if (before.file_offset + before.data.size() > after.file_offset) {
      return error(fmt::format("tensors {} and {} overlap at byte {}", quoted(before.name),
                               quoted(after.name), after.file_offset));
    }
  }
  return {};
}

Status Parser::index_metadata() {
  const auto& entries = file_.metadata_;
  auto& order = file_.metadata_order_;
  order.resize(entries.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return entries[a].key < entries[b].key; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (entries[order[i - 1]].key == entries[order[i]].key) {
      return error(fmt::format("key {} occurs twice", quoted(entries[order[i]].key)));
    }
  }
  return {};
}

Status Parser::index_tensors() {
  const auto& tensors = file_.tensors_;
  auto& order = file_.tensor_order_;
  order.resize(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (tensors[order[i - 1]].name == tensors[order[i]].name) {
      return error(fmt::format("tensor {} occurs twice", quoted(tensors[order[i]].name)));
    }
  }
  return {};
}

}  // namespace kvasir::gguf
