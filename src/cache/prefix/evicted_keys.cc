#include "cache/prefix/evicted_keys.h"

namespace kvasir::cache {

void EvictedKeys::remember(const PageKey& key) {
  last_[key] = ++n_remembered_;
  calls_.emplace_back(key, n_remembered_);
  if (calls_.size() <= limit_) return;
  const auto [oldest, number] = calls_.front();
  calls_.pop_front();
  const auto found = last_.find(oldest);
  if (found != last_.end() && found->second == number) last_.erase(found);
}

void EvictedKeys::clear() {
  calls_.clear();
  last_.clear();
}

}  // namespace kvasir::cache
