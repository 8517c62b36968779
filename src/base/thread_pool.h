// Fork-join threads for kernels.
//
// A region is a number of tasks. Each thread owns a stretch of them, takes these in order, and then
// helps with the stretches of others; the region ends when every task is done. A thread that the
// system holds up therefore delays nobody but the task it is in: the others do its work, and it
// finds the region gone. Stretches keep a thread in one stream of memory and on its own cache
// lines.
//
// Between cores a cache line travels 65 to 300 ns, so a region moves as few as it can: to a worker
// its stretch, in which the body lies as well; from it the number of tasks it did. What others
// left is looked for only after a moment in which they mostly finish.
//
// Threads: one caller at a time (the engine thread), thread 0 of the pool. Workers spin for a short
// while after each region, because the next one usually follows within microseconds, and then park
// on a condition. Source: ADR 0005.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace kvasir {

class ThreadPool {
 public:
  /// `n_threads` >= 1 counts the caller; 1 starts no thread. Where the system refuses to start so
  /// many, the pool has as many as it got.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return n_threads_; }

  /// Calls `body(task_idx, thread_idx)` once for every task in [0, n_tasks) and returns when all
  /// are done. Which thread gets which task varies; results must not depend on it. Neighbouring
  /// tasks mostly go to one thread, in ascending order.
  /// `body` must not throw and must not open another region (checked). A small one that captures by
  /// value spares the other threads a look at the caller's stack.
  template <class Body>
  void for_tasks(int n_tasks, const Body& body) {
    run_tasks(Sharing::kAnyThread, n_tasks, body);
  }

  /// Calls `body(thread_idx)` once on each of `n_threads()` threads and returns when all are done:
  /// for steps that `barrier` separates. Everything else is better off with tasks.
  template <class Body>
  void run(const Body& body) {
    run_tasks(Sharing::kOwnThread, n_threads_, [&](int, int thread_idx) { body(thread_idx); });
  }

  /// Waits inside a `run` body until every thread has arrived: a spin barrier. What one thread
  /// wrote before it, all see after it.
  void barrier();

  /// Splits `[0, n)` into chunks of `chunk`, the tasks of a region: `body(begin, end)`.
  /// Requires: chunk >= 1.
  template <class Body>
  void parallel_for(std::int64_t n, std::int64_t chunk, const Body& body) {
    KVASIR_CHECK(chunk >= 1);
    if (n <= 0) return;
    if (n_threads_ == 1 || n <= chunk) {
      body(std::int64_t{0}, n);
      return;
    }
    const std::int64_t n_chunks = (n + chunk - 1) / chunk;
    KVASIR_CHECK(n_chunks <= std::numeric_limits<int>::max());
    for_tasks(static_cast<int>(n_chunks), [&](int task_idx, int) {
      const std::int64_t begin = task_idx * chunk;
      body(begin, n - begin > chunk ? begin + chunk : n);
    });
  }

  /// CPUs this process may use: the affinity mask and the cgroup v2 quotas, at least 1.
  static int usable_cpus();

 private:
  using Erased = void (*)(const void* body, int task_idx, int thread_idx);
  enum class Sharing : std::uint8_t { kAnyThread, kOwnThread };

  static constexpr std::size_t kBodyBytes = 104;

  /// One thread's tasks, and all that the thread reads to begin a region: two neighbouring cache
  /// lines.
  struct alignas(128) Stretch {
    /// Region number << 32 | tasks left. Whoever lowers it owns a task, and until that task is done
    /// the region stands still, with the fields below in every stretch.
    std::atomic<std::uint64_t> ticket{0};
    int end_task = 0;
    Erased function = nullptr;
    alignas(8) std::byte body[kBodyBytes];  ///< function's
  };
  static_assert(sizeof(Stretch) == 128);

  template <class Body>
  void run_tasks(Sharing sharing, int n_tasks, const Body& body) {
    if constexpr (std::is_trivially_copyable_v<Body> && sizeof(Body) <= kBodyBytes &&
                  alignof(Body) <= 8) {
      const Erased function = [](const void* copy, int task_idx, int thread_idx) {
        (*static_cast<const Body*>(copy))(task_idx, thread_idx);
      };
      run_region(sharing, n_tasks, function, &body, sizeof(Body));
    } else {
      run_tasks(sharing, n_tasks,
                [&body](int task_idx, int thread_idx) { body(task_idx, thread_idx); });
    }
  }

  void run_region(Sharing sharing, int n_tasks, Erased function, const void* body,
                  std::size_t body_bytes);
  void announce(Sharing sharing, int n_tasks, Erased function, const void* body,
                std::size_t body_bytes);
  void wake_parked();
  int take_tasks(std::uint32_t region, int owner_idx, int thread_idx);
  int help_others(std::uint32_t region, int thread_idx);
  std::uint32_t region_of(int thread_idx) const;
  std::uint32_t wait_for_region_after(std::uint32_t seen, int thread_idx);
  void worker(int thread_idx);

  int n_threads_;  // set in the constructor
  const int spins_before_yield_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
  std::unique_ptr<Stretch[]> stretches_;  // [n_threads]

  // The caller's own.
  alignas(64) std::uint32_t region_ = 0;    // the newest; its lowest bit says Sharing
  std::uint64_t n_expected_of_others_ = 0;  // tasks that workers have done when it ends, ever
  std::atomic<bool> in_region_{false};      // only to catch nested and concurrent calls

  alignas(64) std::atomic<std::uint64_t> n_done_by_others_{0};  // tasks that workers did, ever
  alignas(64) std::atomic<int> barrier_arrived_{0};
  alignas(64) std::atomic<std::uint32_t> barrier_generation_{0};

  alignas(64) std::mutex mutex_;  // guards parking only
  std::condition_variable wake_;
  std::atomic<int> n_parked_{0};
};

}  // namespace kvasir
