// A token history in frames of its own for the attention tests: any geometry, pages in shuffled
// order, every byte that no token wrote a NaN in all codecs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "cache/codec/row_codec.h"
#include "cache/codec/seal.h"
#include "cache/page/geometry.h"
#include "cache/page/paged_kv_view.h"
#include "support/key_bases.h"

namespace kvasir::attention {

using Floats = std::vector<float>;

/// Normal random values; the same seed gives the same values.
inline Floats random_floats(std::size_t n, std::uint32_t seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  Floats values(n);
  for (float& value : values) value = normal(random);
  return values;
}

/// K and V of `n_tokens` tokens before they are encoded: [n_tokens][n_kv_heads][head_dim].
struct Tokens {
  int n_tokens, n_kv_heads, head_dim;
  Floats k, v;
  Tokens(int n, int kv_heads, int dim, std::uint32_t seed)
      : n_tokens(n), n_kv_heads(kv_heads), head_dim(dim) {
    const std::size_t size = static_cast<std::size_t>(n) * row();
    k = random_floats(size, seed);
    v = random_floats(size, seed + 1);
  }
  /// The first `n` tokens become those of `other`.
  void begin_with(const Tokens& other, int n) {
    const std::size_t n_values = static_cast<std::size_t>(n) * row();
    std::copy_n(other.k.begin(), n_values, k.begin());
    std::copy_n(other.v.begin(), n_values, v.begin());
  }
  std::size_t row() const { return static_cast<std::size_t>(n_kv_heads * head_dim); }
};

struct HistoryOptions {
  cache::CodecId codec_k = cache::CodecId::kF16;
  cache::CodecId codec_v = cache::CodecId::kF16;
  int page_tokens = 64;
  cache::HeadOrder head_order = cache::HeadOrder::kSplit;
  /// Of tile codecs: what queries read as rows although it is sealed.
  int n_sink_tiles = 1, n_tail_tiles = 1;
  bool has_basis = false;  ///< of K in tiles: the same in every history of a shape

  bool has_tiles() const { return cache::is_tile_codec(codec_k) || cache::is_tile_codec(codec_v); }
};

/// Frames of one kind, in shuffled order, of which every byte is 0xFF.
class Frames {
 public:
  Frames(const cache::PageGeometry& geometry, int n_tokens) {
    const auto n_pages =
        static_cast<std::size_t>(cache::pages_for(n_tokens, geometry.page_tokens()));
    memory_ = AlignedBuffer(n_pages * geometry.frame_bytes());
    if (n_pages > 0) std::memset(memory_.data(), 0xFF, memory_.size());
    std::vector<std::size_t> order(n_pages);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    for (const std::size_t page : order) {
      frames_.push_back(memory_.data() + page * geometry.frame_bytes());
    }
  }
  std::vector<std::uint8_t*>& frames() { return frames_; }

 private:
  AlignedBuffer memory_;
  std::vector<std::uint8_t*> frames_;
};

/// Two layers, of which the tests use the second: offsets that are not zero. With a tile codec the
/// complete tiles are sealed, each in frames of its own kind beside the rows'.
class History {
 public:
  History(const Tokens& tokens, const HistoryOptions& options)
      : rows_(geometry_of(tokens, options, false), tokens.n_tokens),
        tiles_(geometry_of(tokens, options, true), options.has_tiles() ? tokens.n_tokens : 0) {
    view_ = cache::view_of(geometry_of(tokens, options, false), 1);
    view_.rows.frames = rows_.frames().data();
    view_.n_tokens = tokens.n_tokens;
    if (options.has_basis && cache::is_tile_codec(options.codec_k)) {
      bases_ = random_key_bases({2, tokens.n_kv_heads, tokens.head_dim});
      view_.basis = bases_->of_layer(1);
    }
    cache::write_kv(view_, 0, tokens.n_tokens, tokens.k.data(), tokens.v.data(), tokens.row());
    if (!options.has_tiles()) return;
    const cache::PagedKvView sealed = cache::view_of(geometry_of(tokens, options, true), 1);
    view_.tiles = {tiles_.frames().data(), sealed.rows.k, sealed.rows.v};
    view_.n_sink_tiles = options.n_sink_tiles;
    view_.n_tail_tiles = options.n_tail_tiles;
    for (int tile = 0; tile < tokens.n_tokens / cache::kTileTokens; ++tile) {
      for (int head = 0; head < tokens.n_kv_heads; ++head) {
        for (const bool is_v : {false, true}) cache::seal_tile(view_, tile, head, is_v);
      }
    }
  }
  const cache::PagedKvView& view() const { return view_; }
  std::vector<std::uint8_t*>& frames() { return rows_.frames(); }
  std::vector<std::uint8_t*>& tile_frames() { return tiles_.frames(); }

 private:
  static cache::PageGeometry geometry_of(const Tokens& tokens, const HistoryOptions& options,
                                         bool of_tiles) {
    cache::PageGeometry::Options wanted;
    wanted.shape = {2, tokens.n_kv_heads, tokens.head_dim};
    wanted.codec_k = of_tiles ? options.codec_k : cache::row_codec_of(options.codec_k);
    wanted.codec_v = of_tiles ? options.codec_v : cache::row_codec_of(options.codec_v);
    wanted.page_tokens = options.page_tokens;
    wanted.head_order = options.head_order;
    return *cache::PageGeometry::create(wanted);
  }

  Frames rows_, tiles_;
  std::shared_ptr<const cache::KeyBases> bases_;
  cache::PagedKvView view_;
};

/// One sequence's rows [first_pos, first_pos + n_rows), at row `first_row` of q and out.
inline QueryRows rows_of(const History& history, int first_pos, int n_rows, int first_row = 0) {
  QueryRows rows;
  rows.kv = history.view();
  rows.first_pos = first_pos;
  rows.first_row = first_row;
  rows.n_rows = n_rows;
  return rows;
}

inline AttentionParams params_of(int n_heads, int head_dim) {
  AttentionParams params;
  params.n_heads = n_heads;
  params.head_dim = head_dim;
  params.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  params.q_row_stride = params.out_row_stride = static_cast<std::size_t>(n_heads * head_dim);
  return params;
}

/// Output for `rows`; what no row writes stays at -77.
inline Floats run_attend(ThreadPool& pool, const AttentionParams& params,
                         std::span<const QueryRows> rows, const Floats& q) {
  Floats out(q.size(), -77.0f);
  Scratch scratch;
  attend(pool, params, rows, q.data(), out.data(), scratch);
  return out;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace kvasir::attention
