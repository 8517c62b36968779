// The only source of time.
#pragma once

#include <chrono>

namespace kvasir {

/// Seconds on a clock that never jumps.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now_seconds() const = 0;
};

class SteadyClock final : public Clock {
 public:
  double now_seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace kvasir
