#include "engine/key_scope.h"

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::engine {
namespace {

template <class T>
void append_bytes(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_string(std::string& out, std::string_view text) {
  append_bytes(out, std::uint64_t{text.size()});
  out.append(text);
}

void append_array(std::string& out, const gguf::Array& array) {
  append_bytes(out, std::uint64_t{array.size()});
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (array.is_integer()) {
      append_bytes(out, array.int_at(i));
    } else if (array.is_number()) {
      append_bytes(out, array.double_at(i));
    } else {
      append_string(out, array.string_at(i));
    }
  }
}

/// Key, type and value, so that no two entries give the same bytes.
void append_entry(std::string& out, const gguf::File::Entry& entry) {
  append_string(out, entry.key);
  append_bytes(out, entry.value.type);
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string_view>) {
          append_string(out, value);
        } else if constexpr (std::is_same_v<T, gguf::Array>) {
          append_array(out, value);
        } else {
          append_bytes(out, value);
        }
      },
      entry.value.data);
}

cache::Fingerprint fingerprint_tensor(const gguf::TensorInfo& tensor) {
  std::string head;
  append_string(head, tensor.name);
  append_bytes(head, tensor.type);
  for (const std::uint64_t extent : tensor.shape) append_bytes(head, extent);
  const std::string_view parts[] = {
      head, {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()}};
  return cache::fingerprint_of(parts);
}

}  // namespace

void fingerprint_model(const gguf::File& file, ThreadPool& pool, cache::KeyScope& scope) {
  std::string tokenizer, rope, rest;
  for (const gguf::File::Entry& entry : file.metadata()) {
    const std::string_view key = entry.key;
    if (key.rfind("general.", 0) == 0 && key != "general.architecture") continue;
    if (key == "tokenizer.chat_template") continue;
    const bool is_tokenizer = key.rfind("tokenizer.", 0) == 0;
    const bool is_rope = key.find(".rope.") != std::string_view::npos;
    append_entry(is_tokenizer ? tokenizer : (is_rope ? rope : rest), entry);
  }
  const std::string_view tokenizer_parts[] = {tokenizer};
  scope.tokenizer = cache::fingerprint_of(tokenizer_parts);
  scope.rope = rope;

  const std::span<const gguf::TensorInfo> tensors = file.tensors();
  std::vector<cache::Fingerprint> each(tensors.size());
  pool.for_tasks(static_cast<int>(tensors.size()), [&](int i, int) {
    const auto idx = static_cast<std::size_t>(i);
    each[idx] = fingerprint_tensor(tensors[idx]);
  });
  for (const cache::Fingerprint& fingerprint : each) append_bytes(rest, fingerprint);
  const std::string_view model_parts[] = {rest};
  scope.model = cache::fingerprint_of(model_parts);
}

}  // namespace kvasir::engine
