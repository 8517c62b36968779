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
#include "attention/packed-inl.h"
#include "attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

template <class Dots, bool kFetches>
ScoreCodesFunction score_function(CodecId codec, int n_rows) {
  return codec == CodecId::kInt8G64 ? choose_score_codes<Dots, true, kFetches>(n_rows)
                                    : choose_score_codes<Dots, false, kFetches>(n_rows);
}

template <class Dots>
ScorePackedFunction score_packed_function(CodecId codec, int n_rows) {
  return with_tile_codec(codec,
                         [&](auto tile) { return choose_score_packed<Dots, tile()>(n_rows); });
}

template <class Dots>
void score_direct_codes(const Block& block, const Segment& segment, const Work& work) {
  const Places places(block, segment, false);
  const int head_dim = block.params->head_dim, n_rows = block.heads_per_kv_head();
  const auto score = score_function<Dots, true>(places.rows.codec, n_rows);
  const auto score_packed = score_packed_function<Dots>(places.tiles.codec, n_rows);
  KeyChunk chunk;
  for_each_stretch(segment.strips(), [&](int begin, int end) {
    const int first = places.first_read(begin);
    const std::size_t meta_bytes =
        static_cast<std::size_t>(end - first) * places.layout(begin).meta_strip_stride;
    for (int head = 0; head < block.n_kv_heads; ++head) {
      work.fetch->bytes(meta_bytes);
      const int row = head * n_rows;
      const auto* q = reinterpret_cast<const std::int8_t*>(work.q + row * head_dim);
      float* scores = work.scores + row * kSegmentTokens + first * 16;
      if (places.is_packed(begin)) {
        const PackedKeys keys(places.codes(first, head), places.meta(first, head), head_dim);
        score_packed(q, work.queries + row, keys, *work.fetch, scores);
      } else {
        load_keys(block, places, head, begin, end, work, chunk);
        score(q, work.queries + row, chunk, head_dim, *work.fetch, scores);
      }
    }
  });
}

template <class Dots>
void score_staged_codes(const Block& block, const Segment& segment, const Shape& shape,
                        const Tiles& tiles, const Work& work) {
  const Places places(block, segment, false);
  KeyChunk chunk;
  const int n_strips = segment.strip_end - segment.strip_begin;
  const int n_stretches = (n_strips + kChunkStrips - 1) / kChunkStrips + 1;
  FetchedMeanwhile values(segment.v + segment.strip_begin, n_strips, shape.v_row_stride,
                          shape.v_row_bytes, n_stretches * tiles.n_tiles);
  for_each_stretch(segment.strips(), [&](int begin, int end) {
    load_keys(block, places, 0, begin, end, work, chunk);
    for (int tile = 0; tile < tiles.n_tiles; ++tile) {
      values.step();
      const int row = tiles.first_row(tile), n_rows = tiles.rows(tile);
      if (!sees_any(work.rows + row, n_rows, begin * 16, end * 16)) continue;
      const auto* q = reinterpret_cast<const std::int8_t*>(work.q + row * shape.head_dim);
      score_function<Dots, false>(block.kv->rows.k.codec, n_rows)(
          q, work.queries + row, chunk, shape.head_dim, *work.fetch,
          work.scores + row * kSegmentTokens + begin * 16);
    }
  });
}

void score_codes_of(const Block& block, const Segment& segment, const Shape& shape,
                    const Tiles& tiles, const Work& work) {
  with_dots([&](auto dots) {
    using Dots = decltype(dots);
    if (block.is_direct()) {
      score_direct_codes<Dots>(block, segment, work);
    } else {
      score_staged_codes<Dots>(block, segment, shape, tiles, work);
    }
  });
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

/// Factors of V of row `row` in `work.planes`; of the first group, the softmax on the way.
void make_factors(const SeenScales& seen, WriteFactors write, int group, int row,
                  std::size_t record_stride, const Work& work) {
  Row& at = work.rows[row];
  const FactorSums sums = write(work.scores + row * kSegmentTokens, at.maximum, seen, *work.fetch,
                                work.planes + static_cast<std::ptrdiff_t>(row) * kPlaneBytes);
  work.values[row] = {seen.unit, sums.centres};
  if (group > 0) return;
  at.sum = sums.exponents;
  float* record = work.records + static_cast<std::size_t>(row) * record_stride;
  RecordHeader header = load_header(record);
  merge_headers(header, {at.maximum, at.sum, 1.0f}, at);
  store_header(record, header);
}

/// The same of all rows of a block, which read one kv head.
void make_staged_factors(const Block& block, const Segment& segment, const ValueScales& scales,
                         int group, const Shape& shape, const Work& work) {
  const int n_groups = cache::channel_groups(block.kv->rows.v.codec, shape.head_dim);
  const auto write = choose_write_factors(scales.has_centre, group, n_groups);
  SeenScales seen;
  for (int r = 0; r < shape.n_rows; ++r) {
    const Row& at = work.rows[r];
    clear_unseen(segment, at, work.planes + static_cast<std::ptrdiff_t>(r) * kPlaneBytes);
    if (!at.is_visible()) continue;
    // Rows that see the same tokens share them.
    if (at.begin != seen.begin || at.end != seen.end) see_scales(scales, at.begin, at.end, seen);
    make_factors(seen, write, group, r, shape.record_stride, work);
  }
}

/// Strips of the segment that some of `n_rows` rows sees.
StripRange seen_strips(const Segment& segment, const Row* rows, int n_rows) {
  StripRange seen = {segment.strip_end, segment.strip_begin};
  for (int r = 0; r < n_rows; ++r) {
    if (!rows[r].is_visible()) continue;
    seen.begin = std::min(seen.begin, rows[r].begin / 16);
    seen.end = std::max(seen.end, (rows[r].end + 15) / 16);
  }
  return seen;
}

/// Rows [row, row + R) x C panels of 16 channels, of strips that all lie at hand.
template <class Dots, int R, int C>
void weigh_panels_of(StripRange seen, const Shape& shape, const Work& work, int row, int channel,
                     const std::uint8_t* const* strips) {
  const std::uint8_t* at[kSegmentStrips];
  for (int strip = seen.begin; strip < seen.end; ++strip) at[strip] = strips[strip] + 4 * channel;
  CodeSums<R, C> sums;
  sums.clear();
  weigh_codes<Dots, R, C, false>(sums, at, seen.begin, seen.end, 4 * shape.head_dim, *work.fetch,
                                 work.planes + row * kPlaneBytes);
  merge_codes(sums, work.rows + row, work.values + row,
              work.records + static_cast<std::size_t>(row) * shape.record_stride,
              shape.record_stride, channel);
}

template <class Dots, int R>
HWY_NOINLINE void weigh_rows(const Segment& segment, const Shape& shape, const Work& work, int row,
                             int channel, int channel_end, const std::uint8_t* const* strips) {
  constexpr int C = strips_beside(2 * R);
  const StripRange seen = seen_strips(segment, work.rows + row, R);
  for (; channel + 16 * C <= channel_end; channel += 16 * C) {
    weigh_panels_of<Dots, R, C>(seen, shape, work, row, channel, strips);
  }
  for (; C > 1 && channel < channel_end; channel += 16) {
    weigh_panels_of<Dots, R, 1>(seen, shape, work, row, channel, strips);
  }
}

/// Rows of those left that V is weighed with next: three fill the accumulators beside 64 channels,
/// four beside 32 cost one pass over V less than three and one.
constexpr int value_rows(int n_left) {
  if (kIsScalar) return 1;
  if (n_left == 4) return kRegs == 1 ? 4 : 2;
  return std::min(n_left, 3);
}

/// Calls visit(std::integral_constant<int, R>, row) for rows [0, n_rows), R at a time.
template <class Visit>
HWY_INLINE void for_value_rows(int n_rows, Visit visit) {
  for (int row = 0, n = 0; row < n_rows; row += n) {
    n = value_rows(n_rows - row);
    const auto take = [&](auto r) {
      if (n == r()) visit(r, row);
    };
    take(std::integral_constant<int, 1>());
    if constexpr (!kIsScalar) {
      take(std::integral_constant<int, 2>());
      take(std::integral_constant<int, 3>());
    }
    if constexpr (value_rows(4) == 4) take(std::integral_constant<int, 4>());
  }
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

template <class Dots>
void weigh_staged_codes(const Block& block, const Segment& segment, const Shape& shape,
                        const Work& work) {
  const Places places(block, segment, true);
  const std::uint8_t* strips[kSegmentStrips];
  auto* bytes = reinterpret_cast<std::uint8_t*>(work.v);
  for_each_stretch(segment.strips(), [&](int begin, int end) {
    const int first = begin / kChunkStrips * kChunkStrips;
    std::uint8_t* out = bytes + first * 16 * shape.head_dim;
    const CodecId codec = places.layout(begin).codec;
    const bool is_tile = cache::is_tile_codec(codec);
    if (is_tile) {
      with_tile_codec(codec, [&](auto tile) {
        unpack_values<tile()>(places.codes(first, 0), shape.head_dim, out);
      });
    }
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
    make_staged_factors(block, segment, scales, group, shape, work);
    for_value_rows(shape.n_rows, [&](auto n_rows, int row) {
      next_keys.step();
      if (!sees_any(work.rows + row, n_rows(), 0, kSegmentTokens)) return;
      weigh_rows<Dots, n_rows()>(segment, shape, work, row, begin, end, strips);
    });
  });
}

/// Strips [begin, end) of V of one kv head, which lie in one stretch of 64 tokens.
struct ValueChunk {
  const Places& places;
  int head;
  int begin, end;          ///< in the segment
  bool is_first, is_last;  ///< of it
  FetchAhead& fetch;
};

template <class Dots, int R, int C>
HWY_INLINE void add_chunk(const ValueChunk& chunk, int channel, int head_dim,
                          const std::uint8_t* planes, CodeSums<R, C>& sums) {
  const CodecId codec = chunk.places.layout(chunk.begin).codec;
  if (cache::is_tile_codec(codec)) {
    const int first = chunk.begin / kChunkStrips * kChunkStrips;
    with_tile_codec(codec, [&](auto tile) {
      weigh_packed<Dots, tile(), R, C>(sums, chunk.places.codes(first, chunk.head), head_dim,
                                       channel, chunk.fetch, planes + 32 * first);
    });
    return;
  }
  const std::uint8_t* at[kChunkStrips];
  const int n_strips = chunk.end - chunk.begin;
  for (int i = 0; i < n_strips; ++i) {
    at[i] = chunk.places.codes(chunk.begin + i, chunk.head) + 4 * channel;
  }
  weigh_codes<Dots, R, C, true>(sums, at, 0, n_strips, 4 * head_dim, chunk.fetch,
                                planes + 32 * chunk.begin);
}

/// Adds a chunk to the sums of rows [row, row + R), which are kept in `work.v` between chunks:
/// [rows][head_dim].
template <class Dots, int R, int C>
HWY_INLINE void weigh_panels(const ValueChunk& chunk, const Shape& shape, const Work& work, int row,
                             int channel) {
  auto* kept = reinterpret_cast<std::int32_t*>(work.v) + row * shape.head_dim + channel;
  CodeSums<R, C> sums;
  if (chunk.is_first) {
    sums.clear();
  } else {
    sums.load(kept, shape.head_dim);
  }
  add_chunk<Dots>(chunk, channel, shape.head_dim, work.planes + row * kPlaneBytes, sums);
  if (!chunk.is_last) {
    sums.store(kept, shape.head_dim);
    return;
  }
  merge_codes(sums, work.rows + row, work.values + row,
              work.records + static_cast<std::size_t>(row) * shape.record_stride,
              shape.record_stride, channel);
}

template <class Dots, int R>
HWY_NOINLINE void weigh_chunk(const ValueChunk& chunk, const Shape& shape, const Work& work,
                              int row, int channel, int channel_end) {
  constexpr int C = strips_beside(2 * R);
  for (; channel + 16 * C <= channel_end; channel += 16 * C) {
    weigh_panels<Dots, R, C>(chunk, shape, work, row, channel);
  }
  for (; C > 1 && channel < channel_end; channel += 16) {
    weigh_panels<Dots, R, 1>(chunk, shape, work, row, channel);
  }
}

/// The factors of all rows of a block of one position: a kv head's see the same.
void make_direct_factors(const Block& block, const Segment& segment, const Places& places,
                         int group, const Shape& shape, const Work& work) {
  const int n_rows = block.heads_per_kv_head();
  const int n_groups = cache::channel_groups(block.kv->rows.v.codec, shape.head_dim);
  const Row& seen_by_all = work.rows[0];
  SeenScales seen;
  for (int head = 0; head < block.n_kv_heads; ++head) {
    load_value_scales(segment, places, head, group, seen);
    see_scales(seen_by_all.begin, seen_by_all.end, seen);
    const auto write = choose_write_factors(seen.has_centre, group, n_groups);
    for (int r = head * n_rows; r < (head + 1) * n_rows; ++r) {
      // A window may begin within a tile, which is weighed as a whole.
      std::uint8_t* planes = work.planes + static_cast<std::ptrdiff_t>(r) * kPlaneBytes;
      const int first = segment.strip_begin / kChunkStrips * kChunkStrips;
      std::fill(planes + 32 * first, planes + 32 * segment.strip_begin, std::uint8_t{0});
      make_factors(seen, write, group, r, shape.record_stride, work);
    }
  }
}

template <class Dots>
void weigh_direct_codes(const Block& block, const Segment& segment, const Shape& shape,
                        const Work& work) {
  const Places places(block, segment, true);
  const int n_rows = block.heads_per_kv_head();
  FetchAhead nothing;  // with rows that read once more what others have read
  for_each_group(block, [&](int group, int channel, int channel_end) {
    make_direct_factors(block, segment, places, group, shape, work);
    for_each_stretch(segment.strips(), [&](int begin, int end) {
      const bool is_first = begin == segment.strip_begin, is_last = end == segment.strip_end;
      for (int head = 0; head < block.n_kv_heads; ++head) {
        for_value_rows(n_rows, [&](auto n, int r) HWY_ATTR {
          const ValueChunk chunk{
              places, head, begin, end, is_first, is_last, r == 0 ? *work.fetch : nothing};
          weigh_chunk<Dots, n()>(chunk, shape, work, head * n_rows + r, channel, channel_end);
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
  with_dots([&](auto dots) {
    using Dots = decltype(dots);
    if (block.is_direct()) {
      weigh_direct_codes<Dots>(block, segment, shape, work);
    } else {
      weigh_staged_codes<Dots>(block, segment, shape, work);
    }
  });
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
