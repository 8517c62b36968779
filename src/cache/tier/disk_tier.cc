// The writing half of the disk tier, and what it says about itself.
#include "cache/tier/disk_tier.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "cache/tier/page_reader.h"

namespace kvasir::cache {
namespace {

constexpr std::size_t kManifestBytesMax = 64 * 1024;
constexpr int kReadThreadsMax = 64;
constexpr std::int64_t kNsPerSecond = 1'000'000'000;

Error invalid(std::string message) {
  return Error{ErrorCode::kInvalidArgument, "disk tier: " + std::move(message)};
}

Status check_options(const DiskTierOptions& options) {
  if (options.directory.empty()) return invalid("directory; got none");
  if (options.capacity_bytes == 0) return invalid("capacity; got 0 B, want at least 1 B");
  if (options.n_read_threads < 1 || options.n_read_threads > kReadThreadsMax) {
    return invalid(fmt::format("threads that read; got {}, want 1..{}", options.n_read_threads,
                               kReadThreadsMax));
  }
  const BackOff& back_off = options.back_off;
  // Negated, so that no NaN passes.
  if (!(back_off.first_seconds > 0 && back_off.max_seconds >= back_off.first_seconds &&
        options.refresh_seconds >= 0 && options.stale_temporary_seconds >= 0)) {
    return invalid(
        fmt::format("seconds; got back-off {}..{}, refresh {}, stale {}, want positive "
                    "ones, the back-off ascending",
                    back_off.first_seconds, back_off.max_seconds, options.refresh_seconds,
                    options.stale_temporary_seconds));
  }
  return {};
}

/// One name for one directory: without slashes at the end.
std::string trimmed(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::uint64_t sum_of(const std::map<std::string, std::uint64_t>& sizes) {
  std::uint64_t sum = 0;
  for (const auto& [path, bytes] : sizes) sum += bytes;
  return sum;
}

}  // namespace

DiskTier::DiskTier(const DiskTierOptions& options, FileSystem& fs, const Clock& clock)
    : options_(options),
      fs_(fs),
      clock_(clock),
      directory_(trimmed(options.directory), fs),
      health_(options.back_off, clock),
      pool_(options.n_read_threads) {}

DiskTier::~DiskTier() {
  stopping_ = true;
  if (scanner_.joinable()) scanner_.join();
}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const DiskTierOptions& options, FileSystem& fs,
                                                 const Clock& clock) {
  KVASIR_RETURN_IF_ERROR(check_options(options));
  std::unique_ptr<DiskTier> tier(new DiskTier(options, fs, clock));
  KVASIR_RETURN_IF_ERROR(tier->directory_.make_root());
  if (options.scans_behind) {
    try {
      tier->scanner_ = std::thread([behind = tier.get()] { (void)behind->scan_and_fit(); });
      return tier;
    } catch (const std::system_error&) {
      // No more threads: here and now, then.
    }
  }
  KVASIR_RETURN_IF_ERROR(tier->scan_and_fit());
  return tier;
}

/// The first look at the directory. The capacity may be lower than it was.
Status DiskTier::scan_and_fit() {
  Status status;
  {
    const std::lock_guard lock(write_mutex_);
    status = refresh_locked();
    // A disk that cannot be written to still serves.
    if (const auto fits = make_room(0, options_.capacity_bytes, nullptr);
        status && !fits && fits.error().code != ErrorCode::kExhausted) {
      (void)failed_write(fits.error());
    }
  }
  const std::lock_guard lock(scan_mutex_);
  is_scanned_ = true;
  scanned_.notify_all();
  return status;
}

bool DiskTier::wait_until_scanned(double deadline_seconds) const {
  std::unique_lock lock(scan_mutex_);
  return scanned_.wait_for(lock, std::chrono::duration<double>(deadline_seconds),
                           [&] { return is_scanned_; });
}

DiskIndex::Entry DiskTier::entry_of(const PageHeader& header, const FileInfo& info) {
  return {.parent = header.parent,
          .root = header.root,
          .first_token = header.first_token,
          .tokens = header.tokens,
          .description = header.description,
          .file_bytes = info.bytes,
          .created_seconds = header.created_seconds,
          .last_used_ns = info.modified_ns};
}

std::uint64_t DiskTier::known_bytes() const {
  return index_.bytes() + sum_of(bad_) + sum_of(other_);
}

Error DiskTier::failed_write(Error error) {
  if (const int missing = directory_.missing(); missing != 0) {
    forget_directory(missing);
  } else {
    health_.write_failed(error.message);
  }
  return error;
}

Status DiskTier::put(const PageRecord& record) {
  const std::lock_guard writers(write_mutex_);
  Status status = put_locked(record);
  if (!status) {
    const std::lock_guard lock(mutex_);
    ++counters_.n_puts_dropped;
  }
  return status;
}

Status DiskTier::put_locked(const PageRecord& record) {
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t file_bytes, page_file_bytes(record));
  if (file_bytes > options_.capacity_bytes) {
    return Error{ErrorCode::kExhausted,
                 fmt::format("disk tier: page larger than the tier; got {} B, want at most {} B",
                             file_bytes, options_.capacity_bytes)};
  }
  if (!health_.may_write()) {
    const TierHealth now = health_.health();
    return Error{ErrorCode::kIo, fmt::format("disk tier: not written, next attempt in {:.1f} s; {}",
                                             now.retry_seconds, now.reason)};
  }
  if (refresh_wanted() || clock_.now_seconds() >= refreshed_seconds_ + options_.refresh_seconds) {
    if (const Status status = refresh_locked(); !status) return failed_write(status.error());
  }
  KVASIR_ASSIGN_OR_RETURN(const bool here, is_here(record.key));
  // Also when it is here: another process may have put it, and nobody made room then.
  const auto room = make_room(here ? 0 : file_bytes, options_.capacity_bytes, &record.parent);
  if (!room) {
    const bool full = room.error().code == ErrorCode::kExhausted;
    return full ? room.error() : failed_write(room.error());
  }
  if (!here) return write_page(record);
  const std::lock_guard lock(mutex_);
  ++counters_.n_puts_known;
  return {};
}

Status DiskTier::write_page(const PageRecord& record) {
  const std::int64_t created_seconds = fs_.now_ns() / kNsPerSecond;
  KVASIR_ASSIGN_OR_RETURN(const auto header, encode_page_header(record, created_seconds));
  const std::array<std::span<const std::uint8_t>, 2> parts = {header, record.payload};
  if (const Status written = directory_.write_atomically(directory_.page_path(record.key), parts);
      !written) {
    return failed_write(written.error());
  }
  health_.write_succeeded();
  const std::int64_t now_ns = fs_.now_ns();
  const std::lock_guard lock(mutex_);
  index_.put(record.key, {.parent = record.parent,
                          .root = record.root,
                          .first_token = record.first_token,
                          .tokens = {record.tokens.begin(), record.tokens.end()},
                          .description = std::string(record.description),
                          .file_bytes = header.size() + record.payload.size(),
                          .created_seconds = created_seconds,
                          .last_used_ns = now_ns});
  ++counters_.n_puts;
  counters_.bytes_written += header.size() + record.payload.size();
  return {};
}

bool DiskTier::is_known_and_here(const PageKey& key, std::uint64_t generation) {
  const IoStatus touched = fs_.touch(directory_.page_path(key));
  const std::int64_t now_ns = fs_.now_ns();
  const std::lock_guard lock(mutex_);
  if (touched.error == ENOENT) {  // another process removed it
    index_.erase(key, generation);
    return false;
  }
  if (index_.find(key) == nullptr) return false;  // a get has just found it damaged
  index_.touch(key, now_ns);
  return true;
}

Result<bool> DiskTier::is_here(const PageKey& key) {
  if (const std::uint64_t generation = generation_of(key); generation != 0) {
    if (is_known_and_here(key, generation)) return true;
  }
  const Result<PageReader> reader = PageReader::open(fs_, directory_.page_path(key), key);
  if (reader) {  // another process wrote it
    const std::lock_guard lock(mutex_);
    index_.put(key, entry_of(reader->header(), reader->info()));
    return true;
  }
  switch (reader.error().code) {
    case ErrorCode::kUnsupported:
      return reader.error();  // theirs to replace
    case ErrorCode::kCorruption: {
      quarantine(key, 0);
      const std::lock_guard lock(mutex_);
      ++counters_.n_corrupt;
      return false;
    }
    default:
      return false;  // what is wrong, if anything is, the write will say
  }
}

std::optional<DiskTier::Victim> DiskTier::next_victim(const PageKey* keep) const {
  if (!bad_.empty()) return Victim{.path = bad_.begin()->first, .bytes = bad_.begin()->second};
  const PageKey* key = index_.victim(keep);
  if (key == nullptr) return std::nullopt;
  const DiskIndex::Entry& entry = *index_.find(*key);
  return Victim{.path = directory_.page_path(*key),
                .bytes = entry.file_bytes,
                .key = *key,
                .generation = entry.generation};
}

Result<std::uint64_t> DiskTier::make_room(std::uint64_t bytes, std::uint64_t limit,
                                          const PageKey* keep) {
  std::uint64_t freed = 0;
  while (true) {
    std::optional<Victim> victim;
    {
      const std::lock_guard lock(mutex_);
      const std::uint64_t known = known_bytes();
      if (known <= limit && bytes <= limit - known) return freed;
      victim = next_victim(keep);
      if (!victim.has_value()) {
        return Error{ErrorCode::kExhausted,
                     fmt::format("disk tier: no page that could go; got {} B of the pages before "
                                 "it and {} B of other versions' files, want room for {} B of {} B",
                                 index_.bytes(), sum_of(other_), bytes, limit)};
      }
    }
    const IoStatus removed = fs_.remove(victim->path);
    if (removed.ok()) freed += victim->bytes;
    const std::lock_guard lock(mutex_);
    if (removed.ok() || removed.error == ENOENT) {
      if (victim->generation == 0) bad_.erase(victim->path);
      if (index_.erase(victim->key, victim->generation) && removed.ok()) ++counters_.n_evicted;
      continue;
    }
    // The next one, or the next time another one: this one may be the only that cannot be removed.
    if (victim->generation == 0) {
      bad_.erase(victim->path);
      other_[victim->path] = victim->bytes;
      continue;
    }
    if (const DiskIndex::Entry* entry = index_.find(victim->key); entry != nullptr) {
      index_.touch(victim->key, entry->last_used_ns);
    }
    return io_error(victim->path, "remove the file", removed.error);
  }
}

bool DiskTier::contains(const PageKey& key) {
  if (!health_.may_read()) return false;
  if (generation_of(key) != 0) return true;
  const IoResult<FileInfo> info = fs_.stat(directory_.page_path(key));
  return info.ok() && info.value.kind == FileKind::kFile;
}

std::optional<DiskTier::KnownPage> DiskTier::known(const PageKey& key) const {
  const std::lock_guard lock(mutex_);
  const DiskIndex::Entry* entry = index_.find(key);
  if (entry == nullptr) return std::nullopt;
  return KnownPage{key, entry->tokens, entry->description};
}

bool DiskTier::is_there(const PageKey& key) const {
  return is_known(key) && health_.may_read() && fs_.stat(directory_.page_path(key)).ok();
}

std::optional<DiskTier::KnownPage> DiskTier::nearest_follower(
    const PageKey& parent, std::span<const TokenId> tokens) const {
  const std::lock_guard lock(mutex_);
  const PageKey* key = index_.nearest_follower(parent, tokens);
  if (key == nullptr) return std::nullopt;
  const DiskIndex::Entry* entry = index_.find(*key);
  return KnownPage{*key, entry->tokens, entry->description};
}

Status DiskTier::remove(const PageKey& key) {
  const std::lock_guard writers(write_mutex_);
  const std::uint64_t generation = generation_of(key);
  const std::string path = directory_.page_path(key);
  const IoStatus removed = fs_.remove(path);
  if (removed.ok() || removed.error == ENOENT) {
    const std::lock_guard lock(mutex_);
    index_.erase(key, generation);
  }
  if (removed.ok()) return {};
  Error error = io_error(path, "remove the file", removed.error);
  return error.code == ErrorCode::kNotFound ? error : failed_write(std::move(error));
}

Result<std::uint64_t> DiskTier::gc(std::uint64_t bytes) {
  const std::lock_guard writers(write_mutex_);
  Result<std::uint64_t> freed = make_room(0, bytes, nullptr);
  if (freed || freed.error().code == ErrorCode::kExhausted) return freed;
  return failed_write(std::move(freed).error());
}

Status DiskTier::refresh() {
  const std::lock_guard writers(write_mutex_);
  return refresh_locked();
}

std::vector<PageInfo> DiskTier::list() const {
  const std::int64_t now_ns = fs_.now_ns();
  const std::lock_guard lock(mutex_);
  std::vector<PageInfo> infos;
  infos.reserve(index_.size());
  for (const PageKey& key : index_.by_use()) {
    const DiskIndex::Entry& entry = *index_.find(key);
    // In double: times of a file may be anything, and their difference too much for 64 bits.
    infos.push_back(
        {.key = key,
         .parent = entry.parent,
         .root = entry.root,
         .first_token = entry.first_token,
         .n_tokens = static_cast<int>(entry.tokens.size()),
         .file_bytes = entry.file_bytes,
         .age_seconds =
             static_cast<double>(now_ns) / 1e9 - static_cast<double>(entry.created_seconds),
         .idle_seconds =
             (static_cast<double>(now_ns) - static_cast<double>(entry.last_used_ns)) / 1e9,
         .n_hits = entry.n_hits});
  }
  return infos;
}

Result<PageHeader> DiskTier::header(const PageKey& key) {
  const std::uint64_t generation = generation_of(key);
  const Result<PageReader> reader = PageReader::open(fs_, directory_.page_path(key), key);
  if (reader) return reader->header();
  (void)failed_read(key, generation, reader.error());
  return reader.error();
}

DiskTierStats DiskTier::stats() const {
  const std::lock_guard lock(mutex_);
  DiskTierStats stats = counters_;
  stats.capacity_bytes = options_.capacity_bytes;
  stats.n_pages = index_.size();
  stats.page_bytes = index_.bytes();
  stats.n_bad = bad_.size();
  stats.bad_bytes = sum_of(bad_);
  stats.n_other = other_.size();
  stats.other_bytes = sum_of(other_);
  return stats;
}

Status DiskTier::write_manifest(const PageKey& root, std::string_view text) {
  if (text.size() > kManifestBytesMax) {
    return invalid(
        fmt::format("manifest; got {} B, want at most {} B", text.size(), kManifestBytesMax));
  }
  const std::array<std::span<const std::uint8_t>, 1> parts = {
      std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size())};
  const Status written = directory_.write_atomically(directory_.manifest_path(root), parts);
  return written ? written : failed_write(written.error());
}

Result<std::string> DiskTier::read_manifest(const PageKey& root) const {
  const std::string path = directory_.manifest_path(root);
  const IoResult<OpenedFile> opened = fs_.open_read(path);
  if (!opened.ok()) return io_error(path, "open", opened.error);
  const OpenDescriptor file(fs_, opened.value.fd);
  const FileInfo& info = opened.value.info;
  if (info.kind != FileKind::kFile || info.bytes > kManifestBytesMax) {
    return Error{ErrorCode::kCorruption,
                 fmt::format("{}: not a manifest; got {} B, want a file of at most {} B", path,
                             info.bytes, kManifestBytesMax)};
  }
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(info.bytes));
  KVASIR_RETURN_IF_ERROR(file.read(0, bytes));
  return std::string(bytes.begin(), bytes.end());
}

Result<std::vector<PageKey>> DiskTier::manifests() const { return directory_.list_roots(); }

}  // namespace kvasir::cache
