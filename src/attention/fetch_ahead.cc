#include "attention/fetch_ahead.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "attention/segment.h"
#include "cache/codec/codec.h"

namespace kvasir::attention {
namespace {

/// What a part has of one kv head, and how far away the next head's lies.
struct Piece {
  const std::uint8_t* begin;
  std::size_t bytes, head_stride;
};

Piece meta_of(const Part& part, bool is_v, int kv_head) {
  const cache::SideLayout& side = is_v ? part.set->v : part.set->k;
  return {part.frame + side.meta_at(part.in_page, kv_head),
          static_cast<std::size_t>(part.n_strips) * side.meta_strip_stride, side.meta_head_stride};
}

Piece codes_of(const Part& part, bool is_v, int kv_head) {
  const cache::SideLayout& side = is_v ? part.set->v : part.set->k;
  return {part.frame + side.strip_at(part.in_page, kv_head),
          static_cast<std::size_t>(part.n_strips) * side.strip_stride, side.head_stride};
}

/// Parts of a stretch at a time.
template <class Visit>
void for_each_stretch(std::span<const Part> parts, Visit visit) {
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    const int stretch = parts[begin].strip / kChunkStrips;
    while (end < parts.size() && parts[end].strip / kChunkStrips == stretch) ++end;
    visit(parts.subspan(begin, end - begin));
  }
}

/// Stretches of K that have `bytes` bytes.
int stretches_of(const Block& block, std::size_t bytes) {
  const cache::PageSet& set = block.kv->has_tiles() ? block.kv->tiles : block.kv->rows;
  const std::size_t stretch_bytes =
      kChunkStrips * static_cast<std::size_t>(block.n_kv_heads) * set.k.strip_stride;
  return 1 + static_cast<int>(bytes / stretch_bytes);
}

}  // namespace

void FetchAhead::begin(const Block& block, int index) {
  const bool has_k = cache::is_coded(block.kv->rows.k.codec);
  Part parts[kSegmentStrips];
  const auto find_parts = [&](StripRange strips) {
    std::size_t n = 0;
    for_each_part(block, strips, [&](const Part& part) { parts[n++] = part; });
    return std::span<const Part>(parts, n);
  };
  n_ = next_ = 0;
  const auto own = find_parts(visible_strips(block, index));
  if (has_k) add_keys(block, own);
  if (cache::is_coded(block.kv->rows.v.codec)) add_values(block, own);
  skip_lead();
  const int first = n_;
  if (has_k && index + 1 < block.segment_end) {
    StripRange next = visible_strips(block, index + 1);
    const int most = kChunkStrips * stretches_of(block, kLead * kLineBytes);
    next.end = std::min(next.end, next.begin + most);
    add_keys(block, find_parts(next));
  }
  keep_lead(first);
  next_run();
}

void FetchAhead::add_keys(const Block& block, std::span<const Part> parts) {
  for_each_stretch(parts, [&](std::span<const Part> stretch) {
    for (const Part& part : stretch) add<meta_of>(block, {&part, 1}, false);
    add<codes_of>(block, stretch, false);
  });
}

void FetchAhead::add_values(const Block& block, std::span<const Part> parts) {
  for (const Part& part : parts) add<meta_of>(block, {&part, 1}, true);
  for_each_stretch(parts, [&](auto stretch) { add<codes_of>(block, stretch, true); });
}

template <auto kPieceOf>
void FetchAhead::add(const Block& block, std::span<const Part> parts, bool is_v) {
  const Piece first = kPieceOf(parts.front(), is_v, block.kv_head);
  if (parts.size() == 1 && first.bytes == first.head_stride) {  // all heads are one run
    add(first.begin, first.bytes * static_cast<std::size_t>(block.n_kv_heads));
    return;
  }
  for (int head = block.kv_head; head < block.kv_head + block.n_kv_heads; ++head) {
    for (const Part& part : parts) {
      const Piece piece = kPieceOf(part, is_v, head);
      add(piece.begin, piece.bytes);
    }
  }
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
