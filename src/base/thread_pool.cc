#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "base/check.h"

namespace kvasir {
namespace {

/// Spins before a waiting thread yields (more threads than cores) and before it parks (idle).
constexpr int kSpinsBeforeYield = 2000;
constexpr int kSpinsBeforePark = 40000;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Returns once `done()`; yields the core when it takes longer than a barrier should.
template <class Done>
void spin_until(Done done) {
  for (int n_spins = 0; !done(); ++n_spins) {
    cpu_relax();
    if (n_spins >= kSpinsBeforeYield) {
      sched_yield();
      n_spins = kSpinsBeforeYield / 2;
    }
  }
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads) {
  KVASIR_CHECK(n_threads >= 1);
  workers_.reserve(static_cast<std::size_t>(n_threads) - 1);
  for (int thread_idx = 1; thread_idx < n_threads; ++thread_idx) {
    workers_.emplace_back([this, thread_idx] { worker(thread_idx); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  generation_.fetch_add(1);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run_erased(Erased function, void* context) {
  if (n_threads_ == 1) {
    function(context, 0);
    return;
  }
  function_ = function;
  context_ = context;
  n_done_.store(0, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (n_parked_.load(std::memory_order_seq_cst) > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  function(context, 0);
  spin_until([&] { return n_done_.load(std::memory_order_acquire) == n_threads_ - 1; });
}

void ThreadPool::barrier() {
  if (n_threads_ == 1) return;
  const std::uint32_t generation = barrier_generation_.load(std::memory_order_relaxed);
  if (barrier_arrived_.fetch_add(1, std::memory_order_acq_rel) == n_threads_ - 1) {
    barrier_arrived_.store(0, std::memory_order_relaxed);
    barrier_generation_.fetch_add(1, std::memory_order_release);
    return;
  }
  spin_until([&] { return barrier_generation_.load(std::memory_order_acquire) != generation; });
}

void ThreadPool::worker(int thread_idx) {
  std::uint64_t seen = 0;
  while (true) {
    int n_spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen) {
      cpu_relax();
      if (++n_spins < kSpinsBeforePark) {
        if (n_spins % kSpinsBeforeYield == 0) sched_yield();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      n_parked_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
      n_parked_.fetch_sub(1, std::memory_order_seq_cst);
      break;
    }
    ++seen;
    if (stopping_.load()) return;
    function_(context_, thread_idx);
    n_done_.fetch_add(1, std::memory_order_acq_rel);
  }
}

int ThreadPool::usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int n_cpus = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) n_cpus = std::max(1, CPU_COUNT(&set));
  // cgroup v2: "max 100000" or "150000 100000" (quota and period, microseconds).
  std::ifstream cpu_max("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (cpu_max >> quota >> period && quota != "max" && period > 0) {
    const double limit = std::strtod(quota.c_str(), nullptr) / period;
    if (limit > 0) n_cpus = std::clamp(static_cast<int>(std::ceil(limit)), 1, n_cpus);
  }
  return n_cpus;
}

}  // namespace kvasir
