// The reading half of the disk tier: one page on the caller's thread, many on the pool's.
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <utility>

#include "base/check.h"
#include "cache/tier/disk_tier.h"
#include "cache/tier/page_reader.h"

namespace kvasir::cache {
namespace {

/// How often get_many looks at the clock while nothing arrives: a clock need not be the system's.
constexpr double kWaitSliceSeconds = 0.02;
/// A disk that brings nothing for so long hangs; callers with less patience only had no time.
constexpr double kHangSeconds = 1;

}  // namespace

/// The pages of one get_many. Its threads may outlive the call: they read into memory of their own,
/// and what the caller lent is touched only between `claim` and `finish`, which the call waits for.
struct DiskTier::Batch {
  enum class State : std::uint8_t { kWaiting, kCopying, kDone, kLate };
  struct Slot {
    PageKey key;
    std::vector<TokenId> tokens;
    std::span<std::uint8_t> out;
    State state = State::kWaiting;
    GetOutcome outcome = GetOutcome::kMiss;
  };

  explicit Batch(std::span<const GetRequest> requests) : n_waiting(requests.size()) {
    slots.reserve(requests.size());
    for (const GetRequest& request : requests) {
      slots.push_back({.key = request.key,
                       .tokens = {request.tokens.begin(), request.tokens.end()},
                       .out = request.out});
    }
  }

  bool is_wanted(std::size_t idx) {
    const std::lock_guard lock(mutex);
    return slots[idx].state == State::kWaiting;
  }
  /// True: `out` is the caller's of this function until `finish`.
  bool claim(std::size_t idx) {
    const std::lock_guard lock(mutex);
    if (slots[idx].state != State::kWaiting) return false;
    slots[idx].state = State::kCopying;
    --n_waiting;
    ++n_copying;
    return true;
  }
  void finish(std::size_t idx, GetOutcome outcome) {
    {
      const std::lock_guard lock(mutex);
      slots[idx].state = State::kDone;
      slots[idx].outcome = outcome;
      --n_copying;
    }
    changed.notify_all();
  }
  /// Returns when all are done or it is `deadline` by the clock; how many are late then.
  std::size_t wait(const Clock& clock, double deadline) {
    std::unique_lock lock(mutex);
    while (n_waiting + n_copying > 0) {
      const double left = deadline - clock.now_seconds();
      if (!(left > 0)) break;
      changed.wait_for(lock, std::chrono::duration<double>(std::min(left, kWaitSliceSeconds)));
    }
    return give_up(lock);
  }
  void give_up() {
    std::unique_lock lock(mutex);
    give_up(lock);
  }
  /// Absent: not done yet.
  std::optional<GetOutcome> outcome(std::size_t idx) {
    const std::lock_guard lock(mutex);
    if (slots[idx].state != State::kDone) return std::nullopt;
    return slots[idx].outcome;
  }
  /// Nothing that waits is wanted any more; how many did.
  std::size_t give_up(std::unique_lock<std::mutex>& lock) {
    const std::size_t n_late = std::exchange(n_waiting, 0);
    for (Slot& slot : slots) {
      if (slot.state == State::kWaiting) slot.state = State::kLate;
    }
    changed.wait(lock, [this] { return n_copying == 0; });  // in memory: no file system can hang it
    return n_late;
  }

  std::mutex mutex;  // guards states, outcomes and what follows
  std::condition_variable changed;
  std::vector<Slot> slots;
  std::size_t n_waiting;
  std::size_t n_copying = 0;
};

Status DiskTier::read_into(const PageKey& key, std::span<const TokenId> tokens,
                           std::span<std::uint8_t> out, DiskIndex::Entry* entry,
                           const std::function<bool()>& is_wanted) {
  KVASIR_ASSIGN_OR_RETURN(const PageReader reader,
                          PageReader::open(fs_, directory_.page_path(key), key));
  const PageHeader& header = reader.header();
  if (!std::equal(header.tokens.begin(), header.tokens.end(), tokens.begin(), tokens.end())) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("disk tier: page {} holds other tokens", key.to_hex())};
  }
  if (header.payload_bytes != out.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("disk tier: payload of page {}; got {} B, want {} B", key.to_hex(),
                             header.payload_bytes, out.size())};
  }
  *entry = entry_of(reader.header(), reader.info());
  return reader.read_payload(out, is_wanted);
}

std::uint64_t DiskTier::generation_of(const PageKey& key) const {
  const std::lock_guard lock(mutex_);
  return index_.generation(key);
}

void DiskTier::count_misses(std::uint64_t n) {
  const std::lock_guard lock(mutex_);
  counters_.n_misses += n;
}

void DiskTier::note_hit(const PageKey& key, std::uint64_t generation,
                        const DiskIndex::Entry& entry) {
  health_.read_succeeded();
  const std::int64_t now_ns = fs_.now_ns();
  const std::lock_guard lock(mutex_);
  ++counters_.n_hits;
  counters_.bytes_read += entry.file_bytes;
  if (index_.find(key) != nullptr) {
    index_.touch(key, now_ns);
  } else if (generation == 0) {
    index_.put(key, entry);  // another process wrote it
    index_.touch(key, now_ns);
  } else {
    return;  // evicted while it was read
  }
  index_.count_hit(key);
}

void DiskTier::mark_used(const std::string& path) {
  // A read-only disk keeps the order in memory only, and no count.
  (void)fs_.touch(path);
  (void)fs_.count_use(path);
}

std::optional<std::uint64_t> DiskTier::total_hits(const PageKey& key) const {
  const IoResult<std::uint64_t> count = fs_.use_count(page_path(key));
  return count.ok() ? std::optional(count.value) : std::nullopt;
}

GetOutcome DiskTier::failed_read(const PageKey& key, std::uint64_t generation, const Error& error) {
  switch (error.code) {
    case ErrorCode::kCorruption: {
      quarantine(key, generation);
      const std::lock_guard lock(mutex_);
      ++counters_.n_corrupt;
      return GetOutcome::kCorrupt;
    }
    case ErrorCode::kNotFound: {
      {
        // Others may have gone with it.
        const std::lock_guard lock(mutex_);
        if (index_.erase(key, generation)) ++n_refreshes_wanted_;
      }
      const int missing = directory_.missing();
      if (missing != 0) {
        forget_directory(missing);
      } else {
        health_.read_succeeded();
      }
      return GetOutcome::kMiss;
    }
    case ErrorCode::kUnsupported: {  // written over by another version
      const std::lock_guard lock(mutex_);
      if (index_.erase(key, generation)) ++n_refreshes_wanted_;
      return GetOutcome::kMiss;
    }
    case ErrorCode::kInvalidArgument: {
      const std::lock_guard lock(mutex_);
      ++counters_.n_mismatched;
      return GetOutcome::kMiss;
    }
    default: {
      health_.read_failed(error.message);
      const std::lock_guard lock(mutex_);
      ++counters_.n_read_errors;
      return GetOutcome::kMiss;
    }
  }
}

GetOutcome DiskTier::get(const PageKey& key, std::span<const TokenId> tokens,
                         std::span<std::uint8_t> out) {
  if (!health_.may_read()) {
    count_misses(1);
    return GetOutcome::kMiss;
  }
  const std::uint64_t generation = generation_of(key);
  DiskIndex::Entry entry;
  const Status status = read_into(key, tokens, out, &entry);
  if (!status) {
    const GetOutcome outcome = failed_read(key, generation, status.error());
    if (outcome == GetOutcome::kMiss) count_misses(1);
    return outcome;
  }
  note_hit(key, generation, entry);
  mark_used(directory_.page_path(key));
  return GetOutcome::kHit;
}

void DiskTier::read_for(Batch& batch, std::size_t idx, std::vector<std::uint8_t>& scratch) {
  if (!batch.is_wanted(idx)) return;
  const Batch::Slot& slot = batch.slots[idx];
  scratch.resize(slot.out.size());
  const std::uint64_t generation = generation_of(slot.key);
  DiskIndex::Entry entry;
  const Status status =
      read_into(slot.key, slot.tokens, scratch, &entry, [&] { return batch.is_wanted(idx); });
  if (!batch.is_wanted(idx)) return;
  if (!status) {
    const GetOutcome outcome = failed_read(slot.key, generation, status.error());
    if (!batch.claim(idx)) return;
    if (outcome == GetOutcome::kMiss) count_misses(1);
    batch.finish(idx, outcome);
    return;
  }
  if (!batch.claim(idx)) return;
  std::copy(scratch.begin(), scratch.end(), slot.out.begin());
  note_hit(slot.key, generation, entry);
  const std::string path = directory_.page_path(slot.key);
  batch.finish(idx, GetOutcome::kHit);
  mark_used(path);  // after the finish: no one waits for it
}

void DiskTier::get_many(std::span<GetRequest> requests, double deadline_seconds) {
  for (GetRequest& request : requests) request.outcome = GetOutcome::kMiss;
  if (requests.empty()) return;
  const double deadline = clock_.now_seconds() + deadline_seconds;
  if (!(deadline_seconds > 0) || !health_.may_read()) {
    count_misses(requests.size());
    return;
  }
  const auto batch = std::make_shared<Batch>(requests);
  std::vector<std::uint8_t> scratch;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const bool submitted = pool_.submit(
        [this, batch, i](std::vector<std::uint8_t>& buffer) { read_for(*batch, i, buffer); });
    // Without threads one page at a time, and at least no next one after the deadline.
    if (!submitted && clock_.now_seconds() < deadline) read_for(*batch, i, scratch);
  }
  const std::size_t n_late = batch->wait(clock_, deadline);
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].outcome = batch->slots[i].outcome;
  if (n_late == 0) return;
  if (n_late == requests.size() && deadline_seconds >= kHangSeconds) {
    health_.read_failed(fmt::format("{}: reads are late; got 0 of {} pages in {} s",
                                    directory_.path(), n_late, deadline_seconds));
  }
  const std::lock_guard lock(mutex_);
  counters_.n_late += n_late;
  counters_.n_misses += n_late;
}

DiskTier::Read DiskTier::start_read(const GetRequest& request) {
  const auto batch = std::make_shared<Batch>(std::span(&request, 1));
  const bool submitted =
      health_.may_read() && pool_.submit([this, batch](std::vector<std::uint8_t>& buffer) {
        read_for(*batch, 0, buffer);
      });
  if (!submitted && batch->claim(0)) {
    count_misses(1);
    batch->finish(0, GetOutcome::kMiss);
  }
  return Read(batch);
}

DiskTier::Read::~Read() {
  if (batch_ != nullptr) batch_->give_up();
}

std::optional<GetOutcome> DiskTier::Read::outcome() const { return batch_->outcome(0); }

bool DiskTier::quarantine(const PageKey& key, std::uint64_t generation) {
  const std::string path = directory_.page_path(key);
  const IoResult<FileInfo> info = fs_.stat(path);
  const Result<std::string> moved = directory_.quarantine(path, key);
  const std::lock_guard lock(mutex_);
  if (moved) bad_.emplace(*moved, info.ok() ? info.value.bytes : 0);
  // What could not be moved stays known and is found out again by the next get, unless it is gone.
  const bool gone = moved || moved.error().code == ErrorCode::kNotFound;
  if (gone) index_.erase(key, generation);
  return gone;
}

void DiskTier::forget_directory(int error) {
  health_.directory_lost(io_error(directory_.path(), "open the directory", error).message);
  ++n_refreshes_wanted_;
  const std::lock_guard lock(mutex_);
  index_.clear();
  bad_.clear();
  other_.clear();
}

}  // namespace kvasir::cache
