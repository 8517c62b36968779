#include "eval/cache_replay.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "cache/page/byte_budget.h"
#include "cache/page/pool.h"
#include "cache/prefix/page_key.h"
#include "cache/prefix/tree.h"
#include "cache/tier/disk_index.h"

namespace kvasir::eval {

namespace {

using cache::NodeId;
using cache::PageId;
using cache::PageKey;

constexpr std::size_t kFrameBytes = 64;  ///< stands for a page: nobody reads it
constexpr std::size_t kProgressEvery = 64;
constexpr TokenId kOwnToken = -1;  ///< of no page

/// A page of the trace is a page of one token here: its number.
std::span<const TokenId> tokens_of(const TokenId& page) { return {&page, 1}; }

/// DiskTier's bookkeeping without its files.
class SimulatedDisk {
 public:
  SimulatedDisk(const ReplayOptions& options, ReplayReport& report)
      : capacity_(options.disk_pages), page_bytes_(options.page_bytes), report_(report) {}

  bool has(const PageKey& key) const { return index_.find(key) != nullptr; }

  void read(const PageKey& key, std::int64_t now_ns) {
    index_.touch(key, now_ns);
    report_.bytes_read += page_bytes_;
  }

  /// Writes what it does not have, when there is room for it.
  void write(const PageKey& key, const PageKey& parent, const PageKey& root, std::int64_t now_ns) {
    if (capacity_ == 0) return;
    if (has(key)) return index_.touch(key, now_ns);
    while (index_.size() >= capacity_) {
      const PageKey* victim = index_.victim(&parent);
      if (victim == nullptr) return;
      const PageKey leaving = *victim;
      index_.erase(leaving, index_.generation(leaving));
      ++report_.n_disk_evicted;
    }
    index_.put(key,
               {.parent = parent, .root = root, .file_bytes = page_bytes_, .last_used_ns = now_ns});
    ++report_.n_written;
    report_.bytes_written += page_bytes_;
  }

 private:
  const std::uint64_t capacity_, page_bytes_;
  ReplayReport& report_;
  cache::DiskIndex index_;
};

class Replay {
 public:
  Replay(const RequestTrace& trace, const ReplayOptions& options)
      : trace_(trace), options_(options), disk_(options, report_) {
    KVASIR_CHECK(options.memory_pages > 0 && options.memory_pages < cache::kNoPage);
    KVASIR_CHECK(options.page_bytes > 0);
  }
  ~Replay() {
    for (const cache::Evicted& page : tree_.clear()) pool_.drop_owner(page.pages[0]);
  }

  void run(const TraceRequest& request);
  const ReplayReport& report() const { return report_; }

 private:
  std::size_t load(const TraceRequest& request);
  void publish(const TraceRequest& request);
  void count(const TraceRequest& request, std::size_t n_memory, std::size_t n_disk);
  bool make_room();
  bool take_frames(std::size_t n, std::vector<PageId>& frames);
  void adopt(const TraceRequest& request, PageId frame);
  const PageKey& last_key() const { return path_.empty() ? root_ : tree_.key(path_.back()); }
  std::int64_t now_ns() const { return static_cast<std::int64_t>(now_ * 1e9); }

  const RequestTrace& trace_;
  const ReplayOptions& options_;
  ReplayReport report_;
  cache::ByteBudget no_limit_;
  cache::PagePool pool_{kFrameBytes, no_limit_};
  cache::PrefixTree tree_{{.page_tokens = 1}};
  SimulatedDisk disk_;
  const PageKey root_ = cache::root_key({});
  double now_ = 0;
  std::vector<NodeId> path_;  ///< of the request that runs; the last one is locked
};

void Replay::run(const TraceRequest& request) {
  now_ = request.seconds;
  // After the pages stands the token that is always computed, so that all of them may be found.
  std::vector<TokenId> tokens = request.pages;
  tokens.push_back(kOwnToken);
  path_ = tree_.match(root_, tokens).nodes;
  if (!path_.empty()) tree_.lock(path_.back());
  const std::size_t n_memory = path_.size();
  tree_.touch(path_, now_);
  const std::size_t n_disk = load(request);
  count(request, n_memory, n_disk);
  publish(request);
  if (!path_.empty()) tree_.unlock(path_.back());
}

/// Brings back what the disk has of the pages that follow; how many.
std::size_t Replay::load(const TraceRequest& request) {
  const std::size_t first = path_.size();
  if (options_.disk_pages == 0) return 0;
  std::vector<PageId> frames;
  while (path_.size() < request.pages.size()) {
    const PageKey key = cache::next_key(last_key(), tokens_of(request.pages[path_.size()]));
    if (!disk_.has(key) || !take_frames(1, frames)) break;
    disk_.read(key, now_ns());
    adopt(request, frames.back());
  }
  return path_.size() - first;
}

/// Keeps what was computed. Room for all of it is made before, as it had to be computed somewhere.
void Replay::publish(const TraceRequest& request) {
  std::vector<PageId> frames;
  const std::size_t n_new = request.pages.size() - path_.size();
  take_frames(n_new, frames);
  report_.n_unkept += n_new - frames.size();
  for (const PageId frame : frames) {
    const PageKey parent = last_key();
    adopt(request, frame);
    disk_.write(last_key(), parent, root_, now_ns());
  }
}

/// Puts the next page of the request into the tree.
void Replay::adopt(const TraceRequest& request, PageId frame) {
  const auto place = static_cast<std::int64_t>(path_.size());
  const std::int64_t first = place * trace_.page_tokens;
  const std::int64_t end = std::min(first + trace_.page_tokens, request.n_tokens);
  const cache::SealedPage page = {.tokens = tokens_of(request.pages[path_.size()]),
                                  .pages = {&frame, 1},
                                  .bytes = options_.page_bytes,
                                  .compute_seconds = options_.cost.seconds(first, end)};
  const cache::PrefixTree::Insert insert =
      path_.empty() ? tree_.insert(root_, page, now_) : tree_.insert(path_.back(), page, now_);
  KVASIR_CHECK(insert.is_new);
  tree_.lock(insert.node);
  if (!path_.empty()) tree_.unlock(path_.back());
  path_.push_back(insert.node);
}

/// One owner each; fewer than `n` (false) when memory is full of what is in use.
bool Replay::take_frames(std::size_t n, std::vector<PageId>& frames) {
  for (; n > 0; --n) {
    if (pool_.n_used() >= options_.memory_pages && !make_room()) return false;
    if (!pool_.allocate(1, frames)) return false;
  }
  return true;
}

bool Replay::make_room() {
  const std::optional<cache::Evicted> evicted = tree_.evict_one(now_, options_.policy);
  if (!evicted) return false;
  pool_.drop_owner(evicted->pages[0]);
  ++report_.n_evicted;
  return true;
}

void Replay::count(const TraceRequest& request, std::size_t n_memory, std::size_t n_disk) {
  const auto tokens_in = [&](std::size_t n_pages) {
    return std::min(static_cast<std::int64_t>(n_pages) * trace_.page_tokens, request.n_tokens - 1);
  };
  const std::int64_t from_memory = tokens_in(n_memory), reused = tokens_in(n_memory + n_disk);
  ++report_.n_requests;
  report_.n_pages += request.pages.size();
  report_.memory_pages += n_memory;
  report_.disk_pages += n_disk;
  report_.n_tokens += request.n_tokens;
  report_.memory_tokens += from_memory;
  report_.disk_tokens += reused - from_memory;
  report_.prefill_seconds += options_.cost.seconds(0, request.n_tokens);
  report_.saved_seconds += options_.cost.seconds(0, reused);
}

}  // namespace

double PrefillCost::seconds(std::int64_t first, std::int64_t end) const {
  const auto n = static_cast<double>(end - first);
  const double middle = static_cast<double>(first + end - 1) / 2;
  return n * (token_seconds + token_seconds_per_position * middle);
}

double ReplayReport::hit_rate() const {
  if (n_pages == 0) return 0;
  return static_cast<double>(memory_pages + disk_pages) / static_cast<double>(n_pages);
}

ReplayReport replay(const RequestTrace& trace, const ReplayOptions& options,
                    const std::function<void(std::size_t n_done)>& progress,
                    const std::atomic<bool>* stop) {
  Replay replay(trace, options);
  std::size_t n_done = 0;
  for (const TraceRequest& request : trace.requests) {
    if (stop != nullptr && stop->load()) break;
    replay.run(request);
    if (progress && ++n_done % kProgressEvery == 0) progress(n_done);
  }
  return replay.report();
}

}  // namespace kvasir::eval
