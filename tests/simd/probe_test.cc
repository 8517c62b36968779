// The probes count what they say they count.
#include "simd/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/aligned_buffer.h"

namespace kvasir::simd {
namespace {

void expect_rate(double rate) {
  EXPECT_TRUE(std::isfinite(rate));
  EXPECT_GT(rate, 0.0);
  EXPECT_LT(rate, 1e16);  // faster than any machine: the work was optimized away
}

TEST(Probe, RatesAreThoseOfARealMachineOnAnyNumberOfThreads) {
  AlignedBuffer buffer(1 << 20);
  std::memset(buffer.data(), 1, buffer.size());
  for (const int n_threads : {1, 2, 3}) {
    ThreadPool pool(n_threads);
    expect_rate(integer_rate(pool));
    expect_rate(float_rate(pool));
    expect_rate(bf16_rate(pool));
    expect_rate(read_rate(pool, {buffer.data(), buffer.size()}));
    expect_rate(1.0 / barrier_seconds(pool));
  }
}

}  // namespace
}  // namespace kvasir::simd
