// How the disk tier finds out what its directory holds: at open, and again for what others did.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cache/tier/disk_tier.h"
#include "cache/tier/page_reader.h"

namespace kvasir::cache {

namespace {

/// Errors: kCorruption, the page's name is not made of its tokens: no get returns it.
Status check_name(const PageHeader& header) {
  const PageKey want = next_key(header.parent, header.tokens);
  if (want == header.key) return {};
  return Error{ErrorCode::kCorruption,
               fmt::format("page file: holds other tokens; got key {}, want {}",
                           header.key.to_hex(), want.to_hex())};
}

}  // namespace

/// What a walk over the directory saw. Gets go on meanwhile, so that it may be outdated in part:
/// entries made since `generation` stay as they are.
struct DiskTier::Scan {
  std::uint64_t generation = 0;
  std::vector<std::pair<PageKey, DiskIndex::Entry>> found;  ///< new, or of another size
  std::vector<std::pair<PageKey, std::int64_t>> seen;       ///< known; last use in ns
  std::map<std::string, std::uint64_t> other;               ///< sizes in bytes by path
};

void DiskTier::sweep(const std::vector<std::string>& temporaries) {
  for (const std::string& path : temporaries) {
    const IoResult<FileInfo> info = fs_.stat(path);
    if (!info.ok()) continue;
    // By age alone: a process id says nothing about a writer in another container.
    const double age_seconds =
        (static_cast<double>(fs_.now_ns()) - static_cast<double>(info.value.modified_ns)) / 1e9;
    if (age_seconds <= options_.stale_temporary_seconds) continue;
    if (!fs_.remove(path).ok()) continue;
    const std::lock_guard lock(mutex_);
    ++counters_.n_temporaries_removed;
  }
}

void DiskTier::scan_page(const TierDirectory::PageFile& file, Scan& scan) {
  std::uint64_t known_size = 0;
  std::uint64_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const DiskIndex::Entry* entry = index_.find(file.key); entry != nullptr) {
      known_size = entry->file_bytes;
      generation = entry->generation;
    }
  }
  const IoResult<FileInfo> info = fs_.stat(file.path);
  if (info.ok() && generation != 0 && info.value.bytes == known_size) {
    scan.seen.emplace_back(file.key, info.value.modified_ns);
    return;
  }
  const Result<PageReader> reader = PageReader::open(fs_, file.path, file.key);
  if (reader) {
    scan.found.emplace_back(file.key, entry_of(reader->header(), reader->info()));
    return;
  }
  const ErrorCode code = reader.error().code;
  if (code == ErrorCode::kNotFound) return;  // vanished meanwhile
  const std::uint64_t size = info.ok() ? info.value.bytes : 0;
  if (code == ErrorCode::kCorruption) {
    const bool gone = quarantine(file.key, generation);
    const std::lock_guard lock(mutex_);
    ++counters_.n_corrupt;
    if (gone) return;
  } else if (code != ErrorCode::kUnsupported) {
    health_.read_failed(reader.error().message);
    const std::lock_guard lock(mutex_);
    ++counters_.n_read_errors;
  }
  scan.other.emplace(file.path, size);  // not ours to use, but it takes its place
}

void DiskTier::merge(const Scan& scan) {
  const std::lock_guard lock(mutex_);
  std::map<PageKey, std::int64_t, DiskIndex::KeyLess> last_uses(scan.seen.begin(), scan.seen.end());
  for (const auto& [key, entry] : scan.found) last_uses.emplace(key, entry.last_used_ns);
  for (const PageKey& key : index_.by_use()) {
    const std::uint64_t generation = index_.generation(key);
    if (generation < scan.generation && !last_uses.contains(key)) index_.erase(key, generation);
  }
  for (const auto& [key, entry] : scan.found) {
    if (index_.generation(key) < scan.generation) index_.put(key, entry);
  }
  for (const auto& [key, last_used_ns] : last_uses) {
    if (index_.find(key) != nullptr) index_.raise_last_use(key, last_used_ns);
  }
  index_.reorder();
  other_ = scan.other;
}

Status DiskTier::refresh_locked() {
  Scan scan;
  {
    const std::lock_guard lock(mutex_);
    scan.generation = index_.next_generation();
  }
  const std::uint64_t n_wanted = n_refreshes_wanted_;
  const Result<TierDirectory::Listing> listing = directory_.list();
  if (!listing) {
    ++n_refreshes_wanted_;
    return listing.error();
  }
  sweep(listing->temporaries);
  for (const TierDirectory::PageFile& file : listing->pages) {
    if (stopping_) return {};
    scan_page(file, scan);
  }
  // The names come in no order: of pages that were used at the same time, always the same goes
  // first.
  std::sort(scan.found.begin(), scan.found.end(),
            [](const auto& a, const auto& b) { return a.first.bytes < b.first.bytes; });
  for (const std::string& path : listing->bad) {
    const IoResult<FileInfo> info = fs_.stat(path);
    const std::lock_guard lock(mutex_);
    if (info.ok()) bad_[path] = info.value.bytes;
  }
  merge(scan);
  n_refreshes_done_ = n_wanted;
  refreshed_seconds_ = clock_.now_seconds();
  return {};
}

Result<VerifyReport> DiskTier::verify() const {
  KVASIR_ASSIGN_OR_RETURN(TierDirectory::Listing listing, directory_.list());
  VerifyReport report;
  std::vector<std::uint8_t> payload;
  for (const TierDirectory::PageFile& file : listing.pages) {
    const Result<PageReader> reader = PageReader::open(fs_, file.path, file.key);
    Status status;
    if (reader) {
      payload.resize(static_cast<std::size_t>(reader->header().payload_bytes));
      status = reader->read_payload(payload);
      if (status) status = check_name(reader->header());
    } else {
      status = reader.error();
    }
    if (status) {
      ++report.n_pages;
      report.bytes += reader->info().bytes;
    } else if (status.error().code == ErrorCode::kUnsupported) {
      report.skipped.push_back({.path = file.path, .reason = status.error().message});
    } else if (status.error().code != ErrorCode::kNotFound) {  // else evicted meanwhile
      report.bad.push_back({.path = file.path, .reason = status.error().message});
    }
  }
  report.quarantined = std::move(listing.bad);
  return report;
}

}  // namespace kvasir::cache
