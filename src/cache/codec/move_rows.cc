#include "cache/codec/move_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/codec/row_codec.h"

namespace kvasir::cache {
namespace {

std::uint8_t* v_row(const PagedKvView& kv, Position pos, int head) {
  return kv.v_strip(kv.rows, pos / kStripTokens, head) +
         static_cast<std::size_t>(pos % kStripTokens) * kv.rows.v.row_stride();
}

/// Codes of a token lie four bytes apart, among those of its neighbours; so do its scales, two.
void copy_codes(const PagedKvView& source, Position from, const PagedKvView& target, Position to,
                int head) {
  const std::size_t n = static_cast<std::size_t>(source.head_dim);
  const auto place = [n](const PagedKvView& kv, Position pos, int kv_head) {
    const auto lane = static_cast<std::size_t>(pos % kStripTokens);
    return kv.v_strip(kv.rows, pos / kStripTokens, kv_head) + lane / 4 * 4 * n + lane % 4;
  };
  const std::uint8_t* codes = place(source, from, head);
  std::uint8_t* const to_codes = place(target, to, head);
  for (std::size_t d = 0; d < n; ++d) to_codes[4 * d] = codes[4 * d];
  const std::uint8_t* scales = source.v_meta(source.rows, from / kStripTokens, head);
  std::uint8_t* const to_scales = target.v_meta(target.rows, to / kStripTokens, head);
  for (std::size_t at = 0; at < source.rows.v.meta_strip_stride; at += 2 * kStripTokens) {
    std::memcpy(to_scales + at + static_cast<std::size_t>(to % kStripTokens) * 2,
                scales + at + static_cast<std::size_t>(from % kStripTokens) * 2, 2);
  }
}

void copy_v(const PagedKvView& source, Position from, const PagedKvView& target, Position to,
            int head) {
  const CodecId codec = source.rows.v.codec;
  if (is_coded(codec)) {
    copy_codes(source, from, target, to, head);
  } else {
    std::memcpy(v_row(target, to, head), v_row(source, from, head),
                code_bytes(codec, source.head_dim, kStripTokens) / kStripTokens);
  }
}

/// Tokens from `pos` on that share their strip with it.
int left_in_strip(Position pos) { return kStripTokens - pos % kStripTokens; }

}  // namespace

void move_rows(const PagedKvView& source, Position from, const PagedKvView& target, Position to,
               int n_tokens, const ChangeKeys& change, std::span<float> scratch) {
  KVASIR_CHECK(source.rows.k.codec == target.rows.k.codec);
  KVASIR_CHECK(source.rows.v.codec == target.rows.v.codec && !source.has_tiles());
  KVASIR_CHECK(source.n_kv_heads == target.n_kv_heads && source.head_dim == target.head_dim);
  KVASIR_CHECK(0 <= from && n_tokens <= source.n_tokens - from);
  KVASIR_CHECK(0 <= to && n_tokens <= target.n_tokens - to);
  const auto head_dim = static_cast<std::size_t>(source.head_dim);
  const auto row_floats = static_cast<std::size_t>(source.n_kv_heads) * head_dim;
  KVASIR_CHECK(scratch.size() >= kStripTokens * row_floats);
  for (int done = 0; done < n_tokens;) {
    const Position old_pos = from + done, new_pos = to + done;
    const int n = std::min({n_tokens - done, left_in_strip(old_pos), left_in_strip(new_pos)});
    done += n;
    // A strip never crosses the end of a page.
    if (source.rows.frames[old_pos / kStripTokens / source.strips_per_page] == nullptr) continue;
    for (int head = 0; head < source.n_kv_heads; ++head) {
      float* k = scratch.data() + static_cast<std::size_t>(head) * head_dim;
      for (int i = 0; i < n; ++i, k += row_floats) {
        read_k(source, old_pos + i, head, k);
        copy_v(source, old_pos + i, target, new_pos + i, head);
      }
    }
    change(n, scratch.data());
    write_k(target, new_pos, n, scratch.data(), row_floats);
  }
}

}  // namespace kvasir::cache
