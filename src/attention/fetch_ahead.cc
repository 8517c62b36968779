#include "attention/fetch_ahead.h"

#include "attention/segment.h"
#include "cache/codec/codec.h"

namespace kvasir::attention {

void FetchAhead::begin(const Block& block, int index) {
  const bool has_k = cache::is_coded(block.kv->rows.k.codec);
  n_ = next_ = 0;
  if (has_k) add(block, index, false);
  if (cache::is_coded(block.kv->rows.v.codec)) add(block, index, true);
  skip_lead();
  const int first = n_;
  if (has_k && index + 1 < block.segment_end) add(block, index + 1, false);
  keep_lead(first);
  next_run();
}

void FetchAhead::add(const Block& block, int index, bool is_v) {
  for_each_part(block, visible_strips(block, index), [&](int, const Part& part) {
    const cache::SideLayout& side = is_v ? part.set.v : part.set.k;
    // All kv heads of a whole page lie side by side.
    const int n_runs = part.n_strips == block.kv->strips_per_page ? 1 : block.n_kv_heads;
    const auto n_strips = static_cast<std::size_t>(part.n_strips * block.n_kv_heads / n_runs);
    for (int head = block.kv_head; head < block.kv_head + n_runs; ++head) {
      add(part.frame + side.meta_at(part.in_page, head), n_strips * side.meta_strip_stride);
      add(part.frame + side.strip_at(part.in_page, head), n_strips * side.strip_stride);
    }
  });
}

void FetchAhead::skip_lead() {
  for (std::size_t lines = kLead; next_ < n_; ++next_) {
    Run& run = runs_[next_];
    if (run.n_lines() > lines) {
      run.begin += kLineBytes * lines;
      return;
    }
    lines -= run.n_lines();
  }
}

void FetchAhead::keep_lead(int first) {
  std::size_t lines = kLead;
  for (int i = first; i < n_; ++i) {
    Run& run = runs_[i];
    if (run.n_lines() >= lines) {
      run.end = run.begin + kLineBytes * lines;
      n_ = i + 1;
      return;
    }
    lines -= run.n_lines();
  }
}

}  // namespace kvasir::attention
