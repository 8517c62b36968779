// The record before each page of an archive (docs/formats/page-archive.md); internal.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "cache/prefix/page_key.h"

namespace kvasir::cache {

inline constexpr std::size_t kArchiveRecordBytes = 64;

/// Others are passed over.
enum class ArchiveKind : std::uint32_t {
  kPage = 1,      ///< the body: a page file as it is
  kManifest = 2,  ///< the body: the text of a root's manifest
  kEnd = 3,       ///< the last record, without a body
};

struct ArchiveRecord {
  ArchiveKind kind = ArchiveKind::kEnd;
  PageKey key;              ///< of the page, or the root; of kEnd: zero
  std::uint64_t count = 0;  ///< bytes of the body; of kEnd: the records before it
};

std::array<std::uint8_t, kArchiveRecordBytes> encode_archive_record(const ArchiveRecord& record);
/// Errors: kCorruption, also when it is no archive; kUnsupported, of another version.
Result<ArchiveRecord> decode_archive_record(
    std::span<const std::uint8_t, kArchiveRecordBytes> bytes);

}  // namespace kvasir::cache
