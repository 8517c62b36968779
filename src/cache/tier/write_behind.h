// Puts that nobody waits for: a queue, bounded in bytes, and one thread that empties it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cache/tier/page_file.h"

namespace kvasir::cache {

struct WriteBehindOptions {
  std::uint64_t queue_bytes_max = std::uint64_t{256} << 20;  ///< the page being written included
  double drain_seconds = 5;  ///< how long the destructor goes on writing what is queued
};

struct WriteBehindStats {
  std::uint64_t n_queued = 0, queued_bytes = 0;  ///< now, the page being written included
  std::uint64_t n_written = 0;                   ///< the sink took them
  std::uint64_t n_failed = 0;                    ///< the sink refused them
  std::uint64_t n_dropped = 0;  ///< the queue was full, or the end came before their turn
};

/// Threads: any may put.
class WriteBehind {
 public:
  /// Called on the one thread; DiskTier::put, say. Must not throw.
  using Sink = std::function<Status(const PageRecord& record)>;

  /// `clock`, and what `sink` uses, must outlive this.
  WriteBehind(Sink sink, const WriteBehindOptions& options, const Clock& clock);
  /// Writes on until the queue is empty or `drain_seconds` have passed, and drops the rest. The
  /// page being written then is waited for.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  /// Copies the page into the queue. False: dropped, the queue is too full for it; pages that wait
  /// already go first. Cost: one copy.
  bool put(const PageRecord& record);

  /// Waits until everything put before has been written or refused, at most `deadline_seconds`.
  /// False: it is not.
  bool flush(double deadline_seconds);

  WriteBehindStats stats() const;

 private:
  /// A record and the bytes that it refers to.
  struct Page {
    explicit Page(const PageRecord& from);
    PageRecord record() const;
    std::uint64_t bytes() const;

    PageRecord fields;  // its spans are not used
    std::vector<TokenId> tokens;
    std::string description;
    std::vector<std::uint8_t> payload;
  };

  void work();

  const Sink sink_;
  const WriteBehindOptions options_;
  const Clock& clock_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Page> queue_;
  WriteBehindStats stats_;
  std::uint64_t n_put_ = 0;       // taken into the queue, since the beginning
  std::uint64_t n_finished_ = 0;  // of those, written, refused or dropped
  bool stopping_ = false;
  double stop_at_seconds_ = 0;  // of the clock; counts when stopping

  std::thread thread_;  // not joinable: the system gave none, and every put is dropped
};

}  // namespace kvasir::cache
