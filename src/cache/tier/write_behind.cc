#include "cache/tier/write_behind.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace kvasir::cache {
namespace {

/// How often flush looks at the clock while nothing happens: a clock need not be the system's.
constexpr double kWaitSliceSeconds = 0.02;

}  // namespace

WriteBehind::Page::Page(const PageRecord& from)
    : fields(from),
      tokens(from.tokens.begin(), from.tokens.end()),
      description(from.description),
      payload(from.payload.begin(), from.payload.end()) {
  fields.tokens = {};
  fields.description = {};
  fields.payload = {};
}

PageRecord WriteBehind::Page::record() const {
  PageRecord record = fields;
  record.tokens = tokens;
  record.description = description;
  record.payload = payload;
  return record;
}

std::uint64_t WriteBehind::Page::bytes() const {
  return payload.size() + description.size() + tokens.size() * sizeof(TokenId);
}

WriteBehind::WriteBehind(Sink sink, const WriteBehindOptions& options, const Clock& clock)
    : sink_(std::move(sink)), options_(options), clock_(clock) {
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    // Puts are advice: without a thread all are dropped, and counted.
  }
}

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_at_seconds_ = clock_.now_seconds() + options_.drain_seconds;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool WriteBehind::put(const PageRecord& record) {
  Page page(record);  // copied outside the lock, even if for nothing
  const std::uint64_t bytes = page.bytes();
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t room = options_.queue_bytes_max - stats_.queued_bytes;
    if (!thread_.joinable() || bytes > room) {
      ++stats_.n_dropped;
      return false;
    }
    ++n_put_;
    ++stats_.n_queued;
    stats_.queued_bytes += bytes;
    queue_.push_back(std::move(page));
  }
  changed_.notify_all();
  return true;
}

void WriteBehind::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Page page = std::move(queue_.front());
    queue_.pop_front();
    const bool too_late = stopping_ && clock_.now_seconds() >= stop_at_seconds_;
    bool written = false;
    if (!too_late) {
      lock.unlock();
      written = sink_(page.record()).has_value();
      lock.lock();
    }
    --stats_.n_queued;
    stats_.queued_bytes -= page.bytes();
    ++(too_late ? stats_.n_dropped : written ? stats_.n_written : stats_.n_failed);
    ++n_finished_;
    changed_.notify_all();
  }
}

bool WriteBehind::flush(double deadline_seconds) {
  const double deadline = clock_.now_seconds() + deadline_seconds;
  std::unique_lock lock(mutex_);
  const std::uint64_t wanted = n_put_;
  while (n_finished_ < wanted) {
    const double left = deadline - clock_.now_seconds();
    if (!(left > 0)) return false;
    changed_.wait_for(lock, std::chrono::duration<double>(std::min(left, kWaitSliceSeconds)));
  }
  return true;
}

WriteBehindStats WriteBehind::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace kvasir::cache
