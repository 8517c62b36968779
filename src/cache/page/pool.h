// Frames of one size, carved from arenas on huge pages and counted by their owners.
//
// Invariants
// I1 A frame is free (on its arena's stack, no owner) or used (at least one owner).
// I2 The budget's reservation for this pool = bytes of its arenas, reserved before they are
// obtained. I3 No arena is wholly free: the last frame to go gives its arena back to the system.
// Thread safety: engine thread only; the bytes of a used frame may be read by kernel threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "cache/page/byte_budget.h"

namespace kvasir::cache {

/// Names a used frame of one pool; stable until the frame's last owner goes.
using PageId = std::uint32_t;
inline constexpr PageId kNoPage = std::numeric_limits<PageId>::max();

class PagePool {
 public:
  /// An arena has `n_arena_frames` frames, or fewer where the budget has no more room. Requires:
  /// frame_bytes > 0, a multiple of 64; n_arena_frames > 0. `budget` must outlive the pool.
  PagePool(std::size_t frame_bytes, ByteBudget& budget, int n_arena_frames);
  /// With arena_frames().
  PagePool(std::size_t frame_bytes, ByteBudget& budget)
      : PagePool(frame_bytes, budget, arena_frames(frame_bytes)) {}
  ~PagePool();  ///< Requires: every frame is free.
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// Frames of a full arena: the fewest that fill whole 2 MiB pages up to less than 5 %. (The first
  /// touch of 12 MB takes 8 ms where a third of it lies on 4 KiB pages, and 2 ms where none does.)
  static int arena_frames(std::size_t frame_bytes);
  /// Bytes of an arena of `n_frames`: whole 2 MiB pages if less than 5 % of them is padding, else
  /// whole 4 KiB pages.
  static std::uint64_t arena_bytes(std::size_t frame_bytes, int n_frames);

  /// Appends `n` fresh pages to `pages`, one owner each; their contents are undefined.
  /// Errors: kExhausted (budget or system); nothing has then changed.
  /// Cost: O(n), plus the system's for a new arena.
  Status allocate(int n, std::vector<PageId>& pages);

  void add_owner(PageId page);
  /// Takes one owner away; the last one frees the frame.
  void drop_owner(PageId page);
  int n_owners(PageId page) const;
  std::uint8_t* frame(PageId page) const;

  std::size_t frame_bytes() const { return frame_bytes_; }
  std::uint64_t n_used() const { return n_used_; }
  std::uint64_t n_free() const { return n_frames_ - n_used_; }
  /// Sum over used pages of (owners - 1).
  std::uint64_t n_shared() const { return n_owners_ - n_used_; }
  std::uint64_t allocated_bytes() const { return allocated_bytes_; }
  std::uint64_t used_bytes() const { return n_used_ * frame_bytes_; }
  /// Every PageId handed out is below this.
  std::size_t page_id_limit() const { return arenas_.size() * frames_per_arena_; }

  /// Aborts unless I1..I3 hold and page `id` has exactly `owners[id]` owners (0: free).
  /// Requires: owners.size() == page_id_limit().
  void check_invariants(std::span<const std::uint32_t> owners) const;

 private:
  /// A slot for an arena; without memory while it waits on `empty_slots_`.
  struct Arena {
    AlignedBuffer memory;
    std::vector<std::uint32_t> n_owners;           ///< per frame; 0: free
    std::vector<std::uint32_t> free_frames;        ///< a stack: the last freed is the next used
    std::uint32_t previous = kNone, next = kNone;  ///< in the list of arenas with free frames
    bool is_listed = false;
  };
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  Result<PageId> allocate_one();
  Status add_arena();
  Status add_arena_of(int n_frames);
  void remove_arena(std::uint32_t arena_idx);
  void push_front(std::uint32_t arena_idx);
  void unlink(std::uint32_t arena_idx);
  const Arena& arena_of(PageId page) const { return arenas_[page / frames_per_arena_]; }

  const std::size_t frame_bytes_;
  const std::uint32_t frames_per_arena_;
  ByteBudget& budget_;
  std::vector<Arena> arenas_;
  std::vector<std::uint32_t> empty_slots_;
  std::uint32_t first_listed_ = kNone;
  std::uint64_t n_frames_ = 0, n_used_ = 0, n_owners_ = 0, allocated_bytes_ = 0;
};

}  // namespace kvasir::cache
