// The disk tier on a disk that hangs: what has a deadline keeps it, and a put holds up no get.
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "cache/tier_support.h"

namespace kvasir::cache {
namespace {

using DiskTierDeadlineTest = TierTest;

TEST_F(DiskTierDeadlineTest, GetManyReturnsByTheDeadlineThoughTheDiskHangs) {
  const auto tier = open_tier();
  std::vector<TestPage> pages;
  std::vector<std::vector<std::uint8_t>> outs;
  std::vector<GetRequest> requests;
  for (std::uint64_t n = 1; n <= 10; ++n) {
    pages.push_back(page_of(n));
    ASSERT_TRUE(tier->put(pages.back().record()));
    outs.emplace_back(pages.back().payload.size(), 0xee);
  }
  for (std::size_t i = 0; i < pages.size(); ++i) {
    requests.push_back({.key = pages[i].key, .tokens = pages[i].tokens, .out = outs[i]});
  }
  fs_.block_reads();
  std::atomic<bool> returned{false};
  std::thread mover([&] {
    // The deadline comes by this clock alone, and the reads end only after the call has.
    while (!returned) {
      clock_.advance(0.01);
      std::this_thread::yield();
    }
  });
  tier->get_many(requests, 5);
  returned = true;
  mover.join();
  for (const GetRequest& request : requests) EXPECT_EQ(request.outcome, GetOutcome::kMiss);
  EXPECT_EQ(tier->stats().n_late, 10u);
  EXPECT_EQ(tier->stats().n_misses, 10u);
  EXPECT_EQ(tier->health().state, HealthState::kDegraded);
  fs_.release_reads();
  // All threads are through with the late ones when these are read; they touched nothing of ours.
  std::vector<std::vector<std::uint8_t>> later(outs.size(), std::vector<std::uint8_t>(3000));
  for (std::size_t i = 0; i < pages.size(); ++i) requests[i].out = later[i];
  tier->get_many(requests, 1e9);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(requests[i].outcome, GetOutcome::kHit) << i;
    EXPECT_EQ(later[i], pages[i].payload) << i;
    EXPECT_EQ(outs[i], std::vector<std::uint8_t>(3000, 0xee)) << "written to after the return";
  }
  EXPECT_EQ(tier->health().state, HealthState::kUp);
}

TEST_F(DiskTierDeadlineTest, ADiskThatHangsThreeTimesIsLeftAlone) {
  DiskTierOptions patient = options();
  patient.back_off = {.first_seconds = 1e9, .max_seconds = 1e9};  // the clock runs fast here
  const auto tier = std::move(*DiskTier::open(patient, fs_, clock_));
  const TestPage page = page_of(1);
  ASSERT_TRUE(tier->put(page.record()));
  fs_.block_reads();
  std::vector<std::uint8_t> out(page.payload.size());
  std::vector<GetRequest> requests = {{.key = page.key, .tokens = page.tokens, .out = out}};
  std::atomic<bool> stopping{false};
  std::thread mover([&] {
    while (!stopping) {
      clock_.advance(0.001);
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 9; ++i) tier->get_many(requests, 0.5);
  EXPECT_EQ(tier->health().state, HealthState::kUp) << "no disk has to be so fast";
  for (int i = 0; i < 3; ++i) tier->get_many(requests, 1.5);
  stopping = true;
  mover.join();
  EXPECT_EQ(tier->health().state, HealthState::kDown);
  EXPECT_NE(tier->health().reason.find("late"), std::string::npos) << tier->health().reason;
  tier->get_many(requests, 1e9);  // would wait for ever
  EXPECT_EQ(requests[0].outcome, GetOutcome::kMiss);
  EXPECT_EQ(tier->stats().n_late, 12u);
  fs_.release_reads();
}

TEST_F(DiskTierDeadlineTest, ADeadlineThatIsOverReadsNothing) {
  const auto tier = open_tier();
  const TestPage page = page_of(1);
  ASSERT_TRUE(tier->put(page.record()));
  int n_calls = 0;
  fs_.before = [&](const std::string&, const std::string&) { return ++n_calls, 0; };
  std::vector<std::uint8_t> out(page.payload.size());
  std::vector<GetRequest> requests = {{.key = page.key, .tokens = page.tokens, .out = out}};
  for (const double seconds : {0.0, -1.0, std::nan("")}) {
    requests[0].outcome = GetOutcome::kHit;
    tier->get_many(requests, seconds);
    EXPECT_EQ(requests[0].outcome, GetOutcome::kMiss);
  }
  EXPECT_EQ(n_calls, 0);
  EXPECT_EQ(tier->health().state, HealthState::kUp);
}

TEST_F(DiskTierDeadlineTest, APutThatHangsHoldsUpNoGet) {
  const auto tier = open_tier();
  ASSERT_TRUE(tier->put(page_of(1).record()));
  std::mutex mutex;
  std::condition_variable changed;
  bool is_in_sync = false, may_go_on = false;
  fs_.before = [&](const std::string& call, const std::string&) {
    if (call != "sync") return 0;
    std::unique_lock lock(mutex);
    is_in_sync = true;
    changed.notify_all();
    changed.wait(lock, [&] { return may_go_on; });
    return 0;
  };
  std::thread writer([&] { EXPECT_TRUE(tier->put(page_of(2).record())); });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_in_sync; });
  }
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kHit);  // I5: returns at all
  EXPECT_TRUE(tier->contains(key_of(1)));
  EXPECT_EQ(tier->list().size(), 1u);
  {
    const std::lock_guard lock(mutex);
    may_go_on = true;
  }
  changed.notify_all();
  writer.join();
}

}  // namespace
}  // namespace kvasir::cache
