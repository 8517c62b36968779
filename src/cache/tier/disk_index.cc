#include "cache/tier/disk_index.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir::cache {

DiskIndex::Rank DiskIndex::rank(const PageKey& key, const Entry& entry) const {
  return {followers_.contains(key), entry.use};
}

void DiskIndex::add_follower(const PageKey& parent, const PageKey& key) {
  const auto entry = entries_.find(parent);
  if (entry != entries_.end()) order_.erase(rank(parent, entry->second));
  followers_[parent].insert(key);
  if (entry != entries_.end()) order_.emplace(rank(parent, entry->second), parent);
}

void DiskIndex::drop_follower(const PageKey& parent, const PageKey& key) {
  const auto followers = followers_.find(parent);
  KVASIR_CHECK(followers != followers_.end());
  const auto entry = entries_.find(parent);
  if (entry != entries_.end()) order_.erase(rank(parent, entry->second));
  KVASIR_CHECK(followers->second.erase(key) == 1);
  if (followers->second.empty()) followers_.erase(followers);
  if (entry != entries_.end()) order_.emplace(rank(parent, entry->second), parent);
}

void DiskIndex::put(const PageKey& key, Entry entry) {
  erase(key, generation(key));
  entry.generation = next_generation_++;
  entry.use = next_use_++;
  bytes_ += entry.file_bytes;
  const PageKey parent = entry.parent;
  const auto [place, is_new] = entries_.emplace(key, entry);
  KVASIR_CHECK(is_new);
  order_.emplace(rank(key, place->second), key);
  add_follower(parent, key);
}

const DiskIndex::Entry* DiskIndex::find(const PageKey& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

std::uint64_t DiskIndex::generation(const PageKey& key) const {
  const Entry* entry = find(key);
  return entry == nullptr ? 0 : entry->generation;
}

void DiskIndex::touch(const PageKey& key, std::int64_t now_ns) {
  const auto found = entries_.find(key);
  KVASIR_CHECK(found != entries_.end());
  order_.erase(rank(key, found->second));
  found->second.use = next_use_++;
  found->second.last_used_ns = now_ns;
  order_.emplace(rank(key, found->second), key);
}

void DiskIndex::count_hit(const PageKey& key) {
  const auto found = entries_.find(key);
  KVASIR_CHECK(found != entries_.end());
  ++found->second.n_hits;
}

bool DiskIndex::erase(const PageKey& key, std::uint64_t generation) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.generation != generation) return false;
  const PageKey parent = found->second.parent;
  const PageKey erased = key;  // the caller's may lie in what goes now
  drop_follower(parent, erased);
  order_.erase(rank(erased, found->second));
  KVASIR_CHECK(bytes_ >= found->second.file_bytes);
  bytes_ -= found->second.file_bytes;
  entries_.erase(found);
  return true;
}

void DiskIndex::clear() {
  entries_.clear();
  order_.clear();
  followers_.clear();
  bytes_ = 0;
}

const PageKey* DiskIndex::victim(const PageKey* keep) const {
  auto place = order_.begin();
  if (place != order_.end() && keep != nullptr && place->second == *keep) ++place;
  if (place == order_.end()) return nullptr;
  // With followers, and not first: all that have none are kept. (First: they follow each other in a
  // circle, which no writer of ours makes.)
  const bool has_followers = place->first.first;
  return has_followers && place != order_.begin() ? nullptr : &place->second;
}

void DiskIndex::raise_last_use(const PageKey& key, std::int64_t last_used_ns) {
  const auto found = entries_.find(key);
  KVASIR_CHECK(found != entries_.end());
  found->second.last_used_ns = std::max(found->second.last_used_ns, last_used_ns);
}

void DiskIndex::reorder() {
  std::vector<PageKey> keys = by_use();
  std::stable_sort(keys.begin(), keys.end(), [&](const PageKey& a, const PageKey& b) {
    return find(a)->last_used_ns < find(b)->last_used_ns;
  });
  for (const PageKey& key : keys) touch(key, find(key)->last_used_ns);
}

std::vector<PageKey> DiskIndex::by_use() const {
  std::vector<std::pair<std::uint64_t, PageKey>> uses;
  uses.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) uses.emplace_back(entry.use, key);
  std::sort(uses.begin(), uses.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PageKey> keys;
  keys.reserve(uses.size());
  for (const auto& use : uses) keys.push_back(use.second);
  return keys;
}

const PageKey* DiskIndex::nearest_follower(const PageKey& parent,
                                           std::span<const TokenId> tokens) const {
  const auto found = followers_.find(parent);
  if (found == followers_.end()) return nullptr;
  const PageKey* nearest = nullptr;
  std::ptrdiff_t most = 0;
  for (const PageKey& key : found->second) {
    const std::vector<TokenId>& theirs = find(key)->tokens;
    const auto [end, unused] =
        std::mismatch(tokens.begin(), tokens.end(), theirs.begin(), theirs.end());
    if (end - tokens.begin() <= most) continue;
    most = end - tokens.begin();
    nearest = &key;
  }
  return nearest;
}

}  // namespace kvasir::cache
