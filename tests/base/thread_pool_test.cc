#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

namespace kvasir {
namespace {

TEST(ThreadPool, RunsTheBodyOnceOnEveryThread) {
  for (const int n_threads : {1, 2, 3, 4, 9}) {
    ThreadPool pool(n_threads);
    ASSERT_EQ(pool.n_threads(), n_threads);
    std::vector<int> n_calls(static_cast<std::size_t>(n_threads), 0);
    pool.run([&](int thread_idx) { ++n_calls[static_cast<std::size_t>(thread_idx)]; });
    EXPECT_EQ(n_calls, std::vector<int>(static_cast<std::size_t>(n_threads), 1));
  }
}

TEST(ThreadPool, TheCallerIsThreadZero) {
  ThreadPool pool(3);
  std::vector<std::thread::id> ids(3);
  pool.run([&](int thread_idx) {
    ids[static_cast<std::size_t>(thread_idx)] = std::this_thread::get_id();
  });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
  EXPECT_NE(ids[2], ids[0]);
  EXPECT_NE(ids[1], ids[2]);
}

TEST(ThreadPool, WhatABodyWroteIsVisibleAfterRunAndInTheNextRegion) {
  ThreadPool pool(4);
  std::vector<std::int64_t> values(4, 0);
  for (std::int64_t region = 0; region < 5000; ++region) {
    // Each thread reads what its neighbour wrote in the region before.
    const std::vector<std::int64_t> before = values;
    pool.run([&](int thread_idx) {
      const auto me = static_cast<std::size_t>(thread_idx);
      values[me] = before[(me + 1) % 4] + 1;
    });
    for (const std::int64_t value : values) ASSERT_EQ(value, region + 1);
  }
}

TEST(ThreadPool, ABarrierSeparatesWritesFromReads) {
  for (const int n_threads : {1, 2, 5}) {
    ThreadPool pool(n_threads);
    const auto n = static_cast<std::size_t>(n_threads);
    std::vector<int> values(n, -1);
    std::atomic<int> n_wrong{0};
    pool.run([&](int thread_idx) {
      for (int round = 0; round < 500; ++round) {
        values[static_cast<std::size_t>(thread_idx)] = round;
        pool.barrier();
        for (const int value : values) n_wrong += value != round;
        pool.barrier();
      }
    });
    EXPECT_EQ(n_wrong.load(), 0) << n_threads << " threads";
  }
}

TEST(ThreadPool, EveryTaskRunsOnceInEveryRegion) {
  for (const int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    for (int region = 0; region < 2000; ++region) {
      // Regions of changing size, one right after the other: who comes late must find nothing.
      const int n_tasks = region * 7 % 23;
      std::vector<std::atomic<int>> n_visits(static_cast<std::size_t>(n_tasks));
      std::atomic<int> n_bad_threads{0};
      pool.for_tasks(n_tasks, [&](int task_idx, int thread_idx) {
        ++n_visits[static_cast<std::size_t>(task_idx)];
        n_bad_threads += thread_idx < 0 || thread_idx >= n_threads;
      });
      for (const std::atomic<int>& n : n_visits) ASSERT_EQ(n.load(), 1) << n_tasks;
      ASSERT_EQ(n_bad_threads.load(), 0);
    }
  }
}

TEST(ThreadPool, AThreadStuckInATaskKeepsNoOtherTaskFromBeingDone) {
  ThreadPool pool(3);
  constexpr int kTasks = 30;
  for (int stuck = 0; stuck < 3; ++stuck) {
    std::atomic<int> n_done{0};
    std::atomic<bool> somebody_is_stuck{false};
    pool.for_tasks(kTasks, [&](int, int thread_idx) {
      if (thread_idx == stuck && !somebody_is_stuck.exchange(true)) {
        while (n_done.load() < kTasks - 1) std::this_thread::yield();
      }
      ++n_done;
    });
    EXPECT_EQ(n_done.load(), kTasks);
  }
}

TEST(ThreadPool, TasksAndOwnTasksAlternate) {
  ThreadPool pool(3);
  for (int region = 0; region < 1000; ++region) {
    std::vector<int> n_calls(3, 0);
    pool.run([&](int thread_idx) { ++n_calls[static_cast<std::size_t>(thread_idx)]; });
    ASSERT_EQ(n_calls, std::vector<int>(3, 1));
    std::atomic<int> n_tasks{0};
    pool.for_tasks(5, [&](int, int) { ++n_tasks; });
    ASSERT_EQ(n_tasks.load(), 5);
  }
}

TEST(ThreadPool, ParallelForCoversEveryIndexOnce) {
  for (const int n_threads : {1, 2, 4}) {
    ThreadPool pool(n_threads);
    for (const std::int64_t n : {0, 1, 2, 63, 64, 65, 1000}) {
      for (const std::int64_t chunk : {1, 7, 64, 5000}) {
        std::vector<int> n_visits(static_cast<std::size_t>(n), 0);
        std::atomic<int> n_bad_ranges{0};
        pool.parallel_for(n, chunk, [&](std::int64_t begin, std::int64_t end) {
          n_bad_ranges += !(0 <= begin && begin < end && end <= n);
          for (std::int64_t i = begin; i < end; ++i) ++n_visits[static_cast<std::size_t>(i)];
        });
        EXPECT_EQ(n_bad_ranges.load(), 0);
        EXPECT_EQ(n_visits, std::vector<int>(static_cast<std::size_t>(n), 1)) << n << '/' << chunk;
      }
    }
  }
}

TEST(ThreadPool, ParallelForOfNothingCallsNothing) {
  ThreadPool pool(2);
  pool.parallel_for(0, 1, [](std::int64_t, std::int64_t) { FAIL(); });
  pool.parallel_for(-5, 1, [](std::int64_t, std::int64_t) { FAIL(); });
}

TEST(ThreadPool, LoopsInsideAChunkSumUp) {
  ThreadPool pool(3);
  const std::int64_t n_rows = 37, n_cols = 53;
  std::vector<std::int64_t> row_sums(static_cast<std::size_t>(n_rows), 0);
  pool.parallel_for(n_rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t col = 0; col < n_cols; ++col) {
        row_sums[static_cast<std::size_t>(row)] += row * n_cols + col;
      }
    }
  });
  const std::int64_t n = n_rows * n_cols;
  EXPECT_EQ(std::accumulate(row_sums.begin(), row_sums.end(), std::int64_t{0}), n * (n - 1) / 2);
}

TEST(ThreadPool, AConstBodyAndATemporaryOneWork) {
  ThreadPool pool(2);
  std::atomic<int> n_calls{0};
  const auto body = [&](int) { ++n_calls; };
  pool.run(body);
  pool.run([&](int) { ++n_calls; });
  EXPECT_EQ(n_calls.load(), 4);
}

TEST(ThreadPool, BodiesThatAreTooLargeOrNoPlainBytesWork) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum{0};
  std::array<std::int64_t, 40> large{};
  large[39] = 7;
  const std::vector<std::int64_t> owner = {5};
  for (int region = 0; region < 200; ++region) {
    pool.for_tasks(9, [large, &sum](int task_idx, int) { sum += large[39] * task_idx; });
    pool.for_tasks(9, [owner, &sum](int task_idx, int) { sum += owner[0] * task_idx; });
  }
  EXPECT_EQ(sum.load(), 200 * (7 + 5) * 36);
}

TEST(ThreadPool, MoreThreadsThanCoresFinish) {
  ThreadPool pool(2 * ThreadPool::usable_cpus() + 7);
  std::atomic<int> n_calls{0};
  for (int region = 0; region < 50; ++region) {
    pool.run([&](int) {
      ++n_calls;
      pool.barrier();
      ++n_calls;
    });
  }
  EXPECT_EQ(n_calls.load(), 50 * 2 * pool.n_threads());
}

TEST(ThreadPool, ParkedWorkersWakeUpForTheNextRegion) {
  ThreadPool pool(4);
  std::atomic<int> n_calls{0};
  for (const int idle_ms : {0, 1, 30, 60}) {
    // Long enough for the spinning to end; whether a worker has parked by then is its own affair.
    std::this_thread::sleep_for(std::chrono::milliseconds(idle_ms));
    pool.run([&](int) { ++n_calls; });
  }
  EXPECT_EQ(n_calls.load(), 16);
}

TEST(ThreadPool, IdlePoolsGoAway) {
  for (int i = 0; i < 20; ++i) {
    ThreadPool never_used(3);
    ThreadPool used(2);
    used.run([](int) {});
    if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(ThreadPool, TwoPoolsWorkSideBySide) {
  std::atomic<int> n_calls{0};
  const auto work = [&] {
    ThreadPool pool(2);
    for (int region = 0; region < 500; ++region) pool.run([&](int) { ++n_calls; });
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(n_calls.load(), 2 * 2 * 500);
}

TEST(ThreadPool, UsableCpusIsAtLeastOne) { EXPECT_GE(ThreadPool::usable_cpus(), 1); }

TEST(ThreadPoolDeathTest, ANestedRunIsCaughtInsteadOfHanging) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.run([&](int) { pool.run([](int) {}); });
      },
      "broken invariant");
}

TEST(ThreadPoolDeathTest, AChunkOfZeroIsCaughtInsteadOfLoopingForEver) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.parallel_for(10, 0, [](std::int64_t, std::int64_t) {});
      },
      "broken invariant");
}

}  // namespace
}  // namespace kvasir
