// What a prefix cache of a given size would have made of a trace: the real prefix tree, eviction
// policies, page pool and disk index, without a model, without bytes, on the trace's clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "cache/policy/eviction.h"
#include "eval/request_trace.h"

namespace kvasir::eval {

/// What computing a prompt's token takes, which rises with what it attends to.
struct PrefillCost {
  /// SmolLM2-135M on two cores: prefill of 512 tokens at depth 0 and 7680 (README, "Measured").
  double token_seconds = 196e-6;
  double token_seconds_per_position = 0.107e-6;

  /// Of tokens [first, end).
  double seconds(std::int64_t first, std::int64_t end) const;
};

struct ReplayOptions {
  cache::EvictionPolicy policy = cache::EvictionPolicy::kCost;
  std::uint64_t memory_pages = 0;  ///< 1..kNoPage - 1
  std::uint64_t disk_pages = 0;    ///< 0: no disk
  std::uint64_t page_bytes = 1;    ///< > 0; of a page in memory and in its file
  PrefillCost cost = {};
};

/// Pages and tokens of all requests by where they came from; pages that moved.
struct ReplayReport {
  std::uint64_t n_requests = 0;  ///< replayed; fewer than the trace has when it was stopped
  std::uint64_t n_pages = 0;     ///< memory_pages + disk_pages + the computed ones
  std::uint64_t memory_pages = 0, disk_pages = 0;
  std::int64_t n_tokens = 0;  ///< likewise; of each prompt at least the last token is computed
  std::int64_t memory_tokens = 0, disk_tokens = 0;
  double prefill_seconds = 0;                       ///< without a cache, by ReplayOptions::cost
  double saved_seconds = 0;                         ///< of these; loading counts nothing
  std::uint64_t n_evicted = 0;                      ///< from memory
  std::uint64_t n_unkept = 0;                       ///< computed, and memory had no room for them
  std::uint64_t n_written = 0, n_disk_evicted = 0;  ///< pages of the disk
  std::uint64_t bytes_written = 0, bytes_read = 0;

  /// Of pages, from memory and disk, 0..1.
  double hit_rate() const;
};

/// One replay of several.
struct ReplayRow {
  ReplayOptions options;
  ReplayReport report;
};

/// Runs the requests one after another, each at its own time and done before the next one: what of
/// its pages memory has (`PrefixTree::match`) is locked and used; what follows is loaded as long as
/// the disk has it; the rest is computed, published page by page, and written to the disk. Room is
/// made by the policy in memory, and on the disk as `DiskTier` does. The same trace and options
/// give the same report. `progress` gets requests done, every few; `stop` ends it with what is
/// done. Cost: O(log n) and one or two SHA-256 a page; 300 bytes a page kept.
ReplayReport replay(const RequestTrace& trace, const ReplayOptions& options,
                    const std::function<void(std::size_t n_done)>& progress = {},
                    const std::atomic<bool>* stop = nullptr);

}  // namespace kvasir::eval
