#include "cache/tier/archive_record.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "cache/tier/archive.h"
#include "cache/tier/checksum.h"

namespace kvasir::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they lie");

constexpr std::array<std::uint8_t, 8> kMagic = {'K', 'V', 'S', 'R', 'A', 'R', 'C', 'H'};

// Offsets of the fields; docs/formats/page-archive.md is the same table.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kKindAt = 12;
constexpr std::size_t kCountAt = 16;
constexpr std::size_t kKeyAt = 24;
constexpr std::size_t kChecksumAt = 56;

}  // namespace

std::array<std::uint8_t, kArchiveRecordBytes> encode_archive_record(const ArchiveRecord& record) {
  std::array<std::uint8_t, kArchiveRecordBytes> bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  bytes[kVersionAt] = kArchiveVersion;
  std::memcpy(bytes.data() + kKindAt, &record.kind, sizeof record.kind);
  std::memcpy(bytes.data() + kCountAt, &record.count, sizeof record.count);
  std::memcpy(bytes.data() + kKeyAt, record.key.bytes.data(), record.key.bytes.size());
  const std::uint64_t checksum = xxh3_64(std::span(bytes).first(kChecksumAt));
  std::memcpy(bytes.data() + kChecksumAt, &checksum, sizeof checksum);
  return bytes;
}

Result<ArchiveRecord> decode_archive_record(
    std::span<const std::uint8_t, kArchiveRecordBytes> bytes) {
  if (!std::equal(kMagic.begin(), kMagic.end(), bytes.begin())) {
    return Error{ErrorCode::kCorruption, "no record of an archive; want KVSRARCH in front"};
  }
  if (bytes[kVersionAt] != kArchiveVersion) {
    return Error{ErrorCode::kUnsupported, fmt::format("format version; got {}, want {}",
                                                      bytes[kVersionAt], kArchiveVersion)};
  }
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + kChecksumAt, sizeof checksum);
  if (checksum != xxh3_64(bytes.first(kChecksumAt))) {
    return Error{ErrorCode::kCorruption, "checksum of a record does not match"};
  }
  ArchiveRecord record;
  std::memcpy(&record.kind, bytes.data() + kKindAt, sizeof record.kind);
  std::memcpy(&record.count, bytes.data() + kCountAt, sizeof record.count);
  std::memcpy(record.key.bytes.data(), bytes.data() + kKeyAt, record.key.bytes.size());
  return record;
}

}  // namespace kvasir::cache
