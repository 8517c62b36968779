#include "cache/page/pool.h"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/units.h"

namespace kvasir::cache {

namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
constexpr std::uint64_t kSystemPage = 4096;
constexpr std::uint64_t kMaxHugePages = 8;  // of an arena of several frames

/// Less than 5 % of `arena` is not `frames`. Requires: frames <= arena.
bool is_well_filled(std::uint64_t frames, std::uint64_t arena) {
  return (arena - frames) < arena / 20;
}

}  // namespace

int PagePool::arena_frames(std::size_t frame_bytes) {
  KVASIR_CHECK(frame_bytes > 0);
  for (std::uint64_t n_pages = 1; n_pages <= kMaxHugePages; ++n_pages) {
    const std::uint64_t bytes = n_pages * kHugePage;
    const std::uint64_t n_frames = bytes / frame_bytes;
    if (is_well_filled(n_frames * frame_bytes, bytes)) return static_cast<int>(n_frames);
  }
  return static_cast<int>((kHugePage + frame_bytes - 1) / frame_bytes);
}

std::uint64_t PagePool::arena_bytes(std::size_t frame_bytes, int n_frames) {
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(frame_bytes) * static_cast<std::uint64_t>(n_frames);
  const std::uint64_t huge = round_up(bytes, kHugePage);
  return is_well_filled(bytes, huge) ? huge : round_up(bytes, kSystemPage);
}

PagePool::PagePool(std::size_t frame_bytes, ByteBudget& budget, int n_arena_frames)
    : frame_bytes_(frame_bytes),
      frames_per_arena_(static_cast<std::uint32_t>(n_arena_frames)),
      budget_(budget) {
  KVASIR_CHECK(frame_bytes > 0 && frame_bytes % 64 == 0 && n_arena_frames > 0);
}

PagePool::~PagePool() {
  KVASIR_CHECK(n_used_ == 0);
  KVASIR_CHECK(allocated_bytes_ == 0);  // follows from I3
}

Status PagePool::allocate(int n, std::vector<PageId>& pages) {
  KVASIR_CHECK(n >= 0);
  const std::size_t n_before = pages.size();
  for (int i = 0; i < n; ++i) {
    Result<PageId> page = allocate_one();
    if (!page) {
      // Newest first, so that the free stacks end as they began.
      while (pages.size() > n_before) {
        drop_owner(pages.back());
        pages.pop_back();
      }
      return std::move(page).error();
    }
    pages.push_back(*page);
  }
  return {};
}

Result<PageId> PagePool::allocate_one() {
  if (first_listed_ == kNone) KVASIR_RETURN_IF_ERROR(add_arena());
  const std::uint32_t arena_idx = first_listed_;
  Arena& arena = arenas_[arena_idx];
  const std::uint32_t frame_idx = arena.free_frames.back();
  arena.free_frames.pop_back();
  arena.n_owners[frame_idx] = 1;
  ++n_used_;
  ++n_owners_;
  if (arena.free_frames.empty()) unlink(arena_idx);
  return arena_idx * frames_per_arena_ + frame_idx;
}

void PagePool::add_owner(PageId page) {
  Arena& arena = arenas_[page / frames_per_arena_];
  std::uint32_t& n_owners = arena.n_owners[page % frames_per_arena_];
  KVASIR_CHECK(n_owners > 0);
  ++n_owners;
  ++n_owners_;
}

void PagePool::drop_owner(PageId page) {
  const std::uint32_t arena_idx = page / frames_per_arena_;
  const std::uint32_t frame_idx = page % frames_per_arena_;
  Arena& arena = arenas_[arena_idx];
  KVASIR_CHECK(arena.n_owners[frame_idx] > 0);
  --n_owners_;
  if (--arena.n_owners[frame_idx] > 0) return;
  --n_used_;
  arena.free_frames.push_back(frame_idx);
  if (arena.free_frames.size() == arena.n_owners.size()) {
    remove_arena(arena_idx);
  } else if (!arena.is_listed) {
    push_front(arena_idx);  // nearly full arenas first: the others get a chance to drain
  }
}

int PagePool::n_owners(PageId page) const {
  return static_cast<int>(arena_of(page).n_owners[page % frames_per_arena_]);
}

std::uint8_t* PagePool::frame(PageId page) const {
  // Who owns a page may write it, though he sees the pool as const.
  auto& memory = const_cast<AlignedBuffer&>(arena_of(page).memory);
  return memory.data() + static_cast<std::size_t>(page % frames_per_arena_) * frame_bytes_;
}

Status PagePool::add_arena() {
  // The rest of a tight budget may still hold a smaller one.
  auto n_frames = static_cast<int>(frames_per_arena_);
  Status status = add_arena_of(n_frames);
  while (!status && n_frames > 1) status = add_arena_of(n_frames /= 2);
  return status;
}

Status PagePool::add_arena_of(int n_frames) {
  const std::uint64_t bytes = arena_bytes(frame_bytes_, n_frames);
  KVASIR_RETURN_IF_ERROR(budget_.reserve(MemoryOwner::kKv, bytes));
  Arena arena;
  try {
    arena.memory = AlignedBuffer(bytes);
  } catch (const std::bad_alloc&) {
    budget_.release(MemoryOwner::kKv, bytes);
    return Error{ErrorCode::kExhausted,
                 fmt::format("page pool: the system refused an arena; got {} in use, want {} more",
                             format_bytes(allocated_bytes_), format_bytes(bytes))};
  }
  const auto n = static_cast<std::uint32_t>(n_frames);
  arena.n_owners.assign(n, 0);
  arena.free_frames.reserve(n);
  for (std::uint32_t i = n; i > 0; --i)
    arena.free_frames.push_back(i - 1);  // lowest address on top

  std::uint32_t arena_idx = 0;
  if (empty_slots_.empty()) {
    KVASIR_CHECK(arenas_.size() < kNoPage / frames_per_arena_ - 1);
    arena_idx = static_cast<std::uint32_t>(arenas_.size());
    arenas_.push_back(std::move(arena));
  } else {
    arena_idx = empty_slots_.back();
    empty_slots_.pop_back();
    arenas_[arena_idx] = std::move(arena);
  }
  n_frames_ += n;
  allocated_bytes_ += bytes;
  push_front(arena_idx);
  return {};
}

void PagePool::remove_arena(std::uint32_t arena_idx) {
  if (arenas_[arena_idx].is_listed) unlink(arena_idx);
  const std::uint64_t bytes = arenas_[arena_idx].memory.size();
  n_frames_ -= arenas_[arena_idx].n_owners.size();
  allocated_bytes_ -= bytes;
  arenas_[arena_idx] = Arena{};  // unmaps
  budget_.release(MemoryOwner::kKv, bytes);
  empty_slots_.push_back(arena_idx);
}

void PagePool::push_front(std::uint32_t arena_idx) {
  Arena& arena = arenas_[arena_idx];
  arena.is_listed = true;
  arena.previous = kNone;
  arena.next = first_listed_;
  if (first_listed_ != kNone) arenas_[first_listed_].previous = arena_idx;
  first_listed_ = arena_idx;
}

void PagePool::unlink(std::uint32_t arena_idx) {
  Arena& arena = arenas_[arena_idx];
  if (arena.previous != kNone) {
    arenas_[arena.previous].next = arena.next;
  } else {
    first_listed_ = arena.next;
  }
  if (arena.next != kNone) arenas_[arena.next].previous = arena.previous;
  arena.previous = arena.next = kNone;
  arena.is_listed = false;
}

void PagePool::check_invariants(std::span<const std::uint32_t> owners) const {
  KVASIR_CHECK(owners.size() == page_id_limit());
  std::uint64_t n_frames = 0, n_used = 0, n_owners = 0, bytes = 0, n_with_free = 0;
  for (std::size_t arena_idx = 0; arena_idx < arenas_.size(); ++arena_idx) {
    const Arena& arena = arenas_[arena_idx];
    std::uint64_t used_here = 0;
    for (std::size_t i = 0; i < frames_per_arena_; ++i) {
      const std::uint32_t expected = owners[arena_idx * frames_per_arena_ + i];
      const std::uint32_t actual = i < arena.n_owners.size() ? arena.n_owners[i] : 0;
      KVASIR_CHECK(actual == expected);
      used_here += actual > 0 ? 1 : 0;
      n_owners += actual;
    }
    for (const std::uint32_t free : arena.free_frames)
      KVASIR_CHECK(arena.n_owners[free] == 0);  // I1
    KVASIR_CHECK(used_here + arena.free_frames.size() == arena.n_owners.size());
    KVASIR_CHECK(used_here > 0 || arena.n_owners.empty());  // I3
    KVASIR_CHECK(arena.is_listed == !arena.free_frames.empty());
    n_with_free += arena.is_listed ? 1 : 0;
    n_frames += arena.n_owners.size();
    n_used += used_here;
    bytes += arena.memory.size();
  }
  std::uint64_t n_listed = 0;
  for (std::uint32_t i = first_listed_; i != kNone; i = arenas_[i].next) ++n_listed;
  KVASIR_CHECK(n_listed == n_with_free);
  KVASIR_CHECK(n_frames == n_frames_ && n_used == n_used_ && n_owners == n_owners_);
  KVASIR_CHECK(bytes == allocated_bytes_);
  KVASIR_CHECK(budget_.reserved(MemoryOwner::kKv) >= allocated_bytes_);  // I2: others may reserve
}

}  // namespace kvasir::cache
