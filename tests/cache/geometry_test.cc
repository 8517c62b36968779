#include "cache/page/geometry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/page/copy.h"
#include "cache/page/paged_kv_view.h"

namespace kvasir::cache {
namespace {

struct Case {
  PageGeometry::Options options;
  std::string name() const {
    return "L" + std::to_string(options.shape.n_layers) + " G" +
           std::to_string(options.shape.n_kv_heads) + " D" +
           std::to_string(options.shape.head_dim) + " P" + std::to_string(options.page_tokens) +
           " k" + std::to_string(static_cast<int>(options.codec_k)) + " v" +
           std::to_string(static_cast<int>(options.codec_v)) +
           (options.head_order == HeadOrder::kSplit ? " split" : " interleaved");
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const HeadOrder order : {HeadOrder::kSplit, HeadOrder::kInterleaved}) {
    for (const CodecId k : {CodecId::kF32, CodecId::kF16, CodecId::kBF16}) {
      for (const CodecId v : {CodecId::kF32, CodecId::kF16}) {
        for (const int page_tokens : {16, 32, 64, 48, 512}) {
          for (const GroupShape shape :
               {GroupShape{1, 1, 16}, GroupShape{2, 3, 64}, GroupShape{3, 2, 20},
                GroupShape{2, 1, 7}, GroupShape{1, 5, 80}}) {
            cases.push_back({{.shape = shape,
                              .codec_k = k,
                              .codec_v = v,
                              .page_tokens = page_tokens,
                              .head_order = order}});
          }
        }
      }
    }
  }
  return cases;
}

std::size_t value_bytes(CodecId codec) { return static_cast<std::size_t>(codec_bits(codec)) / 8; }

/// Calls `visit(offset, bytes, slot)` for every strip of K (slot: its first) and row of V.
template <class Visit>
void for_each_run(const PageGeometry& geometry, Visit&& visit) {
  const GroupShape& shape = geometry.shape();
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t k_strip = dim * kStripTokens * value_bytes(geometry.options().codec_k);
  const std::size_t v_row = dim * value_bytes(geometry.options().codec_v);
  // Null frame: the view's pointers are then offsets.
  std::vector<std::uint8_t> frame(geometry.frame_bytes());
  std::uint8_t* const base = frame.data();
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    PagedKvView view = view_of(geometry, layer);
    view.rows.frames = &base;
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      for (int strip = 0; strip < geometry.strips_per_page(); ++strip) {
        visit(static_cast<std::size_t>(view.k_strip(view.rows, strip, head) - base), k_strip,
              strip * kStripTokens);
        for (int t = 0; t < kStripTokens; ++t) {
          visit(static_cast<std::size_t>(view.v_strip(view.rows, strip, head) - base) +
                    static_cast<std::size_t>(t) * view.rows.v.row_stride(),
                v_row, strip * kStripTokens + t);
        }
      }
    }
  }
}

TEST(PageGeometry, EveryByteHasAtMostOneMeaningAndLiesInTheFrame) {
  for (const Case& test : all_cases()) {
    const PageGeometry geometry = PageGeometry::create(test.options).value();
    std::vector<std::uint8_t> n_uses(geometry.frame_bytes(), 0);
    std::size_t n_bytes = 0;
    for_each_run(geometry, [&](std::size_t offset, std::size_t bytes, int) {
      ASSERT_LE(offset + bytes, geometry.frame_bytes()) << test.name();
      for (std::size_t i = offset; i < offset + bytes; ++i) {
        ASSERT_EQ(n_uses[i], 0) << test.name() << " byte " << i;
        n_uses[i] = 1;
      }
      n_bytes += bytes;
    });
    EXPECT_EQ(n_bytes, geometry.token_bytes() * static_cast<std::size_t>(geometry.page_tokens()))
        << test.name();
    EXPECT_EQ(geometry.frame_bytes() % 64, 0u) << test.name();
  }
}

TEST(PageGeometry, TilesOfSplitHeadsStartOnCacheLines) {
  for (const Case& test : all_cases()) {
    const PageGeometry geometry = PageGeometry::create(test.options).value();
    for (int layer = 0; layer < geometry.shape().n_layers; ++layer) {
      EXPECT_EQ(geometry.k(layer).offset % 64, 0u) << test.name();
      EXPECT_EQ(geometry.v(layer).offset % 64, 0u) << test.name();
    }
    if (test.options.head_order == HeadOrder::kSplit) {
      EXPECT_EQ(geometry.k(0).head_stride % 64, 0u) << test.name();
      EXPECT_EQ(geometry.v(0).head_stride % 64, 0u) << test.name();
    }
  }
}

TEST(PageGeometry, OrdersLayerThenKThenV) {
  const PageGeometry geometry =
      PageGeometry::create({.shape = {30, 3, 64}, .page_tokens = 64}).value();
  EXPECT_EQ(geometry.token_bytes(), 30u * 3 * 64 * 2 * 2);
  EXPECT_EQ(geometry.frame_bytes(), geometry.token_bytes() * 64) << "no padding for usual shapes";
  EXPECT_EQ(geometry.k(0).offset, 0u);
  EXPECT_EQ(geometry.v(0).offset, 3u * 64 * 64 * 2);
  EXPECT_EQ(geometry.k(1).offset, 2 * geometry.v(0).offset);
  EXPECT_EQ(geometry.k(0).strip_stride, 16u * 64 * 2);
  EXPECT_EQ(geometry.v(0).row_stride(), 128u);

  const PageGeometry mixed =
      PageGeometry::create(
          {.shape = {30, 3, 64}, .page_tokens = 64, .head_order = HeadOrder::kInterleaved})
          .value();
  EXPECT_EQ(mixed.frame_bytes(), geometry.frame_bytes());
  EXPECT_EQ(mixed.k(0).head_stride, 16u * 64 * 2);
  EXPECT_EQ(mixed.k(0).strip_stride, 3u * 16 * 64 * 2);
  EXPECT_EQ(mixed.v(0).head_stride, 128u);
  EXPECT_EQ(mixed.v(0).row_stride(), 3u * 128);
}

TEST(PageGeometry, RefusesWhatNoFrameCanHold) {
  const auto code = [](const PageGeometry::Options& options) {
    const auto result = PageGeometry::create(options);
    EXPECT_FALSE(result);
    return result ? ErrorCode::kIo : result.error().code;
  };
  constexpr int kMax = 2147483647;
  EXPECT_EQ(code({.shape = {0, 1, 16}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.shape = {1, -1, 16}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.shape = {1, 1, 0}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.shape = {1, 1, 16}, .page_tokens = 0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.shape = {1, 1, 16}, .page_tokens = -16}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.shape = {1, 1, 16}, .page_tokens = 40}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.shape = {1, 1, 16}, .page_tokens = 2147483632}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.shape = {kMax, kMax, kMax}, .page_tokens = 1 << 30}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.shape = {1 << 10, 1 << 10, 1 << 10}, .page_tokens = 1 << 10}),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(PageGeometry::create({.shape = {30, 3, 64}, .page_tokens = 131072}));
}

TEST(CopySlots, CopiesEveryFilledSlotAndNoEmptyStrip) {
  for (const Case& test : all_cases()) {
    if (test.options.page_tokens > 64) continue;
    const PageGeometry geometry = PageGeometry::create(test.options).value();
    const std::vector<std::uint8_t> source(geometry.frame_bytes(), 1);
    for (int n_slots = 0; n_slots <= geometry.page_tokens(); n_slots += 5) {
      std::vector<std::uint8_t> target(geometry.frame_bytes(), 0);
      copy_slots(geometry, n_slots, source.data(), target.data());
      const int n_copied = pages_for(n_slots, kStripTokens) * kStripTokens;
      for_each_run(geometry, [&](std::size_t offset, std::size_t bytes, int slot) {
        const std::uint8_t expected = slot < n_copied ? 1 : 0;
        ASSERT_EQ(target[offset], expected) << test.name() << " slot " << slot;
        ASSERT_EQ(target[offset + bytes - 1], expected) << test.name() << " slot " << slot;
      });
    }
  }
}

}  // namespace
}  // namespace kvasir::cache
