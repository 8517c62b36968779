#include "cache/prefix/evicted_keys.h"

namespace kvasir::cache {

void EvictedKeys::remember(const PageKey& key, double last_use_seconds) {
  last_[key] = {.number = ++n_remembered_, .last_use_seconds = last_use_seconds};
  calls_.emplace_back(key, n_remembered_);
  if (calls_.size() <= limit_) return;
  const auto [oldest, number] = calls_.front();
  calls_.pop_front();
  const auto found = last_.find(oldest);
  if (found != last_.end() && found->second.number == number) last_.erase(found);
}

std::optional<double> EvictedKeys::forget(const PageKey& key) {
  const auto found = last_.find(key);
  if (found == last_.end()) return std::nullopt;
  const double last_use_seconds = found->second.last_use_seconds;
  last_.erase(found);
  return last_use_seconds;
}

void EvictedKeys::clear() {
  calls_.clear();
  last_.clear();
}

}  // namespace kvasir::cache
