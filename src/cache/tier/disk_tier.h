// Sealed pages on a disk: bytes under a key, one file a page, in a directory that several processes
// may share (docs/formats/page-file.md).
//
// Losing a page costs computing it again, and nothing else: `put` is advice, `get` may miss, and no
// file that is damaged, cut off or another page's is ever returned.
//
// Invariants (tests cite the numbers)
// I1 A hit's payload is the one put under this key, and its tokens are the ones asked for.
// I2 A page has its name only when all its bytes are on the device.
// I3 Files of DIR/pages and DIR/bad that this process knows of, and the one it is writing, together
//    have at most capacity_bytes; only what others write meanwhile can exceed it, until the next
//    refresh.
// I4 An error of the file system is a miss or a dropped put and shows in health(); none aborts.
// I5 No lock that a get needs is held while the file system works.
// Thread safety: any thread. Writers (put, remove, gc, refresh) take turns.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/types.h"
#include "cache/prefix/page_key.h"
#include "cache/tier/directory.h"
#include "cache/tier/disk_index.h"
#include "cache/tier/file_system.h"
#include "cache/tier/health.h"
#include "cache/tier/page_file.h"
#include "cache/tier/read_pool.h"

namespace kvasir::cache {

struct DiskTierOptions {
  // What it does.
  std::string directory;             ///< made if missing, for its owner only
  std::uint64_t capacity_bytes = 0;  ///< sizes of files, not of disk blocks; > 0
  BackOff back_off;                  ///< between attempts on a file system that fails
  /// Left by writers that died: temporary files not written to for so long are removed.
  double stale_temporary_seconds = 3600;
  // How fast.
  /// A put looks for other processes' files again after so long; listing 10,000 takes some 50 ms.
  double refresh_seconds = 30;
  int n_read_threads = 4;  ///< of get_many, 1..64; a queue depth that keeps an NVMe disk busy
  /// open returns before the headers are read: gets find their files all the same, puts and
  /// refreshes wait, and list, known and nearest_follower see what has been found so far.
  bool scans_behind = false;
};

enum class GetOutcome : std::uint8_t {
  kHit,
  kMiss,     ///< not here, late, of other tokens or another size, or the tier is down
  kCorrupt,  ///< was here, is damaged, and was moved to DIR/bad
};

struct GetRequest {
  PageKey key;
  std::span<const TokenId> tokens;         ///< a hit has exactly these
  std::span<std::uint8_t> out;             ///< of the payload's size; holds it after a hit
  GetOutcome outcome = GetOutcome::kMiss;  ///< set by get_many
};

struct PageInfo {
  PageKey key;
  PageKey parent;
  PageKey root;
  Position first_token = 0;
  int n_tokens = 0;
  std::uint64_t file_bytes = 0;
  double age_seconds = 0;    ///< since it was written
  double idle_seconds = 0;   ///< since it was last used, by any process
  std::uint64_t n_hits = 0;  ///< of this process
};

struct DiskTierStats {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t n_pages = 0, page_bytes = 0;
  std::uint64_t n_bad = 0, bad_bytes = 0;      ///< files in DIR/bad
  std::uint64_t n_other = 0, other_bytes = 0;  ///< page files of another version: left alone
  // Since open.
  std::uint64_t n_hits = 0, n_misses = 0, n_corrupt = 0;
  std::uint64_t n_mismatched = 0;  ///< misses: whole, but other tokens or another size
  std::uint64_t n_late = 0;        ///< misses: not read by the deadline
  std::uint64_t n_read_errors = 0;
  std::uint64_t n_puts = 0;  ///< written
  std::uint64_t n_puts_known = 0, n_puts_dropped = 0;
  std::uint64_t n_evicted = 0, n_temporaries_removed = 0;
  std::uint64_t bytes_read = 0, bytes_written = 0;
};

struct VerifyReport {
  struct Bad {
    std::string path;
    std::string reason;
  };
  std::uint64_t n_pages = 0, bytes = 0;  ///< whole ones
  std::vector<Bad> bad;                  ///< damaged or unreadable, still in place
  std::vector<std::string> quarantined;  ///< in DIR/bad, found before
  std::vector<Bad> skipped;              ///< of another version: not checked
};

class DiskTier {
  struct Batch;

 public:
  /// One page on its way, see start_read. Must go before the tier does.
  class Read {
   public:
    Read(Read&&) noexcept = default;
    /// Gives up what has not come: nothing touches the request's `out` afterwards. Waits for no
    /// file system.
    ~Read();
    /// Absent: under way.
    std::optional<GetOutcome> outcome() const;

   private:
    friend class DiskTier;
    explicit Read(std::shared_ptr<Batch> batch) : batch_(std::move(batch)) {}
    std::shared_ptr<Batch> batch_;
  };

  /// Makes the directory, removes stale temporaries, reads the header of every page, moves damaged
  /// files aside, and evicts down to the capacity. `fs` and `clock` must outlive the tier.
  /// Errors: kInvalidArgument, an option or a directory of somebody else that others may write in;
  /// kIo or kNotFound when the directory can neither be made nor listed.
  static Result<std::unique_ptr<DiskTier>> open(const DiskTierOptions& options, FileSystem& fs,
                                                const Clock& clock);
  /// Waits for reads under way.
  ~DiskTier();

  /// False: the directory's headers are not all read after so long (`scans_behind`).
  bool wait_until_scanned(double deadline_seconds) const;

  /// Writes a page, after evicting what stands in its way; a page that is here already is only
  /// marked as used. Errors (nothing of the page is left): kInvalidArgument, see
  /// encode_page_header; kExhausted, larger than the capacity, or nothing could go but the pages it
  /// follows; kUnsupported, another version's file has the name; kIo, kNotFound, also when dropped
  /// because the last write failed not long ago.
  Status put(const PageRecord& record);

  /// Reads one page on the caller's thread, however long it takes. A key that is not in the index
  /// may have been written by another process: the file decides. After anything but a hit `out`
  /// holds anything.
  GetOutcome get(const PageKey& key, std::span<const TokenId> tokens, std::span<std::uint8_t> out);

  /// Reads pages on the tier's threads, first ones first, and returns when all are read or
  /// `deadline_seconds` from now have passed; what is late is a miss, and nothing touches `out`
  /// after the return.
  void get_many(std::span<GetRequest> requests, double deadline_seconds);

  /// Reads one page on the tier's threads while the caller goes on; in the order of the calls.
  Read start_read(const GetRequest& request);

  /// A hint: the page may be damaged, or gone by the time of the get.
  bool contains(const PageKey& key);

  /// What the index knows of a page, without a look at the disk.
  struct KnownPage {
    PageKey key;
    std::vector<TokenId> tokens;
    std::string description;
  };
  /// Absent: only the disk can tell, see header.
  std::optional<KnownPage> known(const PageKey& key) const;
  bool is_known(const PageKey& key) const { return generation_of(key) != 0; }
  /// Known, and nobody has taken its file away: a put would do nothing.
  bool is_there(const PageKey& key) const;
  /// Of the known pages that follow `parent` (a page or a root) the one that agrees longest with
  /// `tokens`, by at least one. Cost: O(followers).
  std::optional<KnownPage> nearest_follower(const PageKey& parent,
                                            std::span<const TokenId> tokens) const;

  /// Errors: kNotFound, kIo.
  Status remove(const PageKey& key);

  /// Least recently used first. Cost: O(n log n).
  std::vector<PageInfo> list() const;

  /// The header of a page's file, tokens and description included. A failure has the effects that
  /// it has in a get: what is damaged is moved to DIR/bad. Errors: as PageReader::open.
  Result<PageHeader> header(const PageKey& key);

  /// Hits of a page by every process so far, as its file says: kept as an extended attribute, at
  /// two system calls a hit. Not exact, see FileSystem::count_use; absent where no count is kept.
  std::optional<std::uint64_t> total_hits(const PageKey& key) const;

  /// Where a page's file is, or would be.
  std::string page_path(const PageKey& key) const { return directory_.page_path(key); }

  /// Reads every payload on the disk and changes nothing. Errors: kIo, kNotFound: the directory
  /// cannot be listed.
  Result<VerifyReport> verify() const;

  /// Evicts until at most `bytes` are left, by I3's count: DIR/bad first, then pages in the order
  /// of DiskIndex (I2 there). The bytes freed. Errors: kIo; kExhausted when what is left are files
  /// of another version.
  Result<std::uint64_t> gc(std::uint64_t bytes);

  /// Looks for files that other processes wrote or removed, and takes over their order of use.
  /// Errors: kIo, kNotFound; the index is then as it was.
  Status refresh();

  /// Keeps `text`, at most 64 KiB of the caller's, beside the pages of `root`; replaces what was
  /// there. Not counted against the capacity. Errors: kInvalidArgument, kIo, kNotFound.
  Status write_manifest(const PageKey& root, std::string_view text);
  /// Errors: kNotFound, kIo, kCorruption: longer than write_manifest takes.
  Result<std::string> read_manifest(const PageKey& root) const;
  /// The roots with a manifest, sorted. Errors: kIo, kNotFound.
  Result<std::vector<PageKey>> manifests() const;

  TierHealth health() const { return health_.health(); }
  DiskTierStats stats() const;

 private:
  struct Scan;
  struct Victim {
    std::string path;
    std::uint64_t bytes = 0;
    PageKey key{};
    std::uint64_t generation = 0;  ///< 0: a file in DIR/bad, of use to nobody but a debugger
  };

  DiskTier(const DiskTierOptions& options, FileSystem& fs, const Clock& clock);

  // Reading (disk_tier_read.cc).
  Status read_into(const PageKey& key, std::span<const TokenId> tokens, std::span<std::uint8_t> out,
                   DiskIndex::Entry* entry, const std::function<bool()>& is_wanted = {});
  GetOutcome failed_read(const PageKey& key, std::uint64_t generation, const Error& error);
  void note_hit(const PageKey& key, std::uint64_t generation, const DiskIndex::Entry& entry);
  void mark_used(const std::string& path);
  void read_for(Batch& batch, std::size_t idx, std::vector<std::uint8_t>& scratch);
  void count_misses(std::uint64_t n);
  std::uint64_t generation_of(const PageKey& key) const;
  bool quarantine(const PageKey& key, std::uint64_t generation);
  void forget_directory(int error);

  // Writing (disk_tier.cc); write_mutex_ is held.
  Status put_locked(const PageRecord& record);
  Status write_page(const PageRecord& record);
  Result<std::uint64_t> make_room(std::uint64_t bytes, std::uint64_t limit, const PageKey* keep);
  std::optional<Victim> next_victim(const PageKey* keep) const;  // mutex_ is held
  Result<bool> is_here(const PageKey& key);
  bool is_known_and_here(const PageKey& key, std::uint64_t generation);
  Error failed_write(Error error);

  // Scanning (disk_tier_scan.cc); write_mutex_ is held.
  Status scan_and_fit();
  Status refresh_locked();
  void sweep(const std::vector<std::string>& temporaries);
  void scan_page(const TierDirectory::PageFile& file, Scan& scan);
  void merge(const Scan& scan);

  static DiskIndex::Entry entry_of(const PageHeader& header, const FileInfo& info);
  bool refresh_wanted() const { return n_refreshes_done_ != n_refreshes_wanted_; }
  std::uint64_t known_bytes() const;  // mutex_ is held

  const DiskTierOptions options_;
  FileSystem& fs_;
  const Clock& clock_;
  TierDirectory directory_;
  HealthTracker health_;

  std::mutex write_mutex_;        // writers take turns; taken before mutex_
  double refreshed_seconds_ = 0;  // guarded by write_mutex_
  // Equal: the index is not known to be incomplete.
  std::atomic<std::uint64_t> n_refreshes_wanted_{1}, n_refreshes_done_{0};

  mutable std::mutex mutex_;  // guards what follows; never held while the file system works
  DiskIndex index_;
  std::map<std::string, std::uint64_t> bad_;    // sizes in bytes by path
  std::map<std::string, std::uint64_t> other_;  // sizes in bytes by path
  DiskTierStats counters_;                      // those "since open"

  mutable std::mutex scan_mutex_;  // guards is_scanned_
  mutable std::condition_variable scanned_;
  bool is_scanned_ = false;
  std::atomic<bool> stopping_{false};

  // Last: their threads use all of the above.
  ReadPool pool_;
  std::thread scanner_;
};

}  // namespace kvasir::cache
