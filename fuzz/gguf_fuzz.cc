// Fuzz target: any bytes through the GGUF reader, and all that it then hands out.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <variant>

#include "gguf/describe.h"
#include "gguf/file.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

/// Sums what the file hands out, so that a sanitizer sees any view that is wrong.
std::uint64_t read_all(const kvasir::gguf::Array& array) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (array.is_number()) {
      sum += array.double_at(i) > 0 ? 1 : 0;
    } else {
      for (const char c : array.string_at(i)) sum += static_cast<std::uint8_t>(c);
    }
  }
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kvasir::gguf::Array;
  using kvasir::gguf::File;
  const auto file = File::parse({data, size}, "fuzz");
  if (!file) {
    require(!file.error().message.empty());
    return 0;
  }
  std::uint64_t sum = 0;
  for (const File::Entry& entry : file->metadata()) {
    require(file->find(entry.key) == &entry.value);
    if (const auto* array = std::get_if<Array>(&entry.value.data)) sum += read_all(*array);
  }
  for (const kvasir::gguf::TensorInfo& tensor : file->tensors()) {
    require(file->tensor(tensor.name) == &tensor);
    require(tensor.file_offset + tensor.data.size() <= size);
    for (const std::uint8_t byte : tensor.data) sum += byte;
  }
  sum += format_summary(describe(*file)).size();
  require(sum > 0);
  return 0;
}
