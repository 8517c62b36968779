#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <system_error>

#include "base/check.h"
#include "base/env.h"

namespace kvasir {
namespace {

/// Spins (each a pause of 10 to 40 ns) before a waiting thread yields its core. With a core for
/// every thread that is late: a yield hands the rest of the time slice to whoever else is running,
/// and getting it back takes milliseconds where a region takes microseconds. With fewer cores than
/// threads it is early: the thread waited for may need this very core.
constexpr int kSpinsBeforeYield = 50000;
constexpr int kSpinsBeforeYieldCrowded = 200;
/// Spins before an idle worker parks: longer than the gap between two regions of a forward pass.
constexpr int kSpinsBeforePark = 40000;

/// Spins before a thread that has done its stretch looks at those of others: a look takes a line
/// from a core that is about to use it, and mostly finds nothing.
constexpr int kSpinsBeforeHelp = 24;

/// Region numbers go up by two; the lowest bit marks one whose tasks stay with their own thread.
constexpr std::uint32_t kOwnThreadBit = 1, kNextRegion = 2;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Returns once `done()`; yields the core after every `spins_before_yield` spins.
template <class Done>
void spin_until(int spins_before_yield, Done done) {
  for (int n_spins = 0; !done(); ++n_spins) {
    cpu_relax();
    if (n_spins >= spins_before_yield) {
      sched_yield();
      n_spins = 0;
    }
  }
}

}  // namespace

ThreadPool::ThreadPool(int n_threads)
    : n_threads_(n_threads),
      spins_before_yield_(n_threads > usable_cpus() ? kSpinsBeforeYieldCrowded
                                                    : kSpinsBeforeYield) {
  KVASIR_CHECK(n_threads >= 1);
  stretches_ = std::make_unique<Stretch[]>(static_cast<std::size_t>(n_threads));
  workers_.reserve(static_cast<std::size_t>(n_threads) - 1);
  try {
    for (int thread_idx = 1; thread_idx < n_threads; ++thread_idx) {
      workers_.emplace_back([this, thread_idx] { worker(thread_idx); });
    }
  } catch (const std::system_error&) {
    // A limit on processes. The workers first read n_threads_ after the first region's
    // announcement.
    n_threads_ = static_cast<int>(workers_.size()) + 1;
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  announce(Sharing::kOwnThread, 0, nullptr, nullptr, 0);
  for (std::thread& thread : workers_) thread.join();
}

/// Gives every thread its stretch of a new region; the caller's first task is taken already.
void ThreadPool::announce(Sharing sharing, int n_tasks, Erased function, const void* body,
                          std::size_t body_bytes) {
  region_ = (region_ & ~kOwnThreadBit) + kNextRegion;
  if (sharing == Sharing::kOwnThread) region_ |= kOwnThreadBit;
  const std::int64_t n = n_tasks;
  // Backwards: the others begin while the caller is still at it.
  for (int i = n_threads_ - 1; i >= 0; --i) {
    Stretch& stretch = stretches_[static_cast<std::size_t>(i)];
    const auto begin = static_cast<int>(n * i / n_threads_);
    stretch.end_task = static_cast<int>(n * (i + 1) / n_threads_);
    stretch.function = function;
    if (body_bytes > 0) std::memcpy(stretch.body, body, body_bytes);
    const int n_left = std::max(0, stretch.end_task - begin - (i == 0 ? 1 : 0));
    stretch.ticket.store(std::uint64_t{region_} << 32 | static_cast<std::uint32_t>(n_left),
                         std::memory_order_release);
  }
  // Whoever parks at this very moment may be missed: run_region looks again before it waits.
  // Threads that meet in barriers wait for each other without coming back there.
  if (sharing == Sharing::kOwnThread || n_parked_.load(std::memory_order_relaxed) > 0) {
    wake_parked();
  }
}

void ThreadPool::wake_parked() {
  // A read-modify-write: either it sees who is about to park, or they see the tickets before it.
  if (n_parked_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  wake_.notify_all();
}

void ThreadPool::run_region(Sharing sharing, int n_tasks, Erased function, const void* body,
                            std::size_t body_bytes) {
  // A nested call would wait for itself; two callers would mix their regions.
  KVASIR_CHECK(!in_region_.exchange(true, std::memory_order_relaxed));
  if (n_threads_ == 1) {
    for (int task_idx = 0; task_idx < n_tasks; ++task_idx) function(body, task_idx, 0);
  } else if (n_tasks > 0) {
    announce(sharing, n_tasks, function, body, body_bytes);
    int n_own = 0;
    if (stretches_[0].end_task > 0) {
      function(body, 0, 0);
      n_own = 1 + take_tasks(region_, 0, 0);
    }
    const auto others_are_done = [&] {
      return n_done_by_others_.load(std::memory_order_acquire) ==
             n_expected_of_others_ + static_cast<std::uint64_t>(n_tasks - n_own);
    };
    for (int n_spins = 0; n_spins < kSpinsBeforeHelp && !others_are_done(); ++n_spins) cpu_relax();
    if (!others_are_done()) {
      wake_parked();
      if (sharing == Sharing::kAnyThread) n_own += help_others(region_, 0);
      spin_until(spins_before_yield_, others_are_done);
    }
    n_expected_of_others_ += static_cast<std::uint64_t>(n_tasks - n_own);
  }
  in_region_.store(false, std::memory_order_relaxed);
}

/// Does tasks of one thread's stretch until none is left to take; how many. None if the region has
/// ended meanwhile.
int ThreadPool::take_tasks(std::uint32_t region, int owner_idx, int thread_idx) {
  // A thread that has a task of the region may read its own stretch: it has seen its ticket.
  const Stretch& own = stretches_[static_cast<std::size_t>(thread_idx)];
  Stretch& stretch = stretches_[static_cast<std::size_t>(owner_idx)];
  int n_done = 0;
  std::uint64_t ticket = stretch.ticket.load(std::memory_order_acquire);
  while (ticket >> 32 == region && static_cast<std::uint32_t>(ticket) != 0) {
    if (!stretch.ticket.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) {
      continue;  // `ticket` is the newer value
    }
    const int n_left = static_cast<int>(static_cast<std::uint32_t>(ticket));
    own.function(own.body, stretch.end_task - n_left, thread_idx);
    ++n_done;
    ticket = stretch.ticket.load(std::memory_order_acquire);
  }
  return n_done;
}

int ThreadPool::help_others(std::uint32_t region, int thread_idx) {
  int n_done = 0;
  for (int i = 1; i < n_threads_; ++i) {
    n_done += take_tasks(region, (thread_idx + i) % n_threads_, thread_idx);
  }
  return n_done;
}

void ThreadPool::barrier() {
  if (n_threads_ == 1) return;
  const std::uint32_t generation = barrier_generation_.load(std::memory_order_relaxed);
  if (barrier_arrived_.fetch_add(1, std::memory_order_acq_rel) == n_threads_ - 1) {
    barrier_arrived_.store(0, std::memory_order_relaxed);
    barrier_generation_.fetch_add(1, std::memory_order_release);
    return;
  }
  spin_until(spins_before_yield_,
             [&] { return barrier_generation_.load(std::memory_order_acquire) != generation; });
}

std::uint32_t ThreadPool::region_of(int thread_idx) const {
  const Stretch& stretch = stretches_[static_cast<std::size_t>(thread_idx)];
  return static_cast<std::uint32_t>(stretch.ticket.load(std::memory_order_acquire) >> 32);
}

/// Spins, then parks, until the thread's stretch is of another region than `seen`; that one.
std::uint32_t ThreadPool::wait_for_region_after(std::uint32_t seen, int thread_idx) {
  for (int n_spins = 0; region_of(thread_idx) == seen; ++n_spins) {
    cpu_relax();
    if (n_spins < kSpinsBeforePark) {
      if (n_spins % spins_before_yield_ == spins_before_yield_ - 1) sched_yield();
      continue;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    n_parked_.fetch_add(1, std::memory_order_acq_rel);
    wake_.wait(lock, [&] { return region_of(thread_idx) != seen; });
    n_parked_.fetch_sub(1, std::memory_order_acq_rel);
  }
  return region_of(thread_idx);
}

void ThreadPool::worker(int thread_idx) {
  std::uint32_t region = 0;
  while (true) {
    region = wait_for_region_after(region, thread_idx);
    if (stopping_.load()) return;
    // Reported at once: mostly it is all that the caller waits for.
    const auto report = [&](int n_done) {
      if (n_done == 0) return;
      n_done_by_others_.fetch_add(static_cast<std::uint64_t>(n_done), std::memory_order_acq_rel);
    };
    report(take_tasks(region, thread_idx, thread_idx));
    if ((region & kOwnThreadBit) != 0) continue;
    int n_spins = 0;
    for (; n_spins < kSpinsBeforeHelp && region_of(thread_idx) == region; ++n_spins) cpu_relax();
    if (n_spins == kSpinsBeforeHelp) report(help_others(region, thread_idx));
  }
}

namespace {

/// CPUs that one cgroup's `cpu.max` allows: "max 100000", or quota and period in microseconds
/// ("150000 100000" is 1.5). No limit where there is no such file.
double cgroup_cpus(const std::string& directory) {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  const Result<std::string> text = Env::posix().read_file(directory + "/cpu.max", 4096);
  if (!text) return kNoLimit;
  double quota = 0, period = 0;
  if (std::sscanf(text->c_str(), "%lf %lf", &quota, &period) != 2) return kNoLimit;
  return quota > 0 && period > 0 ? quota / period : kNoLimit;
}

/// This process's cgroup v2 path below the mount point: "" for the root or where there is none.
std::string own_cgroup() {
  const Result<std::string> text = Env::posix().read_file("/proc/self/cgroup", 1 << 16);
  if (!text) return "";
  const auto begin = text->rfind("0::/", 0) == 0 ? 0 : text->find("\n0::/");
  if (begin == std::string::npos) return "";
  const auto slash = text->find('/', begin);
  std::string path = text->substr(slash, text->find('\n', slash) - slash);
  return path == "/" ? "" : path;
}

}  // namespace

int ThreadPool::usable_cpus() {
  int n_cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) n_cpus = std::max(1, CPU_COUNT(&set));
  // The tightest quota between this process's cgroup and the root holds.
  std::string path = own_cgroup();
  while (true) {
    const double limit = std::ceil(cgroup_cpus("/sys/fs/cgroup" + path));
    if (limit < n_cpus) n_cpus = std::max(1, static_cast<int>(limit));
    if (path.empty()) return n_cpus;
    path.resize(path.rfind('/'));
  }
}

}  // namespace kvasir
