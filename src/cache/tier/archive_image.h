// A page file as one piece of memory: read and checked whole; internal.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cache/prefix/page_key.h"
#include "cache/tier/file_system.h"
#include "cache/tier/page_file.h"

namespace kvasir::cache {

/// The largest page file there can be.
inline constexpr std::uint64_t kPageFileBytesMax = kPageHeaderBytesMax + kPageFilePayloadBytesMax;

/// The header of `image`, all of whose bytes are then known to be those that were written, under
/// the key that follows from its tokens and the page before it.
/// Errors: kUnsupported, of another version; kCorruption.
Result<PageHeader> check_page_image(std::span<const std::uint8_t> image, const PageKey& key);

/// All bytes of a page's file, unchecked. Errors: kNotFound, kIo; kCorruption, no file that could
/// be a page's.
Result<std::vector<std::uint8_t>> read_page_image(FileSystem& fs, const std::string& path);

}  // namespace kvasir::cache
