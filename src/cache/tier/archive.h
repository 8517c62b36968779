// Pages in one stream of bytes, to be moved from one directory to another
// (docs/formats/page-archive.md): page files as they are, a short record before each.
//
// An archive is hostile input: reading one never aborts, takes no more memory than one page of the
// bytes that came, and follows no path: where a page goes is said by its key alone.
// Thread safety: one thread at a time; the tier may be used by others meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cache/prefix/page_key.h"
#include "cache/tier/disk_tier.h"
#include "cache/tier/file_system.h"

namespace kvasir::cache {

inline constexpr std::uint8_t kArchiveVersion = 1;
/// Of the faults of one run no more are described; all are counted.
inline constexpr std::size_t kArchiveFaultsMax = 100;

/// Takes all of the bytes. An error ends the export.
using ArchiveSink = std::function<Status(std::span<const std::uint8_t> bytes)>;
/// Fills `out` from its beginning; gives how many bytes came, fewer only at the end.
using ArchiveSource = std::function<Result<std::size_t>(std::span<std::uint8_t> out)>;
/// Called between pages with the bytes of the archive so far. False: stop.
using ArchiveProgress = std::function<bool(std::uint64_t bytes)>;

/// A page that was not taken along, and why.
struct ArchiveFault {
  PageKey key;
  std::string reason;
};

struct ExportReport {
  std::uint64_t n_pages = 0, n_manifests = 0;
  std::uint64_t bytes = 0;            ///< of the archive
  std::uint64_t n_vanished = 0;       ///< evicted meanwhile
  std::uint64_t n_other_version = 0;  ///< of another build: left out
  std::uint64_t n_bad = 0;            ///< damaged or unreadable: left out, and in place
  std::vector<ArchiveFault> bad;
};

/// Writes pages of `tier` in the order given, each checked to the last byte, and after the last
/// page of a root its manifest: pages of one root lie side by side in `pages`. `progress` may be
/// empty. Errors: those of `sink`; kCancelled. What the sink got is then no whole archive.
Result<ExportReport> export_pages(const DiskTier& tier, FileSystem& fs,
                                  std::span<const PageInfo> pages, const ArchiveSink& sink,
                                  const ArchiveProgress& progress);

struct ImportOptions {
  /// Bytes of the directory's pages and of what comes; nothing is evicted for it.
  std::uint64_t capacity_bytes = 0;
  /// Whether `text` is what a manifest of `root` says; others are passed over.
  std::function<bool(const PageKey& root, std::string_view text)> accepts_manifest;
};

struct ImportReport {
  std::uint64_t n_new = 0, new_bytes = 0;  ///< written; sizes of their files
  std::uint64_t n_known = 0;               ///< here already, and whole
  std::uint64_t n_other_version = 0;       ///< in the archive, or here under that name: left alone
  std::uint64_t n_no_room = 0;             ///< would have exceeded the capacity
  std::uint64_t n_bad = 0;                 ///< not the page that they say they are
  std::uint64_t n_manifests = 0;           ///< written
  std::vector<ArchiveFault> bad;
  /// Why the rest was not read; what is counted above is done all the same. kCorruption: no
  /// archive, cut off, or damaged between pages; kUnsupported: of another version; kCancelled; kIo
  /// and kNotFound: a page cannot be written; those of the source.
  std::optional<Error> error;
};

/// Puts the pages of an archive into `tier`, each after it was checked to the last byte. A page
/// that is here and damaged is replaced. Nothing after the end record is read. `progress` may be
/// empty. Requires: the tier's own capacity is at least options.capacity_bytes.
ImportReport import_pages(DiskTier& tier, FileSystem& fs, const ImportOptions& options,
                          const ArchiveSource& source, const ArchiveProgress& progress);

}  // namespace kvasir::cache
