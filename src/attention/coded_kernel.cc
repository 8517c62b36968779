// K and V in codes: byte dots against what is stored, or against tiles that were unpacked to bytes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/kernel.h"
#include "attention/meanwhile.h"
#include "attention/segment.h"
#include "attention/work.h"
#include "cache/codec/tile_codec.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/coded_kernel.cc"
// clang-format off: foreach_target.h comes before all that is compiled per target
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on
#include "attention/codes-inl.h"
#include "attention/factors-inl.h"
#include "attention/softmax-inl.h"
#include "attention/unpack-inl.h"
#include "simd/hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

using cache::CodecId;

/// Measured: 2 and 3 are equal for tiles; 1, 3 and 4 are 5 to 10 % slower for int8.
constexpr int kHeadsAhead = 2;

/// Codes of one row: q = factor * code, with the Hadamard transform where K has it.
void encode_query(const float* q, int head_dim, bool is_hadamard, int group_channels, float scale,
                  std::int8_t* codes, CodedQuery& query) {
  HWY_ALIGN float row[kMaxHeadDim];
  std::copy(q, q + head_dim, row);
  if (is_hadamard) simd::HWY_NAMESPACE::Hadamard(row, head_dim);
  const Tag16 tag;
  const hn::RebindToSigned<Tag16> ti;
  const hn::Rebind<std::int8_t, Tag16> t8;
  auto largest = hn::Zero(tag), zeros = hn::Zero(tag);  // the latter NaN if some value is not finite
  for (int d = 0; d < head_dim; d += kLanes) {
    const auto value = hn::Load(tag, row + d);
    largest = hn::Max(largest, hn::Abs(value));
    zeros = hn::Add(zeros, hn::Mul(value, hn::Zero(tag)));
  }
  HWY_ALIGN float lanes[16];
  hn::Store(zeros, tag, lanes);
  float zero = 0.0f;
  for (int i = 0; i < kLanes; ++i) zero += lanes[i];
  const float most = hn::GetLane(hn::MaxOfLanes(tag, largest));
  const bool is_usable = most > 0.0f && zero == 0.0f;
  query = {};
  query.factor = most / 127.0f * scale + zero;
  const auto inverse = hn::Set(tag, is_usable ? 127.0f / most : 0.0f);
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to nearest even
  for (int d = 0; d < head_dim; d += kLanes) {
    const auto shifted = sn::FusedMulAdd(hn::Load(tag, row + d), inverse, hn::Set(tag, kMagic));
    auto code = hn::Sub(hn::BitCast(ti, shifted), hn::BitCast(ti, hn::Set(tag, kMagic)));
    if (!is_usable) code = hn::Zero(ti);
    hn::StoreU(hn::DemoteTo(t8, code), t8, codes + d);
    query.minus_sum[d / group_channels] -= hn::GetLane(hn::SumOfLanes(ti, code));
  }
}

/// Channels of K that share a scale.
int key_group_channels(const Block& block) {
  return block.kv->rows.k.codec == CodecId::kInt8G64 ? cache::kGroupChannels
                                                     : block.params->head_dim;
}

void pack_coded_queries(const Block& block, const Tiles& tiles, const Work& work) {
  const int head_dim = block.params->head_dim;
  const int group_channels = key_group_channels(block);
  const bool is_hadamard = cache::is_hadamard(block.kv->rows.k.codec);
  HWY_ALIGN std::int8_t codes[kMaxHeadDim];
  for (int tile = 0; tile < tiles.n_tiles; ++tile) {
    const int n_rows = tiles.rows(tile), first = tiles.first_row(tile);
    auto* packed = reinterpret_cast<std::int8_t*>(work.q + static_cast<std::ptrdiff_t>(first) *
                                                               head_dim);
    for (int r = 0; r < n_rows; ++r) {
      const int row = first + r;
      const float* q =
          block.q + static_cast<std::size_t>(row / block.n_heads) * block.params->q_row_stride +
          static_cast<std::size_t>(row % block.n_heads) * static_cast<std::size_t>(head_dim);
      encode_query(q, head_dim, is_hadamard, group_channels, block.params->scale, codes,
                   work.queries[row]);
      for (int quad = 0; quad < head_dim / 4; ++quad) {
        std::memcpy(packed + (quad * n_rows + r) * 4, codes + 4 * quad, 4);
      }
    }
  }
}

void unpack_keys_of(CodecId codec, const std::uint8_t* codes, const cache::KTileMeta& meta,
                    int head_dim, const std::uint8_t* ahead, std::uint8_t* out) {
#if HWY_TARGET == HWY_SCALAR
  (void)ahead;
  cache::unpack_k_tile_codes(codec, head_dim, codes, out);
  for (int i = 0; i < kChunkTokens * head_dim; ++i) {
    const int d = i / 64 % (head_dim / 4) * 4 + i % 4;
    out[i] = static_cast<std::uint8_t>(meta.step[d] * out[i] + meta.offset[d] + 128);
  }
#else
  switch (codec) {
    case CodecId::kTile3:
      return unpack_keys<CodecId::kTile3>(codes, meta, head_dim, ahead, out);
    case CodecId::kTile4:
      return unpack_keys<CodecId::kTile4>(codes, meta, head_dim, ahead, out);
    default:
      return unpack_keys<CodecId::kTile5>(codes, meta, head_dim, ahead, out);
  }
#endif
}

void unpack_values_of(CodecId codec, const std::uint8_t* codes, int head_dim,
                      const std::uint8_t* ahead, std::uint8_t* out) {
#if HWY_TARGET == HWY_SCALAR
  (void)ahead;
  cache::unpack_v_tile_codes(codec, head_dim, codes, reinterpret_cast<std::int8_t*>(out));
#else
  switch (codec) {
    case CodecId::kTile3:
      return unpack_values<CodecId::kTile3>(codes, head_dim, ahead, out);
    case CodecId::kTile4:
      return unpack_values<CodecId::kTile4>(codes, head_dim, ahead, out);
    default:
      return unpack_values<CodecId::kTile5>(codes, head_dim, ahead, out);
  }
#endif
}

/// Where strip `strip` of the segment lies in K, or V, of a kv head counted from the block's first.
struct Places {
  Places(const Block& block, const Segment& segment, bool is_v)
      : rows(is_v ? block.kv->rows.v : block.kv->rows.k),
        tiles(is_v ? block.kv->tiles.v : block.kv->tiles.k),
        is_tile(segment.is_tile),
        strips(is_v ? segment.v : segment.k),
        metas(is_v ? segment.v_meta : segment.k_meta) {}
  const cache::SideLayout& layout(int strip) const {
    return is_tile[strip / kChunkStrips] ? tiles : rows;
  }
  const std::uint8_t* codes(int strip, int head) const {
    return strips[strip] + static_cast<std::size_t>(head) * layout(strip).head_stride;
  }
  const std::uint8_t* meta(int strip, int head) const {
    return metas[strip] + static_cast<std::size_t>(head) * layout(strip).meta_head_stride;
  }
  const cache::SideLayout& rows;
  const cache::SideLayout& tiles;
  const bool* is_tile;
  const std::uint8_t* const* strips;
  const std::uint8_t* const* metas;
};

/// Strips [begin, end) of the segment, which lie in one stretch of 64 tokens, of a kv head.
/// `ahead`: what is fetched meanwhile, by strip of the segment.
void load_keys(const Block& block, const Places& places, int head, int begin, int end,
               const std::uint8_t* const* ahead, const Work& work, KeyChunk& chunk) {
  const int head_dim = block.params->head_dim;
  const CodecId codec = places.layout(begin).codec;
  chunk.n_strips = end - begin;
  chunk.group_channels = key_group_channels(block);
  if (cache::is_tile_codec(codec)) {  // of which the tile is whole
    const cache::KTileMeta meta(head_dim, places.meta(begin / kChunkStrips * kChunkStrips, head));
    auto* bytes = reinterpret_cast<std::uint8_t*>(work.k);
    const std::uint8_t* codes = places.codes(begin / kChunkStrips * kChunkStrips, head);
    unpack_keys_of(codec, codes, meta, head_dim, ahead[begin] != nullptr ? ahead[begin] : codes,
                   bytes);
    HWY_ALIGN float scale[kChunkTokens];
    unpack_scales<cache::kKScaleShift>(meta.scale, cache::kKScaleBias, meta.token_base, meta.base,
                                       kChunkTokens, scale);
    const int skipped = begin % kChunkStrips;
    std::copy(scale + 16 * skipped, scale + kChunkTokens, chunk.scale[0]);
    for (int i = 0; i < chunk.n_strips; ++i) {
      chunk.strips[i] = chunk.ahead[i] = bytes + (skipped + i) * 16 * head_dim;
    }
    return;
  }
  const int n_groups = cache::channel_groups(codec, head_dim);
  for (int i = 0; i < chunk.n_strips; ++i) {
    chunk.strips[i] = places.codes(begin + i, head);
    chunk.ahead[i] = ahead[begin + i] != nullptr ? ahead[begin + i] : chunk.strips[i];
    const std::uint8_t* meta = places.meta(begin + i, head);
    for (int group = 0; group < n_groups; ++group) {
      unpack_halves(meta, chunk.scale[group] + 16 * i);
      meta += 32;
      if (codec != CodecId::kInt8G64) continue;
      unpack_halves(meta, chunk.centre[group] + 16 * i);
      meta += 32;
    }
  }
}

/// Scales of V of a kv head and group of channels, of the segment's visible strips.
void load_value_scales(const Segment& segment, const Places& places, int head, int group,
                       ValueScales& scales) {
  scales.has_centre = false;
  for (int strip = segment.strip_begin; strip < segment.strip_end; ++strip) {
    const int token = 16 * strip;
    const CodecId codec = places.layout(strip).codec;
    if (cache::is_tile_codec(codec)) {
      const int first = strip / kChunkStrips * kChunkStrips;
      if (strip != std::max(first, segment.strip_begin)) continue;
      unpack_value_scales(places.meta(first, head), scales.scale + 16 * first,
                          scales.centre + 16 * first);
      scales.has_centre = true;
      continue;
    }
    const std::uint8_t* meta = places.meta(strip, head);
    if (codec == CodecId::kInt8G64) {
      unpack_halves(meta + 64 * group, scales.scale + token);
      unpack_halves(meta + 64 * group + 32, scales.centre + token);
      scales.has_centre = true;
    } else {
      unpack_halves(meta, scales.scale + token);
      std::fill_n(scales.centre + token, 16, 0.0f);
    }
  }
}

/// Strips [begin, end) of the segment in one stretch of 64 tokens: calls visit(begin, end).
template <class Visit>
void for_each_stretch(const Segment& segment, Visit visit) {
  for (int at = segment.strip_begin / kChunkStrips * kChunkStrips; at < segment.strip_end;
       at += kChunkStrips) {
    visit(std::max(at, segment.strip_begin), std::min(at + kChunkStrips, segment.strip_end));
  }
}

/// What is fetched while a stretch of a kv head is read: what lies kHeadsAhead kv heads on in the
/// order of reading, stretch by stretch; behind the last one of K is the first one of V, and behind
/// that of V the next segment's K.
class Ahead {
 public:
  Ahead(const Block& block, const Segment& segment, bool is_v)
      : here_(block, segment, is_v),
        segment_(segment),
        n_heads_(block.n_kv_heads),
        n_then_(is_v ? segment.n_next : segment.strip_end - segment.strip_begin),
        then_(is_v ? segment.next_k : segment.v + segment.strip_begin),
        then_meta_(is_v ? segment.next_k_meta : segment.v_meta + segment.strip_begin) {
    const cache::PagedKvView& kv = *block.kv;
    const Places values(block, segment, true);
    then_layout_ = is_v ? (kv.has_tiles() ? &kv.tiles.k : &kv.rows.k)
                        : &values.layout(segment.strip_begin);
  }
  /// Fills in `ahead` for strips [begin, end) of a kv head, and fetches their scales.
  void find(int begin, int end, int head, const std::uint8_t** ahead) const {
    int stretch = begin / kChunkStrips;
    for (head += kHeadsAhead; head >= n_heads_; head -= n_heads_) ++stretch;
    const int first = stretch == begin / kChunkStrips ? begin : stretch * kChunkStrips;
    const int last_stretch = (segment_.strip_end + kChunkStrips - 1) / kChunkStrips;
    const auto offset = static_cast<std::size_t>(head);
    const bool is_here = first < segment_.strip_end;
    const int then = (stretch - last_stretch) * kChunkStrips;
    const cache::SideLayout& layout = is_here ? here_.layout(first) : *then_layout_;
    const std::uint8_t* meta = nullptr;
    if (is_here) {
      meta = here_.meta(first, head);
    } else if (then < n_then_) {
      meta = then_meta_[then] + offset * layout.meta_head_stride;
    }
    for (int i = 0; i < end - begin; ++i) {
      const std::uint8_t* at = nullptr;
      if (is_here) {
        if (first + i < segment_.strip_end) at = here_.codes(first + i, head);
      } else if (then + i < n_then_) {
        at = then_[then + i] + offset * layout.head_stride;
      }
      ahead[begin + i] = at;
    }
    if (meta == nullptr) return;
    for (std::size_t byte = 0; byte < kChunkStrips * layout.meta_strip_stride; byte += 64) {
      hwy::Prefetch(meta + byte);
    }
  }

 private:
  const Places here_;
  const Segment& segment_;
  const int n_heads_, n_then_;
  const std::uint8_t* const* then_;
  const std::uint8_t* const* then_meta_;
  const cache::SideLayout* then_layout_;
};

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
    RecordHeader header;
    std::memcpy(&header, record, sizeof(header));
    merge_headers(header, {at.maximum, at.sum, 1.0f}, at);
    std::memcpy(record, &header, sizeof(header));
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
  weigh_codes<R, C, false>(sums, at, at, segment.strip_begin, segment.strip_end,
                           4 * shape.head_dim, work.planes + row * kPlaneBytes);
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

/// Calls with_rows(std::integral_constant<int, R>, row) for rows [0, n_rows), R at a time.
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
                                int begin, int end, bool is_first, bool is_last,
                                const Shape& shape, const Work& work, int row, int channel,
                                int channel_end, std::int32_t* kept) {
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
      make_factors(block, segment, scales, group, head * n_rows, n_rows, shape.record_stride,
                   work);
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
    row.maximum = finish_scores(work.scores + r * kSegmentTokens, row.begin, row.end,
                                block.params->softcap);
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
