// Whether a tier works, why not, and when to try again.
//
// Reading and writing fail apart: a full or read-only disk still serves what it has.
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace kvasir::cache {

enum class HealthState : std::uint8_t {
  kUp,
  kDegraded,  ///< puts are dropped, or a read failed of late; gets go on
  kDown,      ///< puts are dropped and gets miss
};
/// "up", "degraded", "down".
std::string_view health_name(HealthState state);

struct TierHealth {
  HealthState state = HealthState::kUp;
  std::string reason;        ///< of the newest failure; empty when up
  double retry_seconds = 0;  ///< until the next attempt; 0: the next call is one
};

/// Waits between attempts: doubled by each that fails.
struct BackOff {
  double first_seconds = 1;
  double max_seconds = 60;
};

class HealthTracker {
 public:
  /// `clock` must outlive the tracker.
  HealthTracker(const BackOff& back_off, const Clock& clock)
      : clock_(clock), reading_(back_off), writing_(back_off) {}

  /// False while the last failure is too young for another attempt.
  bool may_read() const;
  bool may_write() const;

  void read_succeeded();
  void write_succeeded();
  /// The third one in a row stops the reading.
  void read_failed(std::string_view reason);
  /// Stops the writing.
  void write_failed(std::string_view reason);
  /// Stops both.
  void directory_lost(std::string_view reason);

  TierHealth health() const;

 private:
  /// Attempts of one kind. Closed: they go on.
  struct Breaker {
    explicit Breaker(const BackOff& how) : back_off(how), wait_seconds(how.first_seconds) {}
    void open(double now, std::string_view why);
    void close();

    const BackOff back_off;
    bool is_open = false;
    double retry_at = 0;
    double wait_seconds;
    int n_failures = 0;  ///< in a row
    std::string reason;
  };

  const Clock& clock_;
  mutable std::mutex mutex_;  // guards both
  Breaker reading_;
  Breaker writing_;
};

}  // namespace kvasir::cache
