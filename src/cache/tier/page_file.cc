#include "cache/tier/page_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "cache/tier/checksum.h"

namespace kvasir::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they lie");
static_assert(sizeof(TokenId) == 4 && sizeof(Position) == 4);

constexpr std::array<std::uint8_t, 8> kMagic = {'K', 'V', 'S', 'R', 'P', 'A', 'G', 'E'};

// Offsets of the fields; docs/formats/page-file.md is the same table.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kHeaderBytesAt = 12;
constexpr std::size_t kPayloadBytesAt = 16;
constexpr std::size_t kPayloadChecksumAt = 24;
constexpr std::size_t kKeyAt = 32;
constexpr std::size_t kParentAt = 64;
constexpr std::size_t kRootAt = 96;
constexpr std::size_t kCreatedAt = 128;
constexpr std::size_t kFlagsAt = 136;
constexpr std::size_t kFirstTokenAt = 140;
constexpr std::size_t kTokenCountAt = 144;
constexpr std::size_t kDescriptionBytesAt = 148;
constexpr std::size_t kTokensAt = 152;
constexpr std::size_t kChecksumBytes = 8;  // the header's own, its last bytes
constexpr std::size_t kHeaderMultiple = 64;

constexpr std::size_t header_bytes_for(std::size_t n_tokens, std::size_t description_bytes) {
  return round_up(kTokensAt + 4 * n_tokens + description_bytes + kChecksumBytes, kHeaderMultiple);
}
static_assert(header_bytes_for(kPageFileTokensMax, kPageFileDescriptionBytesMax) ==
              kPageHeaderBytesMax);

template <class T>
void store(std::span<std::uint8_t> bytes, std::size_t offset, const T& value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

template <class T>
T load(std::span<const std::uint8_t> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

Error corrupt(std::string message) {
  return Error{ErrorCode::kCorruption, "page file: " + std::move(message)};
}

Error invalid(std::string message) {
  return Error{ErrorCode::kInvalidArgument, "page file: " + std::move(message)};
}

Status check_limits(const PageRecord& record) {
  if (record.tokens.empty() || record.tokens.size() > kPageFileTokensMax) {
    return invalid(fmt::format("tokens of a page; got {}, want 1..{}", record.tokens.size(),
                               kPageFileTokensMax));
  }
  if (record.first_token < 0) {
    return invalid(
        fmt::format("position of the first token; got {}, want 0 or more", record.first_token));
  }
  if (record.description.size() > kPageFileDescriptionBytesMax) {
    return invalid(fmt::format("description; got {} B, want at most {} B",
                               record.description.size(), kPageFileDescriptionBytesMax));
  }
  if (record.payload.empty() || record.payload.size() > kPageFilePayloadBytesMax) {
    return invalid(fmt::format("payload; got {} B, want 1..{} B", record.payload.size(),
                               kPageFilePayloadBytesMax));
  }
  return {};
}

/// Requires: the sizes fit in `bytes`.
PageHeader load_fields(std::span<const std::uint8_t> bytes, std::size_t header_bytes,
                       std::size_t n_tokens, std::size_t description_bytes) {
  PageHeader header;
  header.header_bytes = static_cast<std::uint32_t>(header_bytes);
  header.payload_bytes = load<std::uint64_t>(bytes, kPayloadBytesAt);
  header.payload_checksum = load<std::uint64_t>(bytes, kPayloadChecksumAt);
  header.key.bytes = load<decltype(PageKey::bytes)>(bytes, kKeyAt);
  header.parent.bytes = load<decltype(PageKey::bytes)>(bytes, kParentAt);
  header.root.bytes = load<decltype(PageKey::bytes)>(bytes, kRootAt);
  header.created_seconds = load<std::int64_t>(bytes, kCreatedAt);
  header.first_token = load<Position>(bytes, kFirstTokenAt);
  header.tokens.resize(n_tokens);
  std::memcpy(header.tokens.data(), bytes.data() + kTokensAt, 4 * n_tokens);
  const auto description = bytes.subspan(kTokensAt + 4 * n_tokens, description_bytes);
  header.description.assign(description.begin(), description.end());
  return header;
}

}  // namespace

Result<std::uint64_t> page_file_bytes(const PageRecord& record) {
  KVASIR_RETURN_IF_ERROR(check_limits(record));
  return header_bytes_for(record.tokens.size(), record.description.size()) +
         std::uint64_t{record.payload.size()};
}

Result<std::vector<std::uint8_t>> encode_page_header(const PageRecord& record,
                                                     std::int64_t created_seconds) {
  KVASIR_RETURN_IF_ERROR(check_limits(record));
  const std::size_t size = header_bytes_for(record.tokens.size(), record.description.size());
  std::vector<std::uint8_t> bytes(size, 0);
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  store(bytes, kVersionAt, kPageFileVersion);
  store(bytes, kHeaderBytesAt, static_cast<std::uint32_t>(size));
  store(bytes, kPayloadBytesAt, std::uint64_t{record.payload.size()});
  // The key goes first: a payload under another page's name does not check.
  store(bytes, kPayloadChecksumAt, xxh3_64(record.key.bytes, record.payload));
  store(bytes, kKeyAt, record.key.bytes);
  store(bytes, kParentAt, record.parent.bytes);
  store(bytes, kRootAt, record.root.bytes);
  store(bytes, kCreatedAt, created_seconds);
  store(bytes, kFlagsAt, std::uint32_t{0});
  store(bytes, kFirstTokenAt, record.first_token);
  store(bytes, kTokenCountAt, static_cast<std::uint32_t>(record.tokens.size()));
  store(bytes, kDescriptionBytesAt, static_cast<std::uint32_t>(record.description.size()));
  std::memcpy(bytes.data() + kTokensAt, record.tokens.data(), record.tokens.size_bytes());
  std::copy(record.description.begin(), record.description.end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(kTokensAt + record.tokens.size_bytes()));
  const std::size_t checked = size - kChecksumBytes;
  store(bytes, checked, xxh3_64(std::span<const std::uint8_t>(bytes).first(checked)));
  return bytes;
}

Result<std::size_t> page_header_bytes(std::span<const std::uint8_t> prefix) {
  KVASIR_CHECK(prefix.size() >= kPageFilePrefixBytes);
  if (!std::equal(kMagic.begin(), kMagic.end(), prefix.begin())) {
    return corrupt("not a page file; the first 8 bytes are not KVSRPAGE");
  }
  if (prefix[kVersionAt] != kPageFileVersion) {
    return Error{ErrorCode::kUnsupported, fmt::format("page file: format version; got {}, want {}",
                                                      prefix[kVersionAt], kPageFileVersion)};
  }
  const auto size = load<std::uint32_t>(prefix, kHeaderBytesAt);
  if (size < header_bytes_for(1, 0) || size > kPageHeaderBytesMax || size % kHeaderMultiple != 0) {
    return corrupt(fmt::format("header size at byte {}; got {} B, want a multiple of {} up to {}",
                               kHeaderBytesAt, size, kHeaderMultiple, kPageHeaderBytesMax));
  }
  return std::size_t{size};
}

Result<PageHeader> decode_page_header(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < kPageFilePrefixBytes) {
    return corrupt(fmt::format("ends in its header; got {} B", bytes.size()));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::size_t size, page_header_bytes(bytes));
  if (bytes.size() < size) {
    return corrupt(fmt::format("ends in its header; got {} B, want {} B", bytes.size(), size));
  }
  const std::size_t checked = size - kChecksumBytes;
  if (load<std::uint64_t>(bytes, checked) != xxh3_64(bytes.first(checked))) {
    return corrupt(fmt::format("checksum of the header's {} B does not match", checked));
  }
  // From here on the bytes are as somebody wrote them, which does not make them sensible.
  if (const auto flags = load<std::uint32_t>(bytes, kFlagsAt); flags != 0) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("page file: flags at byte {}; got {:#x}, want 0", kFlagsAt, flags)};
  }
  const auto n_tokens = load<std::uint32_t>(bytes, kTokenCountAt);
  const auto description_bytes = load<std::uint32_t>(bytes, kDescriptionBytesAt);
  if (n_tokens == 0 || n_tokens > kPageFileTokensMax ||
      description_bytes > kPageFileDescriptionBytesMax ||
      header_bytes_for(n_tokens, description_bytes) != size) {
    return corrupt(fmt::format("{} tokens and {} B of description do not make a header of {} B",
                               n_tokens, description_bytes, size));
  }
  PageHeader header = load_fields(bytes, size, n_tokens, description_bytes);
  if (header.payload_bytes == 0 || header.payload_bytes > kPageFilePayloadBytesMax) {
    return corrupt(fmt::format("payload size at byte {}; got {} B, want 1..{} B", kPayloadBytesAt,
                               header.payload_bytes, kPageFilePayloadBytesMax));
  }
  if (header.first_token < 0) {
    return corrupt(fmt::format("first token's position at byte {}; got {}, want 0 or more",
                               kFirstTokenAt, header.first_token));
  }
  return header;
}

Status check_payload(const PageHeader& header, std::span<const std::uint8_t> payload) {
  if (payload.size() != header.payload_bytes) {
    return corrupt(
        fmt::format("payload; got {} B, want {} B", payload.size(), header.payload_bytes));
  }
  if (xxh3_64(header.key.bytes, payload) != header.payload_checksum) {
    return corrupt(fmt::format("checksum of the payload's {} B does not match", payload.size()));
  }
  return {};
}

}  // namespace kvasir::cache
