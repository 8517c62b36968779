#include "attention/kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/coded_kernel.h"
#include "attention/work.h"
#include "simd/targets.h"

// VNNI has nothing for f32: AVX3_DL would be AVX3 once more, a quarter of this file's build time.
// (Highway's dispatch goes by the targets of each source file.)
#undef HWY_WANT_AVX3_DL

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/kernel.cc"
// clang-format off: foreach_target.h comes before all that is compiled per target
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on
#include "attention/direct-inl.h"
#include "attention/lanes-inl.h"
#include "attention/merge-inl.h"
#include "attention/segment.h"
#include "attention/softmax-inl.h"
#include "attention/staged-inl.h"
#include "attention/terms-inl.h"
#include "attention/tiles-inl.h"
#include "simd/hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

/// A row of q as K is multiplied with: rounded to bf16, in pairs. Returns `q` or `row`, which has
/// room for whole vectors.
template <class K>
const float* prepare_query(const float* HWY_RESTRICT q, int head_dim, float* HWY_RESTRICT row) {
  if constexpr (!kIsRounded<K>) return q;
  const Tag8 tag;
  for (int d = 0; d < head_dim; d += kLanesOf<Tag8>) {
    hn::StoreU(round_to_bf16(tag, hn::LoadU(tag, q + d)), tag, row + d);
  }
#if KVASIR_DOT_BF16
  if constexpr (kIsPaired<K>) pack_pairs(row, (head_dim + 15) / 16 * 16, row);
#endif
  return row;
}

/// q of a tile: [head_dim][rows] (paired: [head_dim / 2][rows]), so that one step reads neighbours.
template <class K>
void pack_queries(const Block& block, const Tiles& tiles, const Work& work) {
  float* HWY_RESTRICT packed = work.q;
  const int head_dim = block.params->head_dim;
  const int n_factors = factor_of<K>(head_dim);
  HWY_ALIGN float prepared[kMaxDirectHeads][kMaxHeadDim];
  static_assert(kTileRows <= kMaxDirectHeads);
  for (int tile = 0; tile < tiles.n_tiles; ++tile) {
    const int n_rows = tiles.rows(tile);
    const float* rows[kMaxDirectHeads];
    for (int r = 0; r < n_rows; ++r) {
      const int row = tiles.first_row(tile) + r;
      const float* q =
          block.q + static_cast<std::size_t>(row / block.n_heads) * block.params->q_row_stride +
          static_cast<std::size_t>(row % block.n_heads) * static_cast<std::size_t>(head_dim);
      rows[r] = prepare_query<K>(q, head_dim, prepared[r]);
    }
    for (int i = 0; i < n_factors; ++i) {
      for (int r = 0; r < n_rows; ++r) *packed++ = rows[r][i];
    }
    packed += static_cast<std::ptrdiff_t>(n_rows) * (head_dim - n_factors);
  }
}

template <class V>
void softmax_rows(const Work& work, int n_rows, float softcap, std::size_t record_stride) {
  // Step by step for all rows: one row's steps wait for each other, those of several do not.
  for (int r = 0; r < n_rows; ++r) {
    Row& row = work.rows[r];
    if (!row.is_visible()) continue;
    row.maximum = finish_scores(work.scores + r * kSegmentTokens, row.begin, row.end, softcap);
  }
  for (int r = 0; r < n_rows; ++r) {
    Row& row = work.rows[r];
    if (!row.is_visible()) continue;
    row.sum = exponentiate<V>(work.scores + r * kSegmentTokens, row.begin, row.end, row.maximum);
  }
  for (int r = 0; r < n_rows; ++r) {
    Row& row = work.rows[r];
    if (!row.is_visible()) continue;
    float* record = work.records + static_cast<std::size_t>(r) * record_stride;
    RecordHeader header = load_header(record);
    merge_headers(header, {row.maximum, row.sum, 1.0f}, row);
    store_header(record, header);
  }
}

template <class K>
void score_keys(const Block& block, const Segment& segment, const Shape& shape, const Tiles& tiles,
                const Work& work) {
  if (block.is_direct()) {
    const auto score = choose_score_direct<K>(block.heads_per_kv_head());
    for_each_chunk<false>(segment, shape, [&](const Chunk& c) { score(c, shape, work); });
  } else {
    score_staged<K>(segment, shape, tiles, work);
  }
}

template <class V>
void weigh_values(const Block& block, const Segment& segment, const Shape& shape,
                  const Tiles& tiles, const Work& work) {
  softmax_rows<V>(work, shape.n_rows, block.params->softcap, shape.record_stride);
  if (block.is_direct()) {
    const auto weigh = choose_weigh_direct<V>(block.heads_per_kv_head());
    for_each_chunk<true>(segment, shape, [&](const Chunk& c) { weigh(c, segment, shape, work); });
  } else {
    weigh_staged<V>(segment, shape, tiles, work);
  }
}

/// The steps on a segment, by the codecs of K and V.
using PackFunction = void (*)(const Block&, const Tiles&, const Work&);
using StepFunction = void (*)(const Block&, const Segment&, const Shape&, const Tiles&,
                              const Work&);
struct Functions {
  PackFunction pack_queries = nullptr;
  StepFunction score = nullptr;
  StepFunction weigh = nullptr;
};

/// Calls visit(value) with a value of the type that `codec` is stored and multiplied as.
template <class Visit>
void with_codec(cache::CodecId codec, Visit visit) {
  switch (codec) {
    case cache::CodecId::kF32:
      return visit(float());
    case cache::CodecId::kF16:
      return visit(F16());
    case cache::CodecId::kBF16:
#if KVASIR_DOT_BF16
      if (has_dot_bf16()) return visit(DotBF16());
#endif
      return visit(BF16());
    default:
      break;
  }
}

void weigh_coded(const Block& block, const Segment& segment, const Shape& shape, const Tiles&,
                 const Work& work) {
  weigh_coded_values(block, segment, shape, work);
}

Functions choose_functions(const cache::PagedKvView& kv) {
  Functions functions{pack_coded_queries, score_coded_keys, weigh_coded};
  with_codec(kv.rows.k.codec, [&](auto k) {
    functions.pack_queries = pack_queries<decltype(k)>;
    functions.score = score_keys<decltype(k)>;
  });
  with_codec(kv.rows.v.codec, [&](auto v) { functions.weigh = weigh_values<decltype(v)>; });
  return functions;
}

void write_row(const Block& block, int row, const float* record) {
  const auto head_dim = static_cast<std::size_t>(block.params->head_dim);
  const float inverse = 1.0f / load_header(record).sum;
  float* HWY_RESTRICT out =
      block.out + static_cast<std::size_t>(row / block.n_heads) * block.params->out_row_stride +
      static_cast<std::size_t>(row % block.n_heads) * head_dim;
  const float* values = record + kRecordHeader;
  // Weighing and the transform are linear: it is undone once, at the end.
  if (cache::is_hadamard(block.kv->rows.v.codec)) {
    simd::HWY_NAMESPACE::Hadamard(values, block.params->head_dim, inverse, out);
    return;
  }
  const auto scale_from = [&](auto tag, std::size_t d) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::LoadU(tag, values + d), hn::Set(tag, inverse)), tag, out + d);
  };
  std::size_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) scale_from(Tag16(), d);
  for (; d < head_dim; d += kLanesOf<Tag8>) scale_from(Tag8(), d);
}

void clear_headers(float* records, int n_rows, std::size_t record_stride) {
  for (int r = 0; r < n_rows; ++r) {
    store_header(records + static_cast<std::size_t>(r) * record_stride, {0.0f, 0.0f, 0.0f});
  }
}

void attend_segments(const Block& block, int segment_begin, int segment_end, std::uint8_t* memory) {
  const cache::PagedKvView& kv = *block.kv;
  const int head_dim = block.params->head_dim;
  Shape shape;
  shape.head_dim = head_dim;
  shape.n_rows = block.n_rows();
  shape.n_kv_heads = block.n_kv_heads;
  shape.scale = block.params->scale;
  shape.k_head_stride = kv.rows.k.head_stride;
  shape.v_head_stride = kv.rows.v.head_stride;
  shape.v_row_stride = kv.rows.v.row_stride();
  shape.k_strip_bytes = cache::code_bytes(kv.rows.k.codec, head_dim, 16);
  shape.v_row_bytes = cache::code_bytes(kv.rows.v.codec, head_dim, 16) / 16;
  shape.record_stride = record_floats(head_dim);

  std::size_t bytes = 0;
  Work work = lay_out_work(memory, head_dim, shape.n_rows, &bytes);
  // Direct: a tile per kv head.
  const Tiles tiles(shape.n_rows, block.is_direct() ? block.heads_per_kv_head() : kTileRows);
  const Functions functions = choose_functions(kv);
  if (*work.q_of != &block) {  // a thread often does several tasks of a block in turn
    functions.pack_queries(block, tiles, work);
    *work.q_of = &block;
  }
  if (block.partials == nullptr) clear_headers(work.records, shape.n_rows, shape.record_stride);
  Segment segment;
  FetchAhead fetch;
  work.fetch = &fetch;
  for (int index = segment_begin; index < segment_end; ++index) {
    if (block.partials != nullptr) {
      work.records = block.partials + static_cast<std::size_t>(index - block.segment_begin) *
                                          static_cast<std::size_t>(shape.n_rows) *
                                          shape.record_stride;
      clear_headers(work.records, shape.n_rows, shape.record_stride);
    }
    find_visible(block, index, work.rows, segment);
    // What follows is most often this thread's next task.
    find_strips(block, index, index + 1 < block.segment_end, segment);
    if (block.is_direct()) fetch.begin(block, index);
    functions.score(block, segment, shape, tiles, work);
    functions.weigh(block, segment, shape, tiles, work);
  }
  if (block.partials != nullptr) return;
  for (int row = 0; row < shape.n_rows; ++row) {
    write_row(block, row, work.records + static_cast<std::size_t>(row) * shape.record_stride);
  }
}

void merge_partials(const Block& block, int row_begin, int row_end) {
  const int head_dim = block.params->head_dim;
  const std::size_t stride = record_floats(head_dim);
  const PrefixRecords& prefix = block.prefix;
  const int n_segments = prefix.n_segments + block.segment_end - block.segment_begin;
  const auto record = [&](int row, int i) {
    if (i >= prefix.n_segments) {
      const int place = (i - prefix.n_segments) * block.n_rows() + row;
      return block.partials + static_cast<std::size_t>(place) * stride;
    }
    // A block with a prefix has one position: its rows are heads.
    const int n_heads = block.heads_per_kv_head();
    const int shared_row = i * prefix.n_rows + prefix.first_row + row % n_heads;
    return prefix.records + static_cast<std::size_t>(row / n_heads) * prefix.kv_head_stride +
           static_cast<std::size_t>(shared_row) * stride;
  };
  // Other cores have written most of them: fetched while those before are merged.
  const auto fetch = [&](int row, int first) {
    const int end = std::min(n_segments, first + kMergedTogether + 1);
    for (int i = first; i < end; ++i) {
      for (std::size_t d = 0; d < stride; d += 16) hwy::Prefetch(record(row, i) + d);
    }
  };
  fetch(row_begin, 0);
  for (int row = row_begin; row < row_end; ++row) {
    for (int first = 1; first < n_segments; first += kMergedTogether) {
      const float* records[kMergedTogether];
      const int n = std::min(kMergedTogether, n_segments - first);
      for (int i = 0; i < n; ++i) records[i] = record(row, first + i);
      if (first + n < n_segments) fetch(row, first + n);
      if (first + n == n_segments && row + 1 < row_end) fetch(row + 1, 0);
      merge_records({records, static_cast<std::size_t>(n)}, head_dim, record(row, 0));
    }
    write_row(block, row, record(row, 0));
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::attention {

HWY_EXPORT(attend_segments);
HWY_EXPORT(merge_partials);

void clear_work(std::uint8_t* work) {
  std::size_t bytes = 0;
  *lay_out_work(work, 0, 0, &bytes).q_of = nullptr;
}

std::size_t work_bytes(int head_dim, int n_rows) {
  std::size_t bytes = 0;
  (void)lay_out_work(nullptr, head_dim, n_rows, &bytes);
  return bytes;
}

void attend_segments(const Block& block, int segment_begin, int segment_end,
                     std::uint8_t* work) noexcept {
  HWY_DYNAMIC_DISPATCH(attend_segments)(block, segment_begin, segment_end, work);
}

void merge_partials(const Block& block, int row_begin, int row_end) noexcept {
  HWY_DYNAMIC_DISPATCH(merge_partials)(block, row_begin, row_end);
}

}  // namespace kvasir::attention
#endif  // HWY_ONCE
