#include "text/hash_index.h"

#include <bit>
#include <cstring>

namespace kvasir::text {
namespace {

// Odd constants with well-spread bits: the fraction of the golden ratio, and sqrt(2) - 1.
constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
constexpr std::uint64_t kSecondMultiplier = 0x6A09E667F3BCC909u;

// A key set bad under all of these would need a collision of well over 100 bits.
constexpr std::uint64_t kSeeds = 8;
constexpr std::uint64_t kEmptyKey = ~std::uint64_t{0};

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 32;
  value *= kMultiplier;
  value ^= value >> 29;
  value *= kSecondMultiplier;
  return value ^ value >> 32;
}

std::uint64_t hash_bytes(std::string_view text, std::uint64_t seed) {
  std::uint64_t state = seed ^ text.size() * kMultiplier;
  std::size_t pos = 0;
  for (; pos + 8 <= text.size(); pos += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + pos, 8);
    state = mix(state ^ word);
  }
  std::uint64_t tail = 0;
  for (int shift = 0; pos < text.size(); ++pos, shift += 8) {
    tail |= std::uint64_t{static_cast<std::uint8_t>(text[pos])} << shift;
  }
  return mix(state ^ tail);
}

/// Slots for `n` items: a power of two, at most about 60 % full, at least one slot empty.
std::size_t table_size(std::size_t n) { return std::bit_ceil(n + n / 2 + n / 8 + 2); }

/// A fair hash needs about one extra probe per item at this load.
std::size_t probe_budget(std::size_t n) { return 32 * n + 1024; }

std::uint64_t pair_key(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

StringIndex::StringIndex(std::span<const Item> items) {
  for (std::uint64_t attempt = 1; attempt <= kSeeds; ++attempt) {
    seed_ = mix(attempt);
    slots_.assign(table_size(items.size()), {});
    mask_ = slots_.size() - 1;
    if (insert_all(items)) return;
  }
}

bool StringIndex::insert_all(std::span<const Item> items) {
  std::size_t n_probes_left = probe_budget(items.size());
  for (const Item& item : items) {
    if (item.text.data() == nullptr || item.text.size() > UINT32_MAX) continue;
    const auto hash = static_cast<std::uint32_t>(hash_bytes(item.text, seed_));
    std::size_t at = hash & mask_;
    bool duplicate = false;
    for (; slots_[at].data != nullptr; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      duplicate = slot.hash == hash && std::string_view(slot.data, slot.size) == item.text;
      if (duplicate) break;
      if (n_probes_left-- == 0) return false;
    }
    if (duplicate) continue;
    slots_[at] = {item.text.data(), static_cast<std::uint32_t>(item.text.size()), hash, item.id};
    if (item.text.size() > longest_) longest_ = item.text.size();
  }
  return true;
}

TokenId StringIndex::find(std::string_view text) const {
  if (slots_.empty() || text.size() > longest_) return -1;
  const auto hash = static_cast<std::uint32_t>(hash_bytes(text, seed_));
  for (std::size_t at = hash & mask_; slots_[at].data != nullptr; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.hash == hash && slot.size == text.size() &&
        std::memcmp(slot.data, text.data(), text.size()) == 0) {
      return slot.id;
    }
  }
  return -1;
}

MergeTable::MergeTable(std::span<const Item> items) {
  for (std::uint64_t attempt = 1; attempt <= kSeeds; ++attempt) {
    seed_ = mix(attempt);
    slots_.assign(table_size(items.size()), {});
    mask_ = slots_.size() - 1;
    if (insert_all(items)) return;
  }
}

bool MergeTable::insert_all(std::span<const Item> items) {
  std::size_t n_probes_left = probe_budget(items.size());
  for (const Item& item : items) {
    if (item.left < 0 || item.right < 0) continue;
    const std::uint64_t key = pair_key(item.left, item.right);
    std::size_t at = mix(key ^ seed_) & mask_;
    while (slots_[at].key != kEmptyKey && slots_[at].key != key) {
      at = (at + 1) & mask_;
      if (n_probes_left-- == 0) return false;
    }
    if (slots_[at].key != key) slots_[at] = {key, item.merge};
  }
  return true;
}

Merge MergeTable::find(TokenId left, TokenId right) const {
  if (slots_.empty() || left < 0 || right < 0) return {};
  const std::uint64_t key = pair_key(left, right);
  for (std::size_t at = mix(key ^ seed_) & mask_;; at = (at + 1) & mask_) {
    if (slots_[at].key == key) return slots_[at].merge;
    if (slots_[at].key == kEmptyKey) return {};
  }
}

}  // namespace kvasir::text
