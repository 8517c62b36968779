// Fork-join threads for kernels.
//
// A region is a number of tasks. Each thread owns a stretch of them, takes these in order, and then
// helps with the stretches of others; the region ends when every task is done. A thread that the
// system holds up therefore delays nobody but the task it is in: the others do its work, and it
// finds the region gone. Stretches keep a thread in one stream of memory and on its own cache line.
//
// Threads: one caller at a time (the engine thread), thread 0 of the pool. Workers spin for a short
// while after each region, because the next one usually follows within microseconds, and then park
// on a condition. Source: ADR 0005.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
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
  /// `body` must not throw and must not open another region (checked).
  template <class Body>
  void for_tasks(int n_tasks, Body&& body) {
    run_region(Sharing::kAnyThread, n_tasks, erase(body), context_of(body));
  }

  /// Calls `body(thread_idx)` once on each of `n_threads()` threads and returns when all are done:
  /// for steps that `barrier` separates. Everything else is better off with tasks.
  template <class Body>
  void run(Body&& body) {
    const auto one_per_thread = [&](int, int thread_idx) { body(thread_idx); };
    run_region(Sharing::kOwnThread, n_threads_, erase(one_per_thread), context_of(one_per_thread));
  }

  /// Waits inside a `run` body until every thread has arrived: a spin barrier. What one thread
  /// wrote before it, all see after it.
  void barrier();

  /// Splits `[0, n)` into chunks of `chunk`, the tasks of a region: `body(begin, end)`.
  /// Requires: chunk >= 1.
  template <class Body>
  void parallel_for(std::int64_t n, std::int64_t chunk, Body&& body) {
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
  using Erased = void (*)(void* context, int task_idx, int thread_idx);
  enum class Sharing : std::uint8_t { kAnyThread, kOwnThread };

  /// One thread's tasks, and all that the thread reads to begin a region: one cache line.
  struct alignas(64) Stretch {
    /// Region number << 32 | tasks left. Whoever lowers it owns a task, and the fields below (and
    /// the region) stand still until that task is done.
    std::atomic<std::uint64_t> ticket{0};
    int end_task = 0;
    Erased function = nullptr;
    void* context = nullptr;
  };

  template <class Body>
  static Erased erase(Body&) {
    return [](void* context, int task_idx, int thread_idx) {
      (*static_cast<Body*>(context))(task_idx, thread_idx);
    };
  }
  template <class Body>
  static void* context_of(Body& body) {
    return const_cast<void*>(static_cast<const void*>(&body));
  }

  void run_region(Sharing sharing, int n_tasks, Erased function, void* context);
  void announce(std::uint32_t region, int n_tasks, Erased function, void* context);
  void work_on(std::uint32_t region, int thread_idx);
  std::uint32_t wait_for_region_after(std::uint32_t seen, int thread_idx);
  void worker(int thread_idx);

  int n_threads_;  // set in the constructor
  const int spins_before_yield_;
  std::vector<std::thread> workers_;
  std::unique_ptr<Stretch[]> stretches_;  // [n_threads]

  alignas(64) std::atomic<int> n_tasks_left_{0};
  alignas(64) std::atomic<int> barrier_arrived_{0};
  alignas(64) std::atomic<std::uint32_t> barrier_generation_{0};
  std::uint32_t region_ = 0;  // the newest; its lowest bit says Sharing
  std::atomic<bool> stopping_{false};
  std::atomic<bool> in_region_{false};  // only to catch nested and concurrent calls

  std::mutex mutex_;  // guards parking only
  std::condition_variable wake_;
  std::atomic<int> n_parked_{0};
};

}  // namespace kvasir
