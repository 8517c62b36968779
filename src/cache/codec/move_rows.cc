#include "cache/codec/move_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/codec/row_codec.h"

namespace kvasir::cache {
namespace {

std::uint8_t* v_row(const PagedKvView& kv, Position pos, int head) {
  return kv.v_strip(pos / kStripTokens, head) +
         static_cast<std::size_t>(pos % kStripTokens) * kv.v_row_stride;
}

/// Tokens from `pos` on that share their strip with it.
int left_in_strip(Position pos) { return kStripTokens - pos % kStripTokens; }

}  // namespace

void move_rows(const PagedKvView& source, Position from, const PagedKvView& target, Position to,
               int n_tokens, const ChangeKeys& change, std::span<float> scratch) {
  KVASIR_CHECK(source.codec_k == target.codec_k && source.codec_v == target.codec_v);
  KVASIR_CHECK(source.n_kv_heads == target.n_kv_heads && source.head_dim == target.head_dim);
  KVASIR_CHECK(0 <= from && n_tokens <= source.n_tokens - from);
  KVASIR_CHECK(0 <= to && n_tokens <= target.n_tokens - to);
  const auto head_dim = static_cast<std::size_t>(source.head_dim);
  const auto row_floats = static_cast<std::size_t>(source.n_kv_heads) * head_dim;
  const std::size_t v_bytes = head_dim * codec_value_bytes(source.codec_v);
  KVASIR_CHECK(scratch.size() >= kStripTokens * row_floats);
  for (int done = 0; done < n_tokens;) {
    const Position old_pos = from + done, new_pos = to + done;
    const int n = std::min({n_tokens - done, left_in_strip(old_pos), left_in_strip(new_pos)});
    done += n;
    // A strip never crosses the end of a page.
    if (source.frames[old_pos / kStripTokens / source.strips_per_page] == nullptr) continue;
    for (int head = 0; head < source.n_kv_heads; ++head) {
      float* k = scratch.data() + static_cast<std::size_t>(head) * head_dim;
      for (int i = 0; i < n; ++i, k += row_floats) {
        read_k(source, old_pos + i, head, k);
        std::memcpy(v_row(target, new_pos + i, head), v_row(source, old_pos + i, head), v_bytes);
      }
    }
    change(n, scratch.data());
    write_k(target, new_pos, n, scratch.data(), row_floats);
  }
}

}  // namespace kvasir::cache
