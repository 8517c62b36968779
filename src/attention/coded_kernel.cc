// K and V in codes: byte dots against what is stored, or against tiles that were unpacked to bytes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/codes_places.h"
#include "attention/kernel.h"
#include "attention/meanwhile.h"
#include "attention/segment.h"
#include "attention/work.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/coded_kernel.cc"
// clang-format off: foreach_target.h comes before all that is compiled per target
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on
#include "attention/codes-inl.h"
#include "attention/codes_load-inl.h"
#include "attention/factors-inl.h"
#include "attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

template <bool kPrefetch>
ScoreCodesFunction score_function(CodecId codec, int n_rows) {
  return codec == CodecId::kInt8G64 ? choose_score_codes<true, kPrefetch>(n_rows)
                                    : choose_score_codes<false, kPrefetch>(n_rows);
}

void score_direct_codes(const Block& block, const Segment& segment, const Work& work) {
  const Places places(block, segment, false);
  const int head_dim = block.params->head_dim, n_rows = block.heads_per_kv_head();
  const auto score = score_function<true>(block.kv->rows.k.codec, n_rows);
  KeyChunk chunk;
  const std::uint8_t* ahead[kSegmentStrips];
  const Ahead next(block, segment, false);
  for_each_stretch(segment, [&](int begin, int end) {
    for (int head = 0; head < block.n_kv_heads; ++head) {
      next.find(begin, end, head, ahead);
      load_keys(block, places, head, begin, end, ahead, work, chunk);
      const int row = head * n_rows;
      const auto* q = reinterpret_cast<const std::int8_t*>(work.q + row * head_dim);
      score(q, work.queries + row, chunk, head_dim,
            work.scores + row * kSegmentTokens + begin * 16);
    }
  });
}

void score_staged_codes(const Block& block, const Segment& segment, const Shape& shape,
                        const Tiles& tiles, const Work& work) {
  const Places places(block, segment, false);
  KeyChunk chunk;
  const std::uint8_t* ahead[kSegmentStrips];
  const int n_strips = segment.strip_end - segment.strip_begin;
  const int n_stretches = (n_strips + kChunkStrips - 1) / kChunkStrips + 1;
  FetchedMeanwhile values(segment.v + segment.strip_begin, n_strips, shape.v_row_stride,
                          shape.v_row_bytes, n_stretches * tiles.n_tiles);
  for_each_stretch(segment, [&](int begin, int end) {
    for (int strip = begin; strip < end; ++strip) ahead[strip] = nullptr;
    load_keys(block, places, 0, begin, end, ahead, work, chunk);
    for (int tile = 0; tile < tiles.n_tiles; ++tile) {
      values.step();
      const int row = tiles.first_row(tile), n_rows = tiles.rows(tile);
      if (!sees_any(work.rows + row, n_rows, begin * 16, end * 16)) continue;
      const auto* q = reinterpret_cast<const std::int8_t*>(work.q + row * shape.head_dim);
      score_function<false>(block.kv->rows.k.codec, n_rows)(
          q, work.queries + row, chunk, shape.head_dim,
          work.scores + row * kSegmentTokens + begin * 16);
    }
  });
}

void score_codes_of(const Block& block, const Segment& segment, const Shape& shape,
                    const Tiles& tiles, const Work& work) {
  if (block.is_direct()) {
    score_direct_codes(block, segment, work);
  } else {
    score_staged_codes(block, segment, shape, tiles, work);
  }
}

/// Clears what a row does not see of the strips that its neighbours do.
void clear_unseen(const Segment& segment, const Row& row, std::uint8_t* planes) {
  const int first = row.is_visible() ? row.begin / 16 : segment.strip_end;
  const int last = row.is_visible() ? (row.end + 15) / 16 : segment.strip_end;
  if (first <= segment.strip_begin && last >= segment.strip_end) return;
  for (int strip = segment.strip_begin; strip < segment.strip_end; ++strip) {
    if (strip < first || strip >= last) std::memset(planes + 32 * strip, 0, 32);
  }
}

/// Factors of V of rows [row, row + n_rows), which read one kv head, in `work.planes`; of the first
/// group, the softmax on the way.
void make_factors(const Block& block, const Segment& segment, const ValueScales& scales, int group,
                  int row, int n_rows, std::size_t record_stride, const Work& work) {
  const int n_groups = cache::channel_groups(block.kv->rows.v.codec, block.params->head_dim);
  const auto write = choose_write_factors(scales.has_centre, group, n_groups);
  SeenScales seen;
  for (int r = row; r < row + n_rows; ++r) {
    Row& at = work.rows[r];
    std::uint8_t* planes = work.planes + static_cast<std::ptrdiff_t>(r) * kPlaneBytes;
    clear_unseen(segment, at, planes);
    if (!at.is_visible()) continue;
    if (at.begin != seen.begin || at.end != seen.end) see_scales(scales, at.begin, at.end, seen);
    const FactorSums sums = write(work.scores + r * kSegmentTokens, at.maximum, seen, planes);
    work.values[r] = {seen.unit, sums.centres};
    if (group > 0) continue;
    at.sum = sums.exponents;
    float* record = work.records + static_cast<std::size_t>(r) * record_stride;
    RecordHeader header = load_header(record);
    merge_headers(header, {at.maximum, at.sum, 1.0f}, at);
    store_header(record, header);
  }
}

/// Rows [row, row + R) x C panels of 16 channels, of strips that all lie at hand.
template <int R, int C>
void weigh_panels_of(const Segment& segment, const Shape& shape, const Work& work, int row,
                     int channel, const std::uint8_t* const* strips) {
  const std::uint8_t* at[kSegmentStrips];
  for (int strip = segment.strip_begin; strip < segment.strip_end; ++strip) {
    at[strip] = strips[strip] + 4 * channel;
  }
  CodeSums<R, C> sums;
  sums.clear();
  weigh_codes<R, C, false>(sums, at, at, segment.strip_begin, segment.strip_end, 4 * shape.head_dim,
                           work.planes + row * kPlaneBytes);
  merge_codes(sums, work.rows + row, work.values + row,
              work.records + static_cast<std::size_t>(row) * shape.record_stride,
              shape.record_stride, channel);
}

template <int R>
HWY_NOINLINE void weigh_rows(const Segment& segment, const Shape& shape, const Work& work, int row,
                             int channel, int channel_end, const std::uint8_t* const* strips) {
  constexpr int C = strips_beside(2 * R);
  for (; channel + 16 * C <= channel_end; channel += 16 * C) {
    weigh_panels_of<R, C>(segment, shape, work, row, channel, strips);
  }
  for (; C > 1 && channel < channel_end; channel += 16) {
    weigh_panels_of<R, 1>(segment, shape, work, row, channel, strips);
  }
}

/// Calls visit(std::integral_constant<int, R>, row) for rows [0, n_rows), R at a time.
template <class Visit>
void for_value_rows(int n_rows, Visit visit) {
  int row = 0;
  for (; row + kValueRows <= n_rows; row += kValueRows) {
    visit(std::integral_constant<int, kValueRows>(), row);
  }
  if constexpr (kValueRows > 2) {
    if (n_rows - row == 2) return visit(std::integral_constant<int, 2>(), row);
  }
  if (n_rows - row == 1) visit(std::integral_constant<int, 1>(), row);
}

/// Channels of V that share a scale, of one group after the other: visit(group, begin, end).
template <class Visit>
void for_each_group(const Block& block, Visit visit) {
  const int head_dim = block.params->head_dim;
  const bool is_grouped = block.kv->rows.v.codec == CodecId::kInt8G64;
  const int channels = is_grouped ? cache::kGroupChannels : head_dim;
  for (int begin = 0, group = 0; begin < head_dim; begin += channels, ++group) {
    visit(group, begin, std::min(head_dim, begin + channels));
  }
}

void weigh_staged_codes(const Block& block, const Segment& segment, const Shape& shape,
                        const Work& work) {
  const Places places(block, segment, true);
  const std::uint8_t* strips[kSegmentStrips];
  auto* bytes = reinterpret_cast<std::uint8_t*>(work.v);
  for_each_stretch(segment, [&](int begin, int end) {
    const int first = begin / kChunkStrips * kChunkStrips;
    std::uint8_t* out = bytes + first * 16 * shape.head_dim;
    const CodecId codec = places.layout(begin).codec;
    const bool is_tile = cache::is_tile_codec(codec);
    if (is_tile) unpack_values_of(codec, places.codes(first, 0), shape.head_dim, out, out);
    for (int strip = begin; strip < end; ++strip) {
      strips[strip] =
          is_tile ? out + (strip - first) * 16 * shape.head_dim : places.codes(strip, 0);
    }
  });
  ValueScales scales;
  FetchedMeanwhile next_keys(segment.next_k, segment.n_next, shape.k_strip_bytes / 16,
                             shape.k_strip_bytes / 16, shape.n_rows);
  for_each_group(block, [&](int group, int begin, int end) {
    load_value_scales(segment, places, 0, group, scales);
    make_factors(block, segment, scales, group, 0, shape.n_rows, shape.record_stride, work);
    for_value_rows(shape.n_rows, [&](auto n_rows, int row) {
      next_keys.step();
      if (!sees_any(work.rows + row, n_rows(), 0, kSegmentTokens)) return;
      weigh_rows<n_rows()>(segment, shape, work, row, begin, end, strips);
    });
  });
}

/// One kv head's strips [begin, end) in the rows' sums so far, which are kept in `sums` between
/// stretches: [R][2][head_dim].
template <int R, int C>
HWY_INLINE void add_stretch(const std::uint8_t* const* strips, const std::uint8_t* const* ahead,
                            int begin, int end, bool is_first, bool is_last, const Shape& shape,
                            const Work& work, int row, int channel, std::int32_t* kept) {
  const std::uint8_t *at[kSegmentStrips], *next[kSegmentStrips];
  for (int strip = begin; strip < end; ++strip) {
    at[strip] = strips[strip] + 4 * channel;
    next[strip] = ahead[strip] + 4 * channel;
  }
  CodeSums<R, C> sums;
  if (is_first) {
    sums.clear();
  } else {
    sums.load(kept + channel, shape.head_dim);
  }
  weigh_codes<R, C, true>(sums, at, next, begin, end, 4 * shape.head_dim,
                          work.planes + row * kPlaneBytes);
  if (!is_last) {
    sums.store(kept + channel, shape.head_dim);
    return;
  }
  merge_codes(sums, work.rows + row, work.values + row,
              work.records + static_cast<std::size_t>(row) * shape.record_stride,
              shape.record_stride, channel);
}

template <int R>
HWY_NOINLINE void weigh_stretch(const std::uint8_t* const* strips, const std::uint8_t* const* ahead,
                                int begin, int end, bool is_first, bool is_last, const Shape& shape,
                                const Work& work, int row, int channel, int channel_end,
                                std::int32_t* kept) {
  constexpr int C = strips_beside(2 * R);
  for (; channel + 16 * C <= channel_end; channel += 16 * C) {
    add_stretch<R, C>(strips, ahead, begin, end, is_first, is_last, shape, work, row, channel,
                      kept);
  }
  for (; C > 1 && channel < channel_end; channel += 16) {
    add_stretch<R, 1>(strips, ahead, begin, end, is_first, is_last, shape, work, row, channel,
                      kept);
  }
}

void weigh_direct_codes(const Block& block, const Segment& segment, const Shape& shape,
                        const Work& work) {
  const Places places(block, segment, true);
  const int n_rows = block.heads_per_kv_head(), head_dim = shape.head_dim;
  auto* kept = reinterpret_cast<std::int32_t*>(work.v);  // [rows][2][head_dim]
  auto* bytes = reinterpret_cast<std::uint8_t*>(kept + 2 * kMaxDirectRows * head_dim);
  ValueScales scales;
  const std::uint8_t *strips[kSegmentStrips], *ahead[kSegmentStrips];
  const Ahead next(block, segment, true);
  for_each_group(block, [&](int group, int channel, int channel_end) {
    for (int head = 0; head < block.n_kv_heads; ++head) {
      load_value_scales(segment, places, head, group, scales);
      make_factors(block, segment, scales, group, head * n_rows, n_rows, shape.record_stride, work);
    }
    for_each_stretch(segment, [&](int begin, int end) {
      const bool is_first = begin == segment.strip_begin, is_last = end == segment.strip_end;
      for (int head = 0; head < block.n_kv_heads; ++head) {
        next.find(begin, end, head, ahead);
        const CodecId codec = places.layout(begin).codec;
        const int first = begin / kChunkStrips * kChunkStrips;
        if (cache::is_tile_codec(codec)) {
          const std::uint8_t* codes = places.codes(first, head);
          unpack_values_of(codec, codes, head_dim, ahead[begin] != nullptr ? ahead[begin] : codes,
                           bytes);
        }
        for (int strip = begin; strip < end; ++strip) {
          strips[strip] = cache::is_tile_codec(codec) ? bytes + (strip - first) * 16 * head_dim
                                                      : places.codes(strip, head);
          // Where nothing follows, what is here already: fetched at no cost.
          if (ahead[strip] == nullptr || cache::is_tile_codec(codec)) ahead[strip] = strips[strip];
        }
        for_value_rows(n_rows, [&](auto n, int r) {
          const int row = head * n_rows + r;
          weigh_stretch<n()>(strips, ahead, begin, end, is_first, is_last, shape, work, row,
                             channel, channel_end, kept + 2 * row * head_dim);
        });
      }
    });
  });
}

void weigh_codes_of(const Block& block, const Segment& segment, const Shape& shape,
                    const Work& work) {
  for (int r = 0; r < shape.n_rows; ++r) {
    Row& row = work.rows[r];
    if (!row.is_visible()) continue;
    row.maximum =
        finish_scores(work.scores + r * kSegmentTokens, row.begin, row.end, block.params->softcap);
  }
  if (block.is_direct()) {
    weigh_direct_codes(block, segment, shape, work);
  } else {
    weigh_staged_codes(block, segment, shape, work);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::attention {

HWY_EXPORT(pack_coded_queries);
HWY_EXPORT(score_codes_of);
HWY_EXPORT(weigh_codes_of);

void pack_coded_queries(const Block& block, const Tiles& tiles, const Work& work) {
  HWY_DYNAMIC_DISPATCH(pack_coded_queries)(block, tiles, work);
}

void score_coded_keys(const Block& block, const Segment& segment, const Shape& shape,
                      const Tiles& tiles, const Work& work) {
  HWY_DYNAMIC_DISPATCH(score_codes_of)(block, segment, shape, tiles, work);
}

void weigh_coded_values(const Block& block, const Segment& segment, const Shape& shape,
                        const Work& work) {
  HWY_DYNAMIC_DISPATCH(weigh_codes_of)(block, segment, shape, work);
}

}  // namespace kvasir::attention
#endif  // HWY_ONCE
