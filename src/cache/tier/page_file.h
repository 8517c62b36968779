// The bytes of a page file, version 1 (docs/formats/page-file.md): a header, then the payload.
//
// Files are hostile input: decoding never aborts, and takes no more memory than kPageHeaderBytesMax
// bounds.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "cache/prefix/page_key.h"

namespace kvasir::cache {

inline constexpr std::uint8_t kPageFileVersion = 1;
/// Limits of the format: more is refused when written and taken for damage when read.
inline constexpr std::size_t kPageFileTokensMax = 4096;
inline constexpr std::size_t kPageFileDescriptionBytesMax = 4096;
inline constexpr std::uint64_t kPageFilePayloadBytesMax = std::uint64_t{1} << 30;
/// Enough of a file to tell how long its header is.
inline constexpr std::size_t kPageFilePrefixBytes = 16;
/// The longest header: 160 B of fields, tokens, description, up to the next multiple of 64.
inline constexpr std::size_t kPageHeaderBytesMax = 20672;

/// A page on its way to a tier. Owns nothing.
struct PageRecord {
  PageKey key;
  PageKey parent;  ///< of the page before it, or the root
  PageKey root;    ///< of its scope
  Position first_token = 0;
  std::span<const TokenId> tokens;
  std::string_view description;  ///< codec and geometry, for people and for a strict reader
  std::span<const std::uint8_t> payload;
};

/// All that a page file says before its payload.
struct PageHeader {
  PageKey key;
  PageKey parent;
  PageKey root;
  Position first_token = 0;
  std::vector<TokenId> tokens;
  std::string description;           ///< bytes of a file: make them printable before you print them
  std::int64_t created_seconds = 0;  ///< since 1970
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0;
  std::uint32_t header_bytes = 0;  ///< the payload's offset in the file
};

/// The size of `record`'s file. Errors: kInvalidArgument, a field is outside the limits.
Result<std::uint64_t> page_file_bytes(const PageRecord& record);

/// The header of `record`'s file; its payload follows as it is.
/// Errors: as page_file_bytes. Cost: one pass over the payload.
Result<std::vector<std::uint8_t>> encode_page_header(const PageRecord& record,
                                                     std::int64_t created_seconds);

/// How many bytes the header of a file takes that begins with `prefix`.
/// Requires: prefix.size() >= kPageFilePrefixBytes.
/// Errors: kUnsupported, a version that this build does not know: leave the file alone;
/// kCorruption.
Result<std::size_t> page_header_bytes(std::span<const std::uint8_t> prefix);

/// `bytes`: a file's beginning, the whole header at least.
/// Errors: as page_header_bytes; kUnsupported also for a flag that this build does not know.
Result<PageHeader> decode_page_header(std::span<const std::uint8_t> bytes);

/// Errors: kCorruption, the payload is not the one that was written with this header.
Status check_payload(const PageHeader& header, std::span<const std::uint8_t> payload);

}  // namespace kvasir::cache
