// Two read-only hash tables of the tokenizer: text -> id, and (left id, right id) -> merge.
//
// Invariants
// I1 Of equal keys the first one given is kept, so duplicates in a file behave the same everywhere.
// I2 A seed under which the keys collide too much is given up for the next one, so a file cannot be
//    made to take quadratic time, and the tables are still the same on every run.
// Thread safety: immutable after construction; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace kvasir::text {

/// Ids by text. The bytes of the texts must outlive the index.
class StringIndex {
 public:
  struct Item {
    std::string_view text;
    TokenId id = -1;
  };
  StringIndex() = default;
  explicit StringIndex(std::span<const Item> items);

  /// -1 when there is none.
  TokenId find(std::string_view text) const;
  /// Bytes of the longest text: nothing longer is found.
  std::size_t longest() const { return longest_; }

 private:
  bool insert_all(std::span<const Item> items);

  struct Slot {
    const char* data = nullptr;  // null: empty
    std::uint32_t size = 0;
    std::uint32_t hash = 0;
    TokenId id = -1;
  };
  std::vector<Slot> slots_;
  std::uint64_t seed_ = 0;
  std::size_t mask_ = 0;
  std::size_t longest_ = 0;
};

/// What two neighbours become. Lower ranks merge first.
struct Merge {
  static constexpr std::uint32_t kNever = UINT32_MAX;
  std::uint32_t rank = kNever;
  TokenId id = -1;
};

/// Merges by the ids of the two pieces.
class MergeTable {
 public:
  struct Item {
    TokenId left = -1;
    TokenId right = -1;
    Merge merge;
  };
  MergeTable() = default;
  explicit MergeTable(std::span<const Item> items);

  /// Rank Merge::kNever when the pair does not merge. A negative id never does.
  Merge find(TokenId left, TokenId right) const;

 private:
  bool insert_all(std::span<const Item> items);

  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};  // all ones: empty
    Merge merge;
  };
  std::vector<Slot> slots_;
  std::uint64_t seed_ = 0;
  std::size_t mask_ = 0;
};

}  // namespace kvasir::text
