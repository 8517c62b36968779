#include "engine/key_scope.h"

#include <fmt/core.h>

#include <charconv>
#include <cstring>
#include <map>
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
  append_bytes(out, array.element_type());
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

constexpr std::string_view kHexDigits = "0123456789abcdef";

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text.push_back(kHexDigits[static_cast<std::uint8_t>(byte) >> 4]);
    text.push_back(kHexDigits[static_cast<std::uint8_t>(byte) & 0xF]);
  }
  return text;
}

std::string hex_of(const cache::Fingerprint& fingerprint) {
  return hex_of({reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size()});
}

std::optional<std::string> bytes_of(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    const std::size_t high = kHexDigits.find(hex[i]), low = kHexDigits.find(hex[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes.push_back(static_cast<char>(high << 4 | low));
  }
  if (hex.size() % 2 != 0) return std::nullopt;
  return bytes;
}

/// Reads the lines of a manifest; remembers whether any was missing or wrong.
class Lines {
 public:
  explicit Lines(std::string_view text) {
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      const std::size_t space = line.find(' ');
      if (space == std::string_view::npos) continue;
      values_.emplace(line.substr(0, space), line.substr(space + 1));
    }
  }
  std::string bytes(std::string_view name) {
    const auto found = values_.find(name);
    if (found == values_.end()) return fail();
    const std::optional<std::string> bytes = bytes_of(found->second);
    return bytes ? *bytes : fail();
  }
  void fingerprint(std::string_view name, cache::Fingerprint& to) {
    const std::string value = bytes(name);
    if (value.size() != to.size()) {
      is_whole_ = false;
      return;
    }
    std::memcpy(to.data(), value.data(), to.size());
  }
  int number(std::string_view name) {
    const auto found = values_.find(name);
    int value = 0;
    if (found == values_.end()) return fail(), value;
    const std::string_view text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail();
    return value;
  }
  bool has(std::string_view name) const { return values_.count(name) != 0; }
  bool is_whole() const { return is_whole_; }

 private:
  std::string fail() {
    is_whole_ = false;
    return {};
  }
  std::map<std::string_view, std::string_view> values_;
  bool is_whole_ = true;
};

/// The next two are left out where they say nothing, as in manifests of before there were such
/// lines.
std::string layers_line(const cache::KeyScope& scope) {
  if (scope.codec_layers.empty()) return {};
  return fmt::format("codec_layers {}\n", hex_of(scope.codec_layers));
}
std::string arithmetic_line(const cache::KeyScope& scope) {
  if (scope.arithmetic_version == 1) return {};
  return fmt::format("arithmetic_version {}\n", scope.arithmetic_version);
}

}  // namespace

std::string manifest_of(const cache::KeyScope& scope, std::string_view model_name) {
  return fmt::format(
      "name {}\nsalt {}\nmodel {}\ntokenizer {}\nrope {}\nadapter {}\ncodec_k {}\ncodec_v {}\n"
      "{}page_tokens {}\nhead_order {}\ngeometry_version {}\nactivations {}\n{}",
      hex_of(model_name), hex_of(scope.salt), hex_of(scope.model), hex_of(scope.tokenizer),
      hex_of(scope.rope), hex_of(scope.adapter), static_cast<int>(scope.codec_k),
      static_cast<int>(scope.codec_v), layers_line(scope), scope.page_tokens,
      static_cast<int>(scope.head_order), scope.geometry_version, hex_of(scope.activations),
      arithmetic_line(scope));
}

std::optional<Manifest> parse_manifest(std::string_view text) {
  Lines lines(text);
  Manifest manifest;
  cache::KeyScope& scope = manifest.scope;
  manifest.model_name = lines.bytes("name");
  scope.salt = lines.bytes("salt");
  lines.fingerprint("model", scope.model);
  lines.fingerprint("tokenizer", scope.tokenizer);
  scope.rope = lines.bytes("rope");
  scope.adapter = lines.bytes("adapter");
  scope.codec_k = static_cast<cache::CodecId>(lines.number("codec_k"));
  scope.codec_v = static_cast<cache::CodecId>(lines.number("codec_v"));
  if (lines.has("codec_layers")) scope.codec_layers = lines.bytes("codec_layers");
  scope.page_tokens = lines.number("page_tokens");
  scope.head_order = static_cast<cache::HeadOrder>(lines.number("head_order"));
  scope.geometry_version = lines.number("geometry_version");
  scope.activations = lines.bytes("activations");
  if (lines.has("arithmetic_version")) {
    scope.arithmetic_version = lines.number("arithmetic_version");
  }
  if (!lines.is_whole()) return std::nullopt;
  return manifest;
}

cache::Fingerprint fingerprint_tokenizer(const gguf::File& file) {
  std::string tokenizer;
  for (const gguf::File::Entry& entry : file.metadata()) {
    const bool is_part = entry.key.starts_with("tokenizer.");
    if (is_part && entry.key != "tokenizer.chat_template") append_entry(tokenizer, entry);
  }
  const std::string_view parts[] = {tokenizer};
  return cache::fingerprint_of(parts);
}

void fingerprint_model(const gguf::File& file, ThreadPool& pool, cache::KeyScope& scope) {
  std::string rope, rest;
  for (const gguf::File::Entry& entry : file.metadata()) {
    const std::string_view key = entry.key;
    if (key.rfind("general.", 0) == 0 && key != "general.architecture") continue;
    if (key.starts_with("tokenizer.")) continue;
    const bool is_rope = key.find(".rope.") != std::string_view::npos;
    append_entry(is_rope ? rope : rest, entry);
  }
  scope.tokenizer = fingerprint_tokenizer(file);
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
