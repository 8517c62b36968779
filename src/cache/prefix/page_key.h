// Names of sealed pages by content: a chain of SHA-256 from everything that makes K and V of equal
// tokens differ, over the tokens of every page so far (architecture.md D3).
//
//   key_0 = SHA-256(tag, fields of the scope)     each one: length as u64, then its bytes
//   key_i = SHA-256(key_{i-1}, n as u64, n token ids as i32)          all numbers little-endian
//
// Equal keys stand for equal bytes on every machine; a key is stored with its page in every tier,
// so a change of this format is a change of kKeyTag (page_key.cc). Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/types.h"
#include "cache/page/geometry.h"

namespace kvasir::cache {

struct PageKey {
  std::array<std::uint8_t, 32> bytes{};

  /// 64 lower-case digits, first byte first.
  std::string to_hex() const;
  /// Absent unless `text` is exactly what to_hex gives: one key has one name.
  static std::optional<PageKey> from_hex(std::string_view text);

  bool operator==(const PageKey&) const = default;
};

/// SHA-256 of something, taken by whoever knows it.
using Fingerprint = std::array<std::uint8_t, 32>;

/// Over all parts, the length of each before it. Cost: some 2 GB/s a thread with SHA instructions.
Fingerprint fingerprint_of(std::span<const std::string_view> parts);

/// All that makes K and V of equal tokens differ, or must not be shared although it would be equal.
struct KeyScope {
  std::string salt;         ///< namespace: nothing is shared across
  Fingerprint model{};      ///< of the weights
  Fingerprint tokenizer{};  ///< of vocabulary and merges
  std::string rope;         ///< parameters of the rotary embedding, any fixed serialisation
  std::string adapter;      ///< name and version; empty: none
  CodecId codec_k = CodecId::kF16;
  CodecId codec_v = CodecId::kF16;
  std::string codec_layers = {};  ///< what KvFormat adds to these; empty: not in the key
  int page_tokens = 64;
  HeadOrder head_order = HeadOrder::kSplit;
  int geometry_version = 1;  ///< of the layout of a frame
  std::string activations;   ///< how matmuls round: "int8", "f32"
  /// Of the order of sums (docs/numerics.md): a build with another one computes other last bits.
  int arithmetic_version = 1;  ///< 1: not in the key
};

/// The key before the first page: names the namespace's tree.
PageKey root_key(const KeyScope& scope);

/// The key of the page with `tokens` after the page (or root) `previous`.
/// Cost: one SHA-256 of 40 + 4 * tokens.size() bytes.
PageKey next_key(const PageKey& previous, std::span<const TokenId> tokens);

/// The name of the first field, in the order of the struct, that differs: why a page of `a` is not
/// found under `b`. Empty when all are equal.
std::string first_difference(const KeyScope& a, const KeyScope& b);
/// Fields before the first one that differs: the more, the nearer the scopes.
int fields_in_common(const KeyScope& a, const KeyScope& b);

}  // namespace kvasir::cache

template <>
struct std::hash<kvasir::cache::PageKey> {
  /// The key is a hash already: its first bytes do.
  std::size_t operator()(const kvasir::cache::PageKey& key) const noexcept {
    std::size_t value = 0;
    std::memcpy(&value, key.bytes.data(), sizeof value);
    return value;
  }
};
