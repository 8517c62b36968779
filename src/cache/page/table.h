// The pages of one sequence in one cache group, in token order.
//
// Invariants
// I1 Page i holds the tokens [i * page_tokens, (i + 1) * page_tokens); the table ends with the page
//    of its last slot.
// I2 Pages in [n_pinned, first_live()) are freed (kNoPage, null frame), all others are owned once
// by
//    this table.
// Thread safety: engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page/geometry.h"
#include "cache/page/pool.h"

namespace kvasir::cache {

class PageTable {
 public:
  /// `pool` and `geometry` must outlive the table; its frames have that geometry.
  /// The first `n_pinned` pages are never freed but by truncate.
  PageTable(PagePool& pool, const PageGeometry& geometry, int n_pinned = 0)
      : pool_(&pool), geometry_(&geometry), n_pinned_(n_pinned) {}
  ~PageTable() { truncate(0); }
  PageTable(PageTable&& other) noexcept;
  PageTable& operator=(PageTable&&) = delete;

  /// Another table that owns the same pages.
  PageTable share() const;

  /// Pages that `n_new` more slots behind `n_tokens` need, a private copy of a shared filling page
  /// included.
  int pages_needed(int n_tokens, int n_new) const;

  /// Makes the slots [n_tokens, n_tokens + n_new) writable with the pages `fresh`, which become the
  /// table's own. Requires: fresh.size() == pages_needed(n_tokens, n_new).
  void grow(int n_tokens, const std::vector<PageId>& fresh);

  /// Begins an empty table with pages that others own too; those that are not live (is_live) are
  /// freed ones, whatever `pages` says. Requires: the others are no kNoPage.
  void begin_with(std::span<const PageId> pages, int first_live);

  /// Puts an equal page of somebody else in a page's place. Requires: neither is kNoPage.
  void replace(int page_idx, PageId page);

  /// Drops the pages that hold none of the first `n_tokens` tokens.
  void truncate(int n_tokens);

  /// Frees the pages that end at or below token `n_dead`.
  void free_below(int n_dead);

  int n_pages() const { return static_cast<int>(pages_.size()); }
  int first_live() const { return first_live_; }
  bool is_live(int page_idx) const { return page_idx >= first_live_ || page_idx < n_pinned_; }
  PageId page(int page_idx) const { return pages_[static_cast<std::size_t>(page_idx)]; }
  /// Page index -> frame, null where it is not live. Valid until the table next changes.
  std::uint8_t* const* frames() const { return frames_.data(); }

 private:
  bool shares_filling_page(int n_tokens) const;

  PagePool* pool_;
  const PageGeometry* geometry_;
  int n_pinned_;
  std::vector<PageId> pages_;
  std::vector<std::uint8_t*> frames_;
  int first_live_ = 0;
};

}  // namespace kvasir::cache
