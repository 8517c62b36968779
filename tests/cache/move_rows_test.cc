// Rows moved between sequences: V to the byte, K through the change and the codec, nothing else.
#include "cache/codec/move_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "cache/cache.h"
#include "cache/codec/row_codec.h"

namespace kvasir::cache {
namespace {

constexpr int kHeads = 2, kDim = 24, kRow = kHeads * kDim;

class MoveRows : public ::testing::TestWithParam<std::tuple<CodecId, CodecId, HeadOrder>> {
 protected:
  MoveRows() : budget_(0) {
    CacheOptions options;
    options.groups = {{.layers = {0, 1}, .n_kv_heads = kHeads, .head_dim = kDim, .window = 0}};
    std::tie(options.codec_k, options.codec_v, options.head_order) = GetParam();
    options.page_tokens = 32;
    cache_ = std::move(KvCache::create(options, budget_).value());
  }

  /// `n` tokens of random K and V in both layers.
  Sequence filled(int n) {
    Sequence sequence = cache_->open();
    EXPECT_TRUE(sequence.append(n));
    std::normal_distribution<float> normal;
    std::vector<float> rows(static_cast<std::size_t>(n) * 2 * kRow);
    for (const PagedKvView& view : sequence.views()) {
      for (float& value : rows) value = normal(random_);
      write_kv(view, 0, n, rows.data(), rows.data() + kRow, 2 * kRow);
    }
    return sequence;
  }

  static std::vector<float> k_of(const PagedKvView& view, int pos) {
    std::vector<float> row(kRow);
    for (int head = 0; head < kHeads; ++head) read_k(view, pos, head, row.data() + head * kDim);
    return row;
  }
  static std::vector<float> v_of(const PagedKvView& view, int pos) {
    std::vector<float> row(kRow);
    for (int head = 0; head < kHeads; ++head) read_v(view, pos, head, row.data() + head * kDim);
    return row;
  }
  /// As the codec stores it.
  std::vector<float> stored(const std::vector<float>& k) {
    Sequence sequence = cache_->open();
    EXPECT_TRUE(sequence.append(1));
    const PagedKvView view = sequence.views()[0];
    write_kv(view, 0, 1, k.data(), k.data(), kRow);
    return k_of(view, 0);
  }

  ByteBudget budget_;
  std::unique_ptr<KvCache> cache_;
  std::mt19937 random_{9};
};

TEST_P(MoveRows, ChangesKeysAndCopiesValues) {
  Sequence source = filled(100), target = filled(120);
  const ChangeKeys negate_and_scale = [](int n_rows, float* keys) {
    for (int i = 0; i < n_rows * kRow; ++i) keys[i] *= -1.7f;
  };
  std::vector<float> scratch(kStripTokens * kRow);
  for (const auto& [from, to, n] :
       {std::tuple{0, 0, 100}, {3, 40, 61}, {40, 3, 17}, {16, 32, 16}, {99, 119, 1}, {5, 5, 0}}) {
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const PagedKvView old = source.views()[layer], kv = target.views()[layer];
      std::vector<std::vector<float>> k, v;
      for (int pos = 0; pos < 120; ++pos) {
        const bool moves = pos >= to && pos < to + n;
        std::vector<float> changed = moves ? k_of(old, from + pos - to) : k_of(kv, pos);
        if (moves) negate_and_scale(1, changed.data());
        k.push_back(moves ? stored(changed) : changed);
        v.push_back(moves ? v_of(old, from + pos - to) : v_of(kv, pos));
      }
      move_rows(old, from, kv, to, n, negate_and_scale, scratch);
      for (int pos = 0; pos < 120; ++pos) {
        ASSERT_EQ(k_of(kv, pos), k[static_cast<std::size_t>(pos)]) << pos;
        ASSERT_EQ(v_of(kv, pos), v[static_cast<std::size_t>(pos)]) << pos;
      }
    }
  }
}

TEST_P(MoveRows, PassesOverPagesThatAreGone) {
  Sequence source = filled(96), target = filled(96);
  PagedKvView old = source.views()[0];
  std::vector<std::uint8_t*> frames(old.rows.frames, old.rows.frames + 3);
  frames[1] = nullptr;
  old.rows.frames = frames.data();
  const PagedKvView kv = target.views()[0];
  const std::vector<float> gap_k = k_of(kv, 40), gap_v = v_of(kv, 40);
  std::vector<float> scratch(kStripTokens * kRow);
  move_rows(
      old, 0, kv, 0, 96, [](int, float*) {}, scratch);
  EXPECT_EQ(k_of(kv, 40), gap_k);
  EXPECT_EQ(v_of(kv, 40), gap_v);
  for (const int pos : {0, 31, 64, 95}) {
    EXPECT_EQ(k_of(kv, pos), k_of(old, pos));
    EXPECT_EQ(v_of(kv, pos), v_of(old, pos));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, MoveRows,
    ::testing::Combine(::testing::Values(CodecId::kF32, CodecId::kF16, CodecId::kBF16),
                       ::testing::Values(CodecId::kF32, CodecId::kF16, CodecId::kBF16),
                       ::testing::Values(HeadOrder::kSplit, HeadOrder::kInterleaved)));

}  // namespace
}  // namespace kvasir::cache
