// Fork-join threads for kernels: every thread runs the same function, the caller among them.
//
// Threads: one caller at a time (the engine thread). Workers spin for a short while after each
// region, because the next one usually follows within microseconds, and then park on a condition.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
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

  /// Calls `body(thread_idx)` once on each of `n_threads()` threads and returns when all are done.
  /// `body` must not throw and must not call `run` again (checked).
  template <class Body>
  void run(Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased([](void* context, int thread_idx) { (*static_cast<Plain*>(context))(thread_idx); },
               const_cast<void*>(static_cast<const void*>(&body)));
  }

  /// Waits inside a `run` body until every thread has arrived: a spin barrier. What one thread
  /// wrote before it, all see after it.
  void barrier();

  /// Splits `[0, n)` into chunks of `chunk` that threads take in turn: `body(begin, end)`.
  /// Which thread gets which chunk varies; results must not depend on it.
  /// Requires: chunk >= 1; not called inside a `run` body.
  template <class Body>
  void parallel_for(std::int64_t n, std::int64_t chunk, Body&& body) {
    KVASIR_CHECK(chunk >= 1);
    if (n <= 0) return;
    if (n_threads_ == 1 || n <= chunk) {
      body(std::int64_t{0}, n);
      return;
    }
    std::atomic<std::int64_t> next{0};
    run([&](int) {
      while (true) {
        const std::int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
        if (begin >= n) return;
        body(begin, n - begin > chunk ? begin + chunk : n);
      }
    });
  }

  /// CPUs this process may use: the affinity mask and the cgroup v2 quotas, at least 1.
  static int usable_cpus();

 private:
  using Erased = void (*)(void*, int);
  void run_erased(Erased function, void* context);
  void worker(int thread_idx);

  int n_threads_;  // set in the constructor
  const int spins_before_yield_;
  std::vector<std::thread> workers_;

  // A region is announced by raising `generation_`; workers count themselves into `n_done_`.
  alignas(64) std::atomic<std::uint64_t> generation_{0};
  alignas(64) std::atomic<int> n_done_{0};
  alignas(64) std::atomic<int> barrier_arrived_{0};
  alignas(64) std::atomic<std::uint32_t> barrier_generation_{0};
  Erased function_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> in_region_{false};  // only to catch nested and concurrent calls

  std::mutex mutex_;  // guards parking only
  std::condition_variable wake_;
  std::atomic<int> n_parked_{0};
};

}  // namespace kvasir
