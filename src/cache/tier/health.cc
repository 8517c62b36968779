#include "cache/tier/health.h"

#include <algorithm>
#include <array>

namespace kvasir::cache {
namespace {

/// One unreadable file is a matter of that file; so many one after the other are not.
constexpr int kReadFailuresMax = 3;

}  // namespace

std::string_view health_name(HealthState state) {
  constexpr std::array<std::string_view, 3> kNames = {"up", "degraded", "down"};
  return kNames[static_cast<std::size_t>(state)];
}

void HealthTracker::Breaker::open(double now, std::string_view why) {
  reason = why;
  // What was under way when the breaker opened is no new attempt: the wait does not grow.
  if (is_open && now < retry_at) return;
  if (is_open) wait_seconds = std::min(2 * wait_seconds, back_off.max_seconds);
  is_open = true;
  retry_at = now + wait_seconds;
}

void HealthTracker::Breaker::close() {
  is_open = false;
  n_failures = 0;
  wait_seconds = back_off.first_seconds;
  reason.clear();
}

bool HealthTracker::may_read() const {
  const std::lock_guard lock(mutex_);
  return !reading_.is_open || clock_.now_seconds() >= reading_.retry_at;
}

bool HealthTracker::may_write() const {
  const std::lock_guard lock(mutex_);
  return !writing_.is_open || clock_.now_seconds() >= writing_.retry_at;
}

void HealthTracker::read_succeeded() {
  const std::lock_guard lock(mutex_);
  reading_.close();
}

void HealthTracker::write_succeeded() {
  const std::lock_guard lock(mutex_);
  writing_.close();
}

void HealthTracker::read_failed(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  ++reading_.n_failures;
  reading_.reason = reason;
  if (reading_.n_failures >= kReadFailuresMax || reading_.is_open) {
    reading_.open(clock_.now_seconds(), reason);
  }
}

void HealthTracker::write_failed(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  ++writing_.n_failures;
  writing_.open(clock_.now_seconds(), reason);
}

void HealthTracker::directory_lost(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  const double now = clock_.now_seconds();
  reading_.open(now, reason);
  writing_.open(now, reason);
}

TierHealth HealthTracker::health() const {
  const std::lock_guard lock(mutex_);
  const double now = clock_.now_seconds();
  TierHealth health;
  if (reading_.is_open) {
    health.state = HealthState::kDown;
    health.reason = reading_.reason;
    health.retry_seconds = std::max(0.0, reading_.retry_at - now);
  } else if (writing_.is_open) {
    health.state = HealthState::kDegraded;
    health.reason = writing_.reason;
    health.retry_seconds = std::max(0.0, writing_.retry_at - now);
  } else if (reading_.n_failures > 0) {
    health.state = HealthState::kDegraded;
    health.reason = reading_.reason;
  }
  return health;
}

}  // namespace kvasir::cache
