// A few threads that do what may block, so that whoever asked need not wait longer than it wants.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvasir::cache {

/// Threads: any may submit.
class ReadPool {
 public:
  /// `scratch` belongs to the thread that runs the job and keeps its size between jobs.
  using Job = std::function<void(std::vector<std::uint8_t>& scratch)>;

  /// The threads start with the first job. Requires: n_threads_max >= 1.
  explicit ReadPool(int n_threads_max);
  /// Waits for the jobs that run; those that wait are dropped.
  ~ReadPool();
  ReadPool(const ReadPool&) = delete;
  ReadPool& operator=(const ReadPool&) = delete;

  /// Runs `job` some time, in the order of submission. False: the system gives no thread, and the
  /// job is not taken. `job` must not throw.
  bool submit(Job job);

 private:
  void work();
  void start_threads();  // mutex_ is held

  const int n_threads_max_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::vector<std::thread> threads_;
  bool stopping_ = false;
};

}  // namespace kvasir::cache
