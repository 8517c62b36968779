#include "cache/prefix/page_key.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace kvasir::cache {

namespace {

/// Of this format and this use: no other SHA-256 of the house begins with it.
constexpr std::string_view kKeyTag = "kvasir page key 1";
constexpr std::string_view kHexDigits = "0123456789abcdef";

/// A field of a scope as it enters the key.
struct Field {
  std::string_view name;
  std::string bytes;
  bool is_late = false;  ///< left out where empty: keys are then those of before there was it
};

/// The `n_bytes` low bytes of `value`, lowest first.
void append_number(std::string& out, std::uint64_t value, int n_bytes) {
  for (int i = 0; i < n_bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

/// The length stands first, so that no two lists of fields give the same bytes.
void append_field(std::string& out, std::string_view bytes) {
  append_number(out, bytes.size(), 8);
  out.append(bytes);
}

std::string number(std::int64_t value) {
  std::string out;
  append_number(out, static_cast<std::uint64_t>(value), 8);
  return out;
}

std::string string_of(const Fingerprint& fingerprint) {
  return {fingerprint.begin(), fingerprint.end()};
}

/// The one list of fields: of the key, and of the reason why two keys differ.
std::array<Field, 13> fields_of(const KeyScope& scope) {
  return {
      {{"salt", scope.salt},
       {"model", string_of(scope.model)},
       {"tokenizer", string_of(scope.tokenizer)},
       {"rope", scope.rope},
       {"adapter", scope.adapter},
       {"codec_k", number(static_cast<std::int64_t>(scope.codec_k))},
       {"codec_v", number(static_cast<std::int64_t>(scope.codec_v))},
       {"codec_layers", scope.codec_layers, true},
       {"page_tokens", number(scope.page_tokens)},
       {"head_order", number(static_cast<std::int64_t>(scope.head_order))},
       {"geometry_version", number(scope.geometry_version)},
       {"activations", scope.activations},
       {"arithmetic_version",
        scope.arithmetic_version == 1 ? std::string() : number(scope.arithmetic_version), true}}};
}

PageKey sha256(std::string_view message) {
  PageKey key;
  unsigned int n_bytes = 0;
  // Fails only where libcrypto has no memory or no SHA-256, that is never in a process that lives.
  KVASIR_CHECK(EVP_Digest(message.data(), message.size(), key.bytes.data(), &n_bytes, EVP_sha256(),
                          nullptr) == 1);
  KVASIR_CHECK(n_bytes == key.bytes.size());
  return key;
}

}  // namespace

Fingerprint fingerprint_of(std::span<const std::string_view> parts) {
  Fingerprint fingerprint;
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  // As sha256 above: no step fails in a process that lives.
  KVASIR_CHECK(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
  for (const std::string_view part : parts) {
    std::string length;
    append_number(length, part.size(), 8);
    KVASIR_CHECK(EVP_DigestUpdate(context, length.data(), length.size()) == 1);
    KVASIR_CHECK(EVP_DigestUpdate(context, part.data(), part.size()) == 1);
  }
  KVASIR_CHECK(EVP_DigestFinal_ex(context, fingerprint.data(), nullptr) == 1);
  EVP_MD_CTX_free(context);
  return fingerprint;
}

std::string PageKey::to_hex() const {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    text.push_back(kHexDigits[byte >> 4]);
    text.push_back(kHexDigits[byte & 0xF]);
  }
  return text;
}

std::optional<PageKey> PageKey::from_hex(std::string_view text) {
  PageKey key;
  if (text.size() != 2 * key.bytes.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = kHexDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    std::uint8_t& byte = key.bytes[i / 2];
    byte = static_cast<std::uint8_t>(byte << 4 | digit);
  }
  return key;
}

PageKey root_key(const KeyScope& scope) {
  std::string message;
  append_field(message, kKeyTag);
  for (const Field& field : fields_of(scope)) {
    if (field.is_late && field.bytes.empty()) continue;
    append_field(message, field.bytes);
  }
  return sha256(message);
}

PageKey next_key(const PageKey& previous, std::span<const TokenId> tokens) {
  std::string message(previous.bytes.begin(), previous.bytes.end());
  message.reserve(message.size() + 8 + 4 * tokens.size());
  append_number(message, tokens.size(), 8);
  for (const TokenId token : tokens) append_number(message, static_cast<std::uint32_t>(token), 4);
  return sha256(message);
}

int fields_in_common(const KeyScope& a, const KeyScope& b) {
  const auto fields_a = fields_of(a), fields_b = fields_of(b);
  std::size_t n = 0;
  while (n < fields_a.size() && fields_a[n].bytes == fields_b[n].bytes) ++n;
  return static_cast<int>(n);
}

std::string first_difference(const KeyScope& a, const KeyScope& b) {
  const auto n = static_cast<std::size_t>(fields_in_common(a, b));
  const auto fields = fields_of(a);
  return n < fields.size() ? std::string(fields[n].name) : std::string();
}

}  // namespace kvasir::cache
