#include "cache/tier/health.h"

#include <gtest/gtest.h>

#include "cache/tier_support.h"

namespace kvasir::cache {
namespace {

constexpr BackOff kBackOff = {.first_seconds = 2, .max_seconds = 5};

TEST(TierHealth, BeginsUp) {
  FakeClock clock;
  const HealthTracker tracker(kBackOff, clock);
  EXPECT_TRUE(tracker.may_read());
  EXPECT_TRUE(tracker.may_write());
  EXPECT_EQ(tracker.health().state, HealthState::kUp);
  EXPECT_EQ(health_name(HealthState::kUp), "up");
  EXPECT_EQ(health_name(HealthState::kDegraded), "degraded");
  EXPECT_EQ(health_name(HealthState::kDown), "down");
}

TEST(TierHealth, AFailedWriteStopsWritingAlone) {
  FakeClock clock;
  HealthTracker tracker(kBackOff, clock);
  tracker.write_failed("full");
  EXPECT_FALSE(tracker.may_write());
  EXPECT_TRUE(tracker.may_read());
  EXPECT_EQ(tracker.health().state, HealthState::kDegraded);
  EXPECT_EQ(tracker.health().reason, "full");
  tracker.read_succeeded();
  EXPECT_FALSE(tracker.may_write()) << "reading says nothing about writing";
  clock.advance(2);
  EXPECT_TRUE(tracker.may_write());
  EXPECT_EQ(tracker.health().retry_seconds, 0);
  tracker.write_succeeded();
  EXPECT_EQ(tracker.health().state, HealthState::kUp);
}

TEST(TierHealth, OnlyAttemptsAfterTheWaitMakeItLonger) {
  FakeClock clock;
  HealthTracker tracker(kBackOff, clock);
  tracker.write_failed("a");
  clock.advance(1);
  tracker.write_failed("b");  // was under way already
  EXPECT_EQ(tracker.health().retry_seconds, 1);
  EXPECT_EQ(tracker.health().reason, "b");
  clock.advance(1);
  tracker.write_failed("c");
  EXPECT_EQ(tracker.health().retry_seconds, 4);
  clock.advance(4);
  tracker.write_failed("d");
  EXPECT_EQ(tracker.health().retry_seconds, 5) << "the limit";
  tracker.write_succeeded();
  tracker.write_failed("e");
  EXPECT_EQ(tracker.health().retry_seconds, 2) << "from the beginning";
}

TEST(TierHealth, ThreeFailedReadsInARowStopReadingAndOneMoreDoesAfterwards) {
  FakeClock clock;
  HealthTracker tracker(kBackOff, clock);
  for (int i = 0; i < 2; ++i) {
    tracker.read_failed("a");
    tracker.read_failed("b");
    EXPECT_TRUE(tracker.may_read());
    EXPECT_EQ(tracker.health().state, HealthState::kDegraded);
    EXPECT_EQ(tracker.health().reason, "b");
    tracker.read_succeeded();  // not in a row
    EXPECT_EQ(tracker.health().state, HealthState::kUp);
  }
  for (int i = 0; i < 3; ++i) tracker.read_failed("c");
  EXPECT_FALSE(tracker.may_read());
  EXPECT_TRUE(tracker.may_write());
  EXPECT_EQ(tracker.health().state, HealthState::kDown);
  clock.advance(2);
  EXPECT_TRUE(tracker.may_read());
  EXPECT_EQ(tracker.health().state, HealthState::kDown) << "until a read succeeds";
  tracker.read_failed("d");
  EXPECT_FALSE(tracker.may_read());
  EXPECT_EQ(tracker.health().retry_seconds, 4);
}

TEST(TierHealth, ALostDirectoryStopsBoth) {
  FakeClock clock;
  HealthTracker tracker(kBackOff, clock);
  tracker.directory_lost("gone");
  EXPECT_FALSE(tracker.may_read());
  EXPECT_FALSE(tracker.may_write());
  EXPECT_EQ(tracker.health().state, HealthState::kDown);
  clock.advance(2);
  tracker.read_succeeded();
  EXPECT_EQ(tracker.health().state, HealthState::kDegraded) << "writing is not known to work";
  tracker.write_succeeded();
  EXPECT_EQ(tracker.health().state, HealthState::kUp);
}

}  // namespace
}  // namespace kvasir::cache
