// A thread's work memory for one block: packed queries, scores, records, copies of K and V.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/fetch_ahead.h"
#include "attention/kernel.h"
#include "cache/codec/codec.h"
#include "cache/page/geometry.h"

namespace kvasir::attention {

inline constexpr int kSegmentStrips = kSegmentTokens / cache::kStripTokens;
/// Strips of K that are copied at a time.
inline constexpr int kStagedStrips = 4;
/// Panels of 16 channels of V that are copied at a time: 64 channels, whole lines of f16.
inline constexpr int kStagedPanels = 4;
/// Floats from panel to panel: one line more than a segment's, so that panels do not alias in L1.
inline constexpr std::size_t kPanelFloats = std::size_t{kSegmentTokens} * 16 + 16;

/// A row of the block in the segment at hand.
struct Row {
  int begin = 0, end = 0;  ///< visible tokens, counted from the segment's first
  float maximum = 0.0f;    ///< of its scores
  float sum = 0.0f;        ///< of its factors
  float keep = 0.0f;       ///< factor of what the record holds
  float add = 0.0f;        ///< factor of the segment's own sum
  bool is_first = true;    ///< nothing in the record yet: the segment's sum is stored as it is
  bool is_visible() const { return begin < end; }
};

/// Groups of channels with a scale of their own at most (cache::channel_groups).
inline constexpr int kMaxGroups = 4;
/// Channels of q that share one where K has groups: half of theirs, because in the plain basis a
/// few channels are much larger than the rest.
inline constexpr int kQueryPartChannels = cache::kGroupChannels / 2;
inline constexpr int kMaxQueryParts = 2 * kMaxGroups;
/// A row's factors in codes: per strip of 16 tokens their upper 7 bits, then their lower 7.
inline constexpr int kPlaneBytes = 2 * kSegmentTokens;

/// A row of q in codes.
struct CodedQuery {
  float factor[kMaxQueryParts]{};            ///< of a code of each part, times the scale of scores
  std::int32_t minus_sum[kMaxQueryParts]{};  ///< of the codes of each part, negative
};

/// What a row's sums of codes of V are worth, of the group of channels at hand.
struct CodedValues {
  float scale = 0.0f, centre = 0.0f;
};

// `v` holds the values so far of a direct block's rows.
static_assert(kStagedPanels * kPanelFloats >= std::size_t{kMaxDirectRows} * kMaxHeadDim);

struct Work {
  const Block** q_of = nullptr;  ///< the block whose queries `q` holds; null at a call's start
  float* q = nullptr;            ///< [tile][head_dim][rows of the tile]
  float* scores = nullptr;       ///< [n_rows][kSegmentTokens]: scores, then probabilities
  float* records = nullptr;      ///< [n_rows][record_floats]
  float* k = nullptr;            ///< [kStagedStrips][head_dim][16]
  float* v = nullptr;   ///< [kStagedPanels][kPanelFloats]; direct: values of [n_rows] so far
  Row* rows = nullptr;  ///< [n_rows]
  // Coded K and V (coded_kernel.cc). Codes of q lie in `q`.
  CodedQuery* queries = nullptr;   ///< [n_rows]
  CodedValues* values = nullptr;   ///< [n_rows]
  std::uint8_t* planes = nullptr;  ///< [n_rows][kPlaneBytes]
  FetchAhead* fetch = nullptr;     ///< of the segment at hand; of many positions nothing
};

/// Lays the buffers out in `memory`; sets `*bytes` to what they need. `memory` may be null.
inline Work lay_out_work(std::uint8_t* memory, int head_dim, int n_rows, std::size_t* bytes) {
  std::size_t used = 0;
  const auto take = [&](std::size_t n_bytes) {
    std::uint8_t* at = memory == nullptr ? nullptr : memory + used;
    used += (n_bytes + 63) / 64 * 64;
    return at;
  };
  const auto take_floats = [&](std::size_t n) {
    return reinterpret_cast<float*>(take(n * sizeof(float)));
  };
  const auto rows = static_cast<std::size_t>(n_rows);
  const auto channels = static_cast<std::size_t>(head_dim);
  Work work;
  work.q_of = reinterpret_cast<const Block**>(take(sizeof(*work.q_of)));
  work.q = take_floats(rows * channels);
  work.scores = take_floats(rows * kSegmentTokens);
  work.records = take_floats(rows * record_floats(head_dim));
  work.k = take_floats(kStagedStrips * channels * cache::kStripTokens);
  work.v = take_floats(kStagedPanels * kPanelFloats);
  work.rows = reinterpret_cast<Row*>(take(rows * sizeof(Row)));
  work.queries = reinterpret_cast<CodedQuery*>(take(rows * sizeof(CodedQuery)));
  work.values = reinterpret_cast<CodedValues*>(take(rows * sizeof(CodedValues)));
  work.planes = take(rows * kPlaneBytes);
  *bytes = used;
  return work;
}

}  // namespace kvasir::attention
