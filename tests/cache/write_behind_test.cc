#include "cache/tier/write_behind.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "cache/tier_support.h"

namespace kvasir::cache {
namespace {

/// Takes pages one by one, when it is told to.
class Gate {
 public:
  Status take(const PageRecord& record) {
    std::unique_lock lock(mutex_);
    ++n_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return n_allowed_ > 0; });
    --n_allowed_;
    keys_.push_back(record.key);
    payloads_.emplace_back(record.payload.begin(), record.payload.end());
    tokens_.emplace_back(record.tokens.begin(), record.tokens.end());
    descriptions_.emplace_back(record.description);
    if (refuses_) return Error{ErrorCode::kIo, "refused"};
    return {};
  }
  void allow(int n) {
    {
      const std::lock_guard lock(mutex_);
      n_allowed_ += n;
    }
    changed_.notify_all();
  }
  void wait_for_arrivals(int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_arrived_ >= n; });
  }
  WriteBehind::Sink sink() {
    return [this](const PageRecord& record) { return take(record); };
  }

  // Read when nothing is under way.
  std::vector<PageKey> keys_;
  std::vector<std::vector<std::uint8_t>> payloads_;
  std::vector<std::vector<TokenId>> tokens_;
  std::vector<std::string> descriptions_;
  bool refuses_ = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int n_allowed_ = 0;
  int n_arrived_ = 0;
};

constexpr std::uint64_t kPageBytes = 3000 + 16 * 4 + 17;  // payload, tokens, description

TEST(WriteBehind, WritesCopiesInTheOrderOfThePuts) {
  FakeClock clock;
  Gate gate;
  WriteBehind writer(gate.sink(), {}, clock);
  for (std::uint64_t n = 1; n <= 3; ++n) {
    TestPage page = page_of(n);
    ASSERT_TRUE(writer.put(page.record()));
    page.payload.assign(page.payload.size(), 0);  // the caller's memory is the caller's again
    page.tokens.assign(page.tokens.size(), 0);
    page.description.assign(page.description.size(), 'x');
  }
  EXPECT_EQ(writer.stats().n_queued, 3u);
  EXPECT_EQ(writer.stats().queued_bytes, 3 * kPageBytes);
  gate.allow(3);
  ASSERT_TRUE(writer.flush(1e9));
  ASSERT_EQ(gate.keys_.size(), 3u);
  for (std::uint64_t n = 1; n <= 3; ++n) {
    const std::size_t i = n - 1;
    EXPECT_EQ(gate.keys_[i], key_of(n));
    EXPECT_EQ(gate.payloads_[i], page_of(n).payload);
    EXPECT_EQ(gate.tokens_[i], page_of(n).tokens);
    EXPECT_EQ(gate.descriptions_[i], page_of(n).description);
  }
  EXPECT_EQ(writer.stats().n_written, 3u);
  EXPECT_EQ(writer.stats().queued_bytes, 0u);
}

TEST(WriteBehind, AFullQueueDropsTheNewest) {
  FakeClock clock;
  Gate gate;
  WriteBehind writer(gate.sink(), {.queue_bytes_max = 2 * kPageBytes}, clock);
  ASSERT_TRUE(writer.put(page_of(1).record()));
  gate.wait_for_arrivals(1);  // being written: still counts
  ASSERT_TRUE(writer.put(page_of(2).record()));
  EXPECT_FALSE(writer.put(page_of(3).record()));
  EXPECT_FALSE(writer.put(page_of(4, 1).record()));
  EXPECT_EQ(writer.stats().n_dropped, 2u);
  EXPECT_EQ(writer.stats().queued_bytes, 2 * kPageBytes);
  gate.allow(1);
  gate.wait_for_arrivals(2);  // the first one's bytes are free
  EXPECT_TRUE(writer.put(page_of(5).record()));
  EXPECT_FALSE(writer.put(page_of(6, 10000).record())) << "larger than the queue";
  gate.allow(2);
  ASSERT_TRUE(writer.flush(1e9));
  EXPECT_EQ(gate.keys_, (std::vector<PageKey>{key_of(1), key_of(2), key_of(5)}));
}

TEST(WriteBehind, CountsWhatTheSinkRefuses) {
  FakeClock clock;
  Gate gate;
  gate.refuses_ = true;
  gate.allow(2);
  WriteBehind writer(gate.sink(), {}, clock);
  ASSERT_TRUE(writer.put(page_of(1).record()));
  ASSERT_TRUE(writer.put(page_of(2).record()));
  EXPECT_TRUE(writer.flush(1e9));
  EXPECT_EQ(writer.stats().n_failed, 2u);
  EXPECT_EQ(writer.stats().n_written, 0u);
}

TEST(WriteBehind, AFlushEndsAtItsDeadline) {
  FakeClock clock;
  Gate gate;
  WriteBehind writer(gate.sink(), {}, clock);
  EXPECT_TRUE(writer.flush(0)) << "nothing to wait for";
  ASSERT_TRUE(writer.put(page_of(1).record()));
  EXPECT_FALSE(writer.flush(0));
  std::atomic<bool> returned{false};
  std::thread mover([&] {
    while (!returned) {
      clock.advance(0.01);
      std::this_thread::yield();
    }
  });
  EXPECT_FALSE(writer.flush(3)) << "the sink takes nothing before this returns";
  returned = true;
  mover.join();
  gate.allow(1);
}

TEST(WriteBehind, TheDestructorDrainsTheQueue) {
  FakeClock clock;
  Gate gate;
  {
    WriteBehind writer(gate.sink(), {}, clock);
    for (std::uint64_t n = 1; n <= 5; ++n) ASSERT_TRUE(writer.put(page_of(n).record()));
    gate.allow(5);
  }
  EXPECT_EQ(gate.keys_.size(), 5u);
}

/// Tells when it has been asked, which the destructor is the first to do.
class AskedClock final : public Clock {
 public:
  double now_seconds() const override {
    const std::lock_guard lock(mutex_);
    was_asked_ = true;
    changed_.notify_all();
    return now_;
  }
  void advance_once_asked(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return was_asked_; });
    now_ += seconds;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool was_asked_ = false;
  double now_ = 0;
};

TEST(WriteBehind, TheDestructorDropsWhatIsLeftAtTheDeadline) {
  AskedClock clock;
  int n_taken = 0;
  {
    WriteBehind writer(
        [&](const PageRecord&) -> Status {
          ++n_taken;
          clock.advance_once_asked(2);
          return {};
        },
        {.drain_seconds = 5}, clock);
    for (std::uint64_t n = 1; n <= 8; ++n) ASSERT_TRUE(writer.put(page_of(n).record()));
  }
  EXPECT_EQ(n_taken, 3) << "they begin at 0, 2 and 4 s; the next one would at 6 s";
}

TEST_F(TierTest, WriteBehindADiskTier) {
  const auto tier = open_tier();
  {
    WriteBehind writer([&](const PageRecord& record) { return tier->put(record); }, {}, clock_);
    for (std::uint64_t n = 1; n <= 30; ++n) ASSERT_TRUE(writer.put(page_of(n).record()));
    ASSERT_TRUE(writer.flush(1e9));
    EXPECT_EQ(writer.stats().n_written, 30u);
  }
  for (std::uint64_t n = 1; n <= 30; ++n) EXPECT_EQ(get(*tier, page_of(n)), GetOutcome::kHit);
}

}  // namespace
}  // namespace kvasir::cache
