#include <fmt/core.h>

#include "cache/tier/archive.h"
#include "cache/tier/archive_image.h"
#include "cache/tier/archive_record.h"

namespace kvasir::cache {
namespace {

/// One export: counts what it hands on.
class Exporter {
 public:
  Exporter(const DiskTier& tier, FileSystem& fs, const ArchiveSink& sink)
      : tier_(tier), fs_(fs), sink_(sink) {}

  Status add_page(const PageInfo& page) {
    const auto image = read_page_image(fs_, tier_.page_path(page.key));
    if (!image) return leave_out(page.key, image.error()), Status{};
    const auto header = check_page_image(*image, page.key);
    if (!header) return leave_out(page.key, header.error()), Status{};
    KVASIR_RETURN_IF_ERROR(write({ArchiveKind::kPage, page.key, image->size()}, *image));
    ++report_.n_pages;
    return {};
  }

  /// Of a root without one: nothing.
  Status add_manifest(const PageKey& root) {
    const auto text = tier_.read_manifest(root);
    if (!text) return {};
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(text->data());
    KVASIR_RETURN_IF_ERROR(
        write({ArchiveKind::kManifest, root, text->size()}, {bytes, text->size()}));
    ++report_.n_manifests;
    return {};
  }

  Status end() {
    const std::uint64_t n_records = report_.n_pages + report_.n_manifests;
    return write({ArchiveKind::kEnd, PageKey{}, n_records}, {});
  }

  const ExportReport& report() const { return report_; }

 private:
  Status write(const ArchiveRecord& record, std::span<const std::uint8_t> body) {
    KVASIR_RETURN_IF_ERROR(sink_(encode_archive_record(record)));
    if (!body.empty()) KVASIR_RETURN_IF_ERROR(sink_(body));
    report_.bytes += kArchiveRecordBytes + body.size();
    return {};
  }

  void leave_out(const PageKey& key, const Error& error) {
    if (error.code == ErrorCode::kNotFound) {
      ++report_.n_vanished;
    } else if (error.code == ErrorCode::kUnsupported) {
      ++report_.n_other_version;
    } else {
      ++report_.n_bad;
      if (report_.bad.size() < kArchiveFaultsMax) report_.bad.push_back({key, error.message});
    }
  }

  const DiskTier& tier_;
  FileSystem& fs_;
  const ArchiveSink& sink_;
  ExportReport report_;
};

}  // namespace

Result<ExportReport> export_pages(const DiskTier& tier, FileSystem& fs,
                                  std::span<const PageInfo> pages, const ArchiveSink& sink,
                                  const ArchiveProgress& progress) {
  Exporter exporter(tier, fs, sink);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    KVASIR_RETURN_IF_ERROR(exporter.add_page(pages[i]));
    const bool is_last_of_root = i + 1 == pages.size() || pages[i + 1].root != pages[i].root;
    if (is_last_of_root) KVASIR_RETURN_IF_ERROR(exporter.add_manifest(pages[i].root));
    if (progress && !progress(exporter.report().bytes)) {
      return Error{ErrorCode::kCancelled,
                   fmt::format("archive: interrupted; {} of {} pages were written",
                               exporter.report().n_pages, pages.size())};
    }
  }
  KVASIR_RETURN_IF_ERROR(exporter.end());
  return exporter.report();
}

}  // namespace kvasir::cache
