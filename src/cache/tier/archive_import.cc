#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cache/tier/archive.h"
#include "cache/tier/archive_image.h"
#include "cache/tier/archive_record.h"
#include "cache/tier/page_reader.h"

namespace kvasir::cache {
namespace {

/// A body is read in pieces of this size: what a record promises is believed as far as it came.
constexpr std::size_t kPieceBytes = std::size_t{1} << 22;
constexpr std::uint64_t kManifestBytesMax = 64 * 1024;

class Importer {
 public:
  Importer(DiskTier& tier, FileSystem& fs, const ImportOptions& options,
           const ArchiveSource& source)
      : tier_(tier), fs_(fs), options_(options), source_(source) {
    const DiskTierStats stats = tier.stats();
    held_bytes_ = stats.page_bytes + stats.bad_bytes + stats.other_bytes;
  }

  /// Up to the end record. Errors: as ImportReport::error.
  Status run(const ArchiveProgress& progress) {
    while (true) {
      KVASIR_ASSIGN_OR_RETURN(const ArchiveRecord record, read_record());
      if (record.kind == ArchiveKind::kEnd) return check_end(record);
      ++n_records_;
      KVASIR_RETURN_IF_ERROR(take(record));
      if (progress && !progress(offset_)) {
        return Error{ErrorCode::kCancelled, "archive: interrupted; what came by then is kept"};
      }
    }
  }

  ImportReport& report() { return report_; }

 private:
  /// Fills `out`. Errors: kCorruption, the archive ends before; those of the source.
  Status read(std::span<std::uint8_t> out) {
    KVASIR_ASSIGN_OR_RETURN(const std::size_t n_read, source_(out));
    offset_ += n_read;
    if (n_read == out.size()) return {};
    return Error{ErrorCode::kCorruption,
                 fmt::format("archive: cut off; got {} B, want more and an end record", offset_)};
  }

  Result<ArchiveRecord> read_record() {
    std::array<std::uint8_t, kArchiveRecordBytes> bytes{};
    const std::uint64_t at = offset_;
    KVASIR_RETURN_IF_ERROR(read(bytes));
    auto record = decode_archive_record(bytes);
    if (record) return record;
    return Error{record.error().code,
                 fmt::format("archive: at byte {}: {}", at, record.error().message)};
  }

  Status check_end(const ArchiveRecord& record) const {
    if (record.count == n_records_) return {};
    return Error{ErrorCode::kCorruption, fmt::format("archive: incomplete; got {} records, want {}",
                                                     n_records_, record.count)};
  }

  Status take(const ArchiveRecord& record) {
    switch (record.kind) {
      case ArchiveKind::kPage:
        if (record.count > kPageFileBytesMax) break;
        KVASIR_RETURN_IF_ERROR(read_body(record.count));
        return take_page(record.key);
      case ArchiveKind::kManifest:
        if (record.count > kManifestBytesMax) break;
        KVASIR_RETURN_IF_ERROR(read_body(record.count));
        return take_manifest(record.key);
      default:
        return skip(record.count);  // of a build that knows more
    }
    note_bad(record.key, fmt::format("page file: larger than any; got {} B", record.count));
    return skip(record.count);
  }

  Status read_body(std::uint64_t n_bytes) {
    body_.clear();
    while (body_.size() < n_bytes) {
      const std::size_t n_before = body_.size();
      body_.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(n_bytes, n_before + kPieceBytes)));
      KVASIR_RETURN_IF_ERROR(read(std::span(body_).subspan(n_before)));
    }
    return {};
  }

  Status skip(std::uint64_t n_bytes) {
    while (n_bytes > 0) {
      const std::uint64_t n_piece = std::min<std::uint64_t>(n_bytes, kPieceBytes);
      KVASIR_RETURN_IF_ERROR(read_body(n_piece));
      n_bytes -= n_piece;
    }
    return {};
  }

  /// Errors: those that end the import.
  Status take_page(const PageKey& key) {
    const auto header = check_page_image(body_, key);
    if (!header && header.error().code == ErrorCode::kUnsupported) {
      ++report_.n_other_version;
      return {};
    }
    if (!header) return note_bad(key, header.error().message), Status{};
    if (is_here_whole(*header)) {
      ++report_.n_known;
      root_ = header->root;
      return {};
    }
    if (!has_room(body_.size())) {
      ++report_.n_no_room;
      return {};
    }
    const Status status = put(*header);
    if (!status && status.error().code == ErrorCode::kUnsupported) {
      ++report_.n_other_version;
      return {};
    }
    KVASIR_RETURN_IF_ERROR(status);
    ++report_.n_new;
    report_.new_bytes += body_.size();
    held_bytes_ += body_.size();
    root_ = header->root;
    return {};
  }

  /// A file of that name that is damaged is removed: a whole one is at hand.
  bool is_here_whole(const PageHeader& header) {
    const auto there = PageReader::open(fs_, tier_.page_path(header.key), header.key);
    Status status;
    if (there) {
      payload_.resize(static_cast<std::size_t>(there->header().payload_bytes));
      status = there->read_payload(payload_);
    } else {
      status = there.error();
    }
    if (!status && status.error().code == ErrorCode::kCorruption) (void)tier_.remove(header.key);
    return status.has_value();
  }

  Status put(const PageHeader& header) {
    return tier_.put({.key = header.key,
                      .parent = header.parent,
                      .root = header.root,
                      .first_token = header.first_token,
                      .tokens = header.tokens,
                      .description = header.description,
                      .payload = std::span(body_).subspan(header.header_bytes)});
  }

  /// Only of a root that a page came of: a stranger's manifests alone take no room.
  Status take_manifest(const PageKey& root) {
    const std::string_view text(reinterpret_cast<const char*>(body_.data()), body_.size());
    if (root_ != root || !has_room(body_.size()) || tier_.read_manifest(root)) return {};
    if (!options_.accepts_manifest || !options_.accepts_manifest(root, text)) return {};
    KVASIR_RETURN_IF_ERROR(tier_.write_manifest(root, text));
    ++report_.n_manifests;
    held_bytes_ += body_.size();
    return {};
  }

  bool has_room(std::uint64_t n_bytes) const {
    return held_bytes_ <= options_.capacity_bytes &&
           n_bytes <= options_.capacity_bytes - held_bytes_;
  }

  void note_bad(const PageKey& key, std::string reason) {
    ++report_.n_bad;
    if (report_.bad.size() < kArchiveFaultsMax) report_.bad.push_back({key, std::move(reason)});
  }

  DiskTier& tier_;
  FileSystem& fs_;
  const ImportOptions& options_;
  const ArchiveSource& source_;
  std::uint64_t held_bytes_ = 0;  // of the directory, as I3 of DiskTier counts, and manifests
  std::uint64_t offset_ = 0;      // in the archive
  std::uint64_t n_records_ = 0;
  std::optional<PageKey> root_;  // of the newest page that is here now
  std::vector<std::uint8_t> body_, payload_;
  ImportReport report_;
};

}  // namespace

ImportReport import_pages(DiskTier& tier, FileSystem& fs, const ImportOptions& options,
                          const ArchiveSource& source, const ArchiveProgress& progress) {
  Importer importer(tier, fs, options, source);
  const Status status = importer.run(progress);
  if (!status) importer.report().error = status.error();
  return std::move(importer.report());
}

}  // namespace kvasir::cache
