#include "cache/codec/poison.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "base/check.h"

namespace kvasir::cache {
namespace {

/// Bits of the smallest magnitude that a plain codec does not hold; NaN is above it.
std::int32_t end_of_range(CodecId codec) {
  switch (codec) {
    case CodecId::kF16:
      return 0x477FF000;  // 65520: half way from the largest f16 to the next power of two
    case CodecId::kBF16:
      return 0x7F7F8000;
    default:
      return 0x7F800000;
  }
}

bool all_below(std::span<const float> values, std::int32_t end) {
  int n_bad = 0;
  const auto count = [&](auto part) {
    for (const float value : part) {
      n_bad += (std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF) >= end ? 1 : 0;
    }
  };
  // Compilers make vectors of a loop whose length they know.
  constexpr std::size_t kPart = 16;
  for (; values.size() >= kPart; values = values.subspan(kPart)) {
    count(std::span<const float, kPart>(values.data(), kPart));
  }
  count(values);
  return n_bad == 0;
}

/// Scales of lanes [lane, lane + n_tokens) of a strip: NaN is what says that a row has no codes.
void note_scales(CodecId codec, int head_dim, const std::uint8_t* meta, int lane, int n_tokens,
                 std::uint8_t* is_poisoned) {
  constexpr std::uint16_t kExponent = 0x7C00;
  const std::size_t n_fields = codec == CodecId::kInt8G64 ? 2 : 1;
  for (int group = 0; group < channel_groups(codec, head_dim); ++group) {
    const std::size_t first = static_cast<std::size_t>(group) * n_fields * kStripTokens;
    for (int t = 0; t < n_tokens; ++t) {
      std::uint16_t scale;
      std::memcpy(&scale, meta + 2 * (first + static_cast<std::size_t>(lane + t)), sizeof(scale));
      if ((scale & kExponent) == kExponent) is_poisoned[t] = 1;
    }
  }
}

void note_side(const PagedKvView& kv, bool is_v, Position first_pos, int n_tokens,
               const float* rows, std::size_t row_stride, std::uint8_t* is_poisoned) {
  const CodecId codec = is_v ? kv.rows.v.codec : kv.rows.k.codec;
  if (!is_coded(codec)) {
    const auto n = static_cast<std::size_t>(kv.n_kv_heads) * static_cast<std::size_t>(kv.head_dim);
    const std::int32_t end = end_of_range(codec);
    for (int t = 0; t < n_tokens; ++t, rows += row_stride) {
      if (!all_below({rows, n}, end)) is_poisoned[t] = 1;
    }
    return;
  }
  for (int done = 0; done < n_tokens;) {
    const Position pos = first_pos + done;
    const int strip = pos / kStripTokens, lane = pos % kStripTokens;
    const int n = std::min(n_tokens - done, kStripTokens - lane);
    for (int head = 0; head < kv.n_kv_heads; ++head) {
      const std::uint8_t* const meta =
          is_v ? kv.v_meta(kv.rows, strip, head) : kv.k_meta(kv.rows, strip, head);
      note_scales(codec, kv.head_dim, meta, lane, n, is_poisoned + done);
    }
    done += n;
  }
}

}  // namespace

void note_poisoned(const PagedKvView& kv, Position first_pos, int n_tokens, const float* k,
                   const float* v, std::size_t row_stride, std::uint8_t* is_poisoned) {
  KVASIR_DCHECK(0 <= first_pos && 0 <= n_tokens && n_tokens <= kv.n_tokens - first_pos);
  note_side(kv, false, first_pos, n_tokens, k, row_stride, is_poisoned);
  note_side(kv, true, first_pos, n_tokens, v, row_stride, is_poisoned);
}

}  // namespace kvasir::cache
