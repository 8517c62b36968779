// Register tiles of byte dots: scores of some rows of q against strips of K in codes, and rows of
// factors against V in codes. Sums are integers, exact whatever the order and the SIMD target.
//
// Included once per target by coded_kernel.cc (Highway's toggled guard).
// clang-format off
#if defined(KVASIR_ATTENTION_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
// clang-format on
#ifdef KVASIR_ATTENTION_CODES_INL_H_
#undef KVASIR_ATTENTION_CODES_INL_H_
#else
#define KVASIR_ATTENTION_CODES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/lanes-inl.h"
#include "attention/segment.h"
#include "attention/work.h"
#include "simd/cpu.h"
#include "simd/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::attention {
namespace HWY_NAMESPACE {

namespace sn = simd::HWY_NAMESPACE;
static_assert(sn::kLanes == kLanes && sn::kRegisters == kRegs);

/// How bytes are multiplied: K's as code + 128, V's with factors of 7 bits.
struct PlainDots {
  using Keys = sn::Dot<8, 128>;
  static HWY_INLINE sn::VI32 add_values(sn::VI32 sum, sn::Bytes factors, sn::Bytes values) {
    return sn::DotPositive(sum, factors, values);
  }
};
#if HWY_TARGET == HWY_AVX2
struct VnniDots {
  using Keys = sn::VnniDot<8, 128>;
  static HWY_INLINE sn::VI32 add_values(sn::VI32 sum, sn::Bytes factors, sn::Bytes values) {
    return sn::VnniDot<8, 0>::step(sum, factors, values);
  }
};
#endif

/// visit(one of these): the best that the CPU has.
template <class Visit>
void with_dots(Visit visit) {
#if HWY_TARGET == HWY_AVX2
  if (simd::use_avx_vnni()) return visit(VnniDots());
#endif
  visit(PlainDots());
}

inline constexpr int kChunkTokens = 16 * kChunkStrips;
inline constexpr int kRegBytes = 4 * kLanes;

/// Some strips of K of one kv head, as code + 128, and what a code is worth.
struct KeyChunk {
  int n_strips = 0;
  const std::uint8_t* strips[kChunkStrips];
  HWY_ALIGN float scale[kMaxGroups][kChunkTokens];
  HWY_ALIGN float centre[kMaxGroups][kChunkTokens];
};

/// Scores of R rows against strips [first, first + S) of a chunk. With kFetches, as many lines of
/// `fetch` are fetched.
///
/// Shapes    q: codes [head_dim / 4][R][4]; scores: rows kSegmentTokens apart
template <class Dots, int R, int S, bool kHasCentre, bool kFetches>
HWY_INLINE void score_codes_tile(const std::int8_t* HWY_RESTRICT q, const CodedQuery* queries,
                                 const KeyChunk& chunk, int first, int head_dim, FetchAhead& fetch,
                                 float* HWY_RESTRICT scores) {
  using Dot = typename Dots::Keys;
  constexpr int kVecs = S * kRegs;
  const Tag16 tag;
  using V = hn::Vec<Tag16>;
  V total[kHasCentre ? R : 1][kHasCentre ? kVecs : 1];
  const int part_channels = kHasCentre ? kQueryPartChannels : head_dim;
  for (int channel = 0, part = 0; channel < head_dim; channel += part_channels, ++part) {
    typename Dot::Sum acc[R][kVecs];
#pragma GCC unroll kUnroll
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
      for (int j = 0; j < kVecs; ++j) acc[r][j] = Dot::start(queries[r].minus_sum + part);
    }
    const int end = std::min(head_dim, channel + part_channels);
    for (int quad = channel / 4; quad < end / 4; ++quad) {
      typename Dot::Weights k[kVecs];
#pragma GCC unroll kUnroll
      for (int j = 0; j < kVecs; ++j) {
        const int at = quad * 64 + j % kRegs * kRegBytes;
        k[j] = Dot::prepare(sn::LoadBytes(chunk.strips[first + j / kRegs] + at));
      }
      if constexpr (kFetches) fetch.lines<S>();
#pragma GCC unroll kUnroll
      for (int r = 0; r < R; ++r) {
        const auto factor = sn::BroadcastQuad(q + (quad * R + r) * 4);
#pragma GCC unroll kUnroll
        for (int j = 0; j < kVecs; ++j) acc[r][j] = Dot::step(acc[r][j], k[j], factor);
      }
    }
#pragma GCC unroll kUnroll
    for (int r = 0; r < R; ++r) {
      const std::int32_t* minus_sum = queries[r].minus_sum + part;
      const auto factor = hn::Set(tag, queries[r].factor[part]);
      const int group = kHasCentre ? channel / cache::kGroupChannels : 0;
#pragma GCC unroll kUnroll
      for (int j = 0; j < kVecs; ++j) {
        const int token = first * 16 + j * kLanes;
        const auto dot = hn::ConvertTo(tag, Dot::finish(acc[r][j], minus_sum));
        V value = hn::Mul(dot, hn::Load(tag, chunk.scale[group] + token));
        if constexpr (kHasCentre) {
          const auto sum = hn::Set(tag, static_cast<float>(-*minus_sum));
          value = sn::FusedMulAdd(sum, hn::Load(tag, chunk.centre[group] + token), value);
        }
        value = hn::Mul(value, factor);
        if constexpr (kHasCentre) {
          total[r][j] = part == 0 ? value : hn::Add(total[r][j], value);
          value = total[r][j];
        }
        hn::Store(value, tag, scores + r * kSegmentTokens + j * kLanes);
      }
    }
  }
}

template <class Dots, int R, bool kHasCentre, bool kFetches>
HWY_NOINLINE void score_codes(const std::int8_t* q, const CodedQuery* queries,
                              const KeyChunk& chunk, int head_dim, FetchAhead& fetch,
                              float* scores) {
  constexpr int S = strips_beside(R);
  int i = 0;
  for (; i + S <= chunk.n_strips; i += S) {
    score_codes_tile<Dots, R, S, kHasCentre, kFetches>(q, queries, chunk, i, head_dim, fetch,
                                                       scores + i * 16);
  }
  for (; S > 1 && i < chunk.n_strips; ++i) {
    score_codes_tile<Dots, R, 1, kHasCentre, kFetches>(q, queries, chunk, i, head_dim, fetch,
                                                       scores + i * 16);
  }
}

using ScoreCodesFunction = void (*)(const std::int8_t*, const CodedQuery*, const KeyChunk&, int,
                                    FetchAhead&, float*);

template <class Dots, bool kHasCentre, bool kFetches, int R = 1>
ScoreCodesFunction choose_score_codes(int n_rows) {
  if constexpr (R < kMaxDirectHeads) {
    if (n_rows > R) return choose_score_codes<Dots, kHasCentre, kFetches, R + 1>(n_rows);
  }
  return score_codes<Dots, R, kHasCentre, kFetches>;
}

/// Sums of R rows x C panels of 16 channels: of both planes of the factors.
template <int R, int C>
struct CodeSums {
  sn::VI32 upper[R][C * kRegs], lower[R][C * kRegs];

  HWY_INLINE void clear() {
#pragma GCC unroll kUnroll
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
      for (int j = 0; j < C * kRegs; ++j) upper[r][j] = lower[r][j] = hn::Zero(sn::DI32());
    }
  }
  /// What both planes are together: at most 512 x 127 x 16383, below 2^30.
  HWY_INLINE sn::VI32 whole(int r, int j) const {
    return hn::Add(hn::ShiftLeft<7>(upper[r][j]), lower[r][j]);
  }
  /// From, or to, [R][head_dim] at the first of these channels, both planes as one.
  HWY_INLINE void load(const std::int32_t* from, int head_dim) {
#pragma GCC unroll kUnroll
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
      for (int j = 0; j < C * kRegs; ++j) {
        upper[r][j] = hn::Zero(sn::DI32());
        lower[r][j] = hn::LoadU(sn::DI32(), from + r * head_dim + j * kLanes);
      }
    }
  }
  HWY_INLINE void store(std::int32_t* to, int head_dim) const {
#pragma GCC unroll kUnroll
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll kUnroll
      for (int j = 0; j < C * kRegs; ++j) {
        hn::StoreU(whole(r, j), sn::DI32(), to + r * head_dim + j * kLanes);
      }
    }
  }
};

/// Adds strips [begin, end) of a segment. `strips` point at the first of the channels; a strip is
/// four quads of tokens, `quad_stride` bytes apart. With kFetches, as many lines of `fetch` are
/// fetched.
template <class Dots, int R, int C, bool kFetches>
HWY_INLINE void weigh_codes(CodeSums<R, C>& sums, const std::uint8_t* const* strips, int begin,
                            int end, std::ptrdiff_t quad_stride, FetchAhead& fetch,
                            const std::uint8_t* HWY_RESTRICT planes) {
  for (int strip = begin; strip < end; ++strip) {
    for (int quad = 0; quad < 4; ++quad) {
      const std::uint8_t* values = strips[strip] + quad * quad_stride;
      sn::Bytes v[C * kRegs];
#pragma GCC unroll kUnroll
      for (int j = 0; j < C * kRegs; ++j) {
        v[j] = sn::LoadBytes(values + j * kRegBytes);
      }
      if constexpr (kFetches) fetch.lines<C>();
#pragma GCC unroll kUnroll
      for (int r = 0; r < R; ++r) {
        const auto* factors =
            reinterpret_cast<const std::int8_t*>(planes + r * kPlaneBytes + strip * 32 + quad * 4);
        const auto upper = sn::BroadcastQuad(factors), lower = sn::BroadcastQuad(factors + 16);
#pragma GCC unroll kUnroll
        for (int j = 0; j < C * kRegs; ++j) {
          sums.upper[r][j] = Dots::add_values(sums.upper[r][j], upper, v[j]);
          sums.lower[r][j] = Dots::add_values(sums.lower[r][j], lower, v[j]);
        }
      }
    }
  }
}

/// Merges the sums into the records, as merge_tile does.
template <int R, int C>
HWY_INLINE void merge_codes(const CodeSums<R, C>& sums, const Row* rows, const CodedValues* values,
                            float* HWY_RESTRICT records, std::size_t record_stride, int channel) {
  const Tag16 tag;
#pragma GCC unroll kUnroll
  for (int r = 0; r < R; ++r) {
    if (!rows[r].is_visible()) continue;
    float* HWY_RESTRICT to =
        records + static_cast<std::size_t>(r) * record_stride + kRecordHeader + channel;
    const auto scale = hn::Set(tag, values[r].scale), centre = hn::Set(tag, values[r].centre);
    const auto keep = hn::Set(tag, rows[r].keep), add = hn::Set(tag, rows[r].add);
#pragma GCC unroll kUnroll
    for (int j = 0; j < C * kRegs; ++j) {
      const auto value = sn::FusedMulAdd(hn::ConvertTo(tag, sums.whole(r, j)), scale, centre);
      float* at = to + j * kLanes;
      if (rows[r].is_first) {
        hn::StoreU(value, tag, at);
      } else {
        hn::StoreU(sn::FusedMulAdd(value, add, hn::Mul(hn::LoadU(tag, at), keep)), tag, at);
      }
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace kvasir::attention
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
