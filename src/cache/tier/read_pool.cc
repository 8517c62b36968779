#include "cache/tier/read_pool.h"

#include <system_error>
#include <utility>

#include "base/check.h"

namespace kvasir::cache {

ReadPool::ReadPool(int n_threads_max) : n_threads_max_(n_threads_max) {
  KVASIR_CHECK(n_threads_max >= 1);
}

ReadPool::~ReadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReadPool::start_threads() {
  try {
    while (threads_.size() < static_cast<std::size_t>(n_threads_max_)) {
      threads_.emplace_back([this] { work(); });
    }
  } catch (const std::system_error&) {
    // As many as there are; the next job asks again.
  }
}

bool ReadPool::submit(Job job) {
  {
    const std::lock_guard lock(mutex_);
    start_threads();
    if (threads_.empty()) return false;
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
  return true;
}

void ReadPool::work() {
  std::vector<std::uint8_t> scratch;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job(scratch);
    lock.lock();
  }
}

}  // namespace kvasir::cache
