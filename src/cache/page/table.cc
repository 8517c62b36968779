#include "cache/page/table.h"

#include <algorithm>
#include <utility>

#include "cache/page/copy.h"

namespace kvasir::cache {

PageTable::PageTable(PageTable&& other) noexcept
    : pool_(other.pool_),
      geometry_(other.geometry_),
      n_pinned_(other.n_pinned_),
      pages_(std::move(other.pages_)),
      frames_(std::move(other.frames_)),
      first_live_(std::exchange(other.first_live_, 0)) {
  other.pages_.clear();  // a moved-from vector may hold anything, and these pages are ours now
  other.frames_.clear();
}

PageTable PageTable::share() const {
  PageTable other(*pool_, *geometry_, n_pinned_);
  other.pages_ = pages_;
  other.frames_ = frames_;
  other.first_live_ = first_live_;
  for (int i = 0; i < n_pages(); ++i) {
    if (is_live(i)) pool_->add_owner(page(i));
  }
  return other;
}

bool PageTable::shares_filling_page(int n_tokens) const {
  return n_tokens % geometry_->page_tokens() != 0 && pool_->n_owners(pages_.back()) > 1;
}

int PageTable::pages_needed(int n_tokens, int n_new) const {
  if (n_new == 0) return 0;
  return pages_for(n_tokens + n_new, geometry_->page_tokens()) - n_pages() +
         (shares_filling_page(n_tokens) ? 1 : 0);
}

void PageTable::grow(int n_tokens, const std::vector<PageId>& fresh) {
  std::size_t n_taken = 0;
  if (!fresh.empty() && shares_filling_page(n_tokens)) {
    const PageId copy = fresh[n_taken++];
    copy_slots(*geometry_, n_tokens % geometry_->page_tokens(), frames_.back(), pool_->frame(copy));
    pool_->drop_owner(pages_.back());
    pages_.back() = copy;
    frames_.back() = pool_->frame(copy);
  }
  for (; n_taken < fresh.size(); ++n_taken) {
    pages_.push_back(fresh[n_taken]);
    frames_.push_back(pool_->frame(fresh[n_taken]));
  }
}

void PageTable::begin_with(std::span<const PageId> pages, int first_live) {
  KVASIR_CHECK(pages_.empty() && 0 <= first_live && first_live <= static_cast<int>(pages.size()));
  first_live_ = first_live;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const bool is_kept = is_live(static_cast<int>(i));
    KVASIR_CHECK(!is_kept || pages[i] != kNoPage);
    if (is_kept) pool_->add_owner(pages[i]);
    pages_.push_back(is_kept ? pages[i] : kNoPage);
    frames_.push_back(is_kept ? pool_->frame(pages[i]) : nullptr);
  }
}

void PageTable::replace(int page_idx, PageId page) {
  const auto idx = static_cast<std::size_t>(page_idx);
  KVASIR_CHECK(pages_[idx] != kNoPage && page != kNoPage);
  pool_->add_owner(page);
  pool_->drop_owner(pages_[idx]);
  pages_[idx] = page;
  frames_[idx] = pool_->frame(page);
}

void PageTable::truncate(int n_tokens) {
  const int n_kept = pages_for(n_tokens, geometry_->page_tokens());
  while (n_pages() > n_kept) {
    if (pages_.back() != kNoPage) pool_->drop_owner(pages_.back());
    pages_.pop_back();
    frames_.pop_back();
  }
  first_live_ = std::min(first_live_, n_pages());
}

void PageTable::free_below(int n_dead) {
  const int first_live = std::min(n_dead / geometry_->page_tokens(), n_pages());
  for (; first_live_ < first_live; ++first_live_) {
    if (first_live_ < n_pinned_) continue;
    const auto page_idx = static_cast<std::size_t>(first_live_);
    pool_->drop_owner(pages_[page_idx]);
    pages_[page_idx] = kNoPage;
    frames_[page_idx] = nullptr;
  }
}

}  // namespace kvasir::cache
