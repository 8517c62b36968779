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

/// Mixes of codes with codes and with values; pages of tiles are whole tiles.
std::vector<Case> coded_cases() {
  using Pair = LayerCodecs;
  const Pair rows[] = {{CodecId::kInt8, CodecId::kInt8},
                       {CodecId::kInt8G64, CodecId::kInt8G64},
                       {CodecId::kInt8, CodecId::kF16},
                       {CodecId::kBF16, CodecId::kInt8G64}};
  const Pair tiles[] = {{CodecId::kTile3, CodecId::kTile3},
                        {CodecId::kTile4, CodecId::kInt8},
                        {CodecId::kF16, CodecId::kTile5},
                        {CodecId::kTile5, CodecId::kInt8G64}};
  std::vector<Case> cases;
  for (const HeadOrder order : {HeadOrder::kSplit, HeadOrder::kInterleaved}) {
    for (const GroupShape shape : {GroupShape{1, 1, 16}, GroupShape{2, 3, 64}, GroupShape{3, 2, 80},
                                   GroupShape{2, 3, 112}, GroupShape{1, 5, 256}}) {
      const auto add = [&](Pair pair, int page_tokens) {
        cases.push_back({{.shape = shape,
                          .codec_k = pair.k,
                          .codec_v = pair.v,
                          .page_tokens = page_tokens,
                          .head_order = order}});
      };
      for (const Pair pair : rows) {
        for (const int page_tokens : {16, 48, 64, 512}) add(pair, page_tokens);
      }
      for (const Pair pair : tiles) {
        for (const int page_tokens : {64, 128, 192, 512}) add(pair, page_tokens);
      }
      if (shape.n_layers == 1) continue;
      add(tiles[0], 128);  // and every layer its own
      for (int layer = 0; layer < shape.n_layers; ++layer) {
        const Pair pair = layer % 2 == 0 ? Pair{CodecId::kTile4, CodecId::kTile3} : rows[1];
        cases.back().options.layer_codecs.push_back(pair);
      }
    }
  }
  return cases;
}

std::vector<Case> every_case() {
  std::vector<Case> cases = all_cases();
  for (const Case& test : coded_cases()) cases.push_back(test);
  return cases;
}

/// What a run of bytes holds.
struct ByteRun {
  std::size_t offset, bytes;
  int slot;  ///< its first
  bool is_of_tile;
};

/// Calls `visit(run)` for every strip of K, row or strip of codes of V, and strip of scales.
template <class Visit>
void for_each_run(const PageGeometry& geometry, Visit&& visit) {
  const GroupShape& shape = geometry.shape();
  std::vector<std::uint8_t> frame(geometry.frame_bytes());
  std::uint8_t* const base = frame.data();
  for (int layer = 0; layer < shape.n_layers; ++layer) {
    PagedKvView view = view_of(geometry, layer);
    view.rows.frames = &base;
    const CodecId k = view.rows.k.codec, v = view.rows.v.codec;
    const std::size_t k_bytes = code_bytes(k, shape.head_dim, kStripTokens);
    const std::size_t v_bytes = code_bytes(v, shape.head_dim, kStripTokens);
    for (int head = 0; head < shape.n_kv_heads; ++head) {
      for (int strip = 0; strip < geometry.strips_per_page(); ++strip) {
        const int slot = strip * kStripTokens;
        const auto visit_at = [&](const std::uint8_t* at, std::size_t bytes, int first_slot,
                                  CodecId codec) {
          visit(ByteRun{static_cast<std::size_t>(at - base), bytes, first_slot,
                        is_tile_codec(codec)});
        };
        visit_at(view.k_strip(view.rows, strip, head), k_bytes, slot, k);
        const std::uint8_t* const values = view.v_strip(view.rows, strip, head);
        if (is_coded(v)) {
          visit_at(values, v_bytes, slot, v);
        } else {
          for (int t = 0; t < kStripTokens; ++t) {
            visit_at(values + static_cast<std::size_t>(t) * view.rows.v.row_stride(),
                     v_bytes / kStripTokens, slot + t, v);
          }
        }
        if (is_coded(k)) {
          visit_at(view.k_meta(view.rows, strip, head), meta_strip_bytes(k, shape.head_dim, false),
                   slot, k);
        }
        if (is_coded(v)) {
          visit_at(view.v_meta(view.rows, strip, head), meta_strip_bytes(v, shape.head_dim, true),
                   slot, v);
        }
      }
    }
  }
}

TEST(PageGeometry, EveryByteHasAtMostOneMeaningAndLiesInTheFrame) {
  for (const Case& test : every_case()) {
    const PageGeometry geometry = PageGeometry::create(test.options).value();
    std::vector<std::uint8_t> n_uses(geometry.frame_bytes(), 0);
    std::size_t n_bytes = 0;
    for_each_run(geometry, [&](const ByteRun& run) {
      ASSERT_LE(run.offset + run.bytes, geometry.frame_bytes()) << test.name();
      for (std::size_t i = run.offset; i < run.offset + run.bytes; ++i) {
        ASSERT_EQ(n_uses[i], 0) << test.name() << " byte " << i;
        n_uses[i] = 1;
      }
      n_bytes += run.bytes;
    });
    // A tile's scales need not be whole bytes a token.
    EXPECT_EQ(n_bytes / static_cast<std::size_t>(geometry.page_tokens()), geometry.token_bytes())
        << test.name();
    EXPECT_EQ(geometry.frame_bytes() % 64, 0u) << test.name();
  }
}

/// A tile's codes, and its scales, are one run of bytes: four strips', one behind the other.
TEST(PageGeometry, TilesAreContiguous) {
  for (const Case& test : coded_cases()) {
    const PageGeometry geometry = PageGeometry::create(test.options).value();
    const int head_dim = geometry.shape().head_dim;
    for (int layer = 0; layer < geometry.shape().n_layers; ++layer) {
      for (const bool is_v : {false, true}) {
        const SideLayout& side = is_v ? geometry.v(layer) : geometry.k(layer);
        if (!is_coded(side.codec)) continue;
        EXPECT_EQ(side.meta_strip_stride, meta_strip_bytes(side.codec, head_dim, is_v));
        EXPECT_EQ(side.meta_offset % 2, 0u) << test.name();
        if (!is_tile_codec(side.codec)) continue;
        EXPECT_EQ(side.strip_stride, code_bytes(side.codec, head_dim, kStripTokens)) << test.name();
        EXPECT_EQ(side.head_stride % 64, 0u) << test.name();
      }
    }
  }
}

TEST(PageGeometry, TilesOfSplitHeadsStartOnCacheLines) {
  for (const Case& test : every_case()) {
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

TEST(PageGeometry, RefusesHeadsAndPagesThatACodecDoesNotHave) {
  const auto error = [](CodecId k, CodecId v, int head_dim, int page_tokens) {
    const auto result = PageGeometry::create(
        {.shape = {1, 1, head_dim}, .codec_k = k, .codec_v = v, .page_tokens = page_tokens});
    EXPECT_FALSE(result) << codec_name(k) << " " << codec_name(v) << " D" << head_dim;
    return result ? Error{ErrorCode::kIo, ""} : result.error();
  };
  for (const int id : {4, 5, 6, 7, 8}) {
    const auto codec = static_cast<CodecId>(id);
    for (const int head_dim : {8, 24, 40, 72, 264, 272, 512}) {
      for (const bool is_v : {false, true}) {
        const CodecId k = is_v ? CodecId::kF16 : codec, v = is_v ? codec : CodecId::kF16;
        const Error got = error(k, v, head_dim, 64);
        EXPECT_EQ(got.code, ErrorCode::kUnsupported);
        EXPECT_EQ(got.message, "kv type of " + std::to_string(codec_bits(codec)) +
                                   " bits: head size; got " + std::to_string(head_dim) +
                                   ", want a multiple of 16 up to 256");
        if (!is_tile_codec(codec)) continue;
        const Error page = error(k, v, 64, 96);
        EXPECT_EQ(page.code, ErrorCode::kInvalidArgument);
        EXPECT_EQ(
            page.message,
            "cache geometry: page-tokens of a type below 8 bits; got 96, want a multiple of 64");
      }
    }
  }
  EXPECT_EQ(error(CodecId::kTile4, CodecId::kTile4, 64, 32).code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(PageGeometry::create({.shape = {1, 1, 256},
                                    .codec_k = CodecId::kTile3,
                                    .codec_v = CodecId::kInt8G64,
                                    .page_tokens = 64}));
}

/// Whole strips of rows, and the tiles that are complete: only those are encoded.
TEST(CopySlots, CopiesEveryFilledSlotAndNoEmptyStrip) {
  for (const Case& test : every_case()) {
    if (test.options.page_tokens > 192) continue;
    const PageGeometry geometry = PageGeometry::create(test.options).value();
    const std::vector<std::uint8_t> source(geometry.frame_bytes(), 1);
    for (int n_slots = 0; n_slots <= geometry.page_tokens();
         n_slots += n_slots % 64 == 60 ? 4 : 5) {
      std::vector<std::uint8_t> target(geometry.frame_bytes(), 0);
      copy_slots(geometry, n_slots, source.data(), target.data());
      for_each_run(geometry, [&](const ByteRun& run) {
        const int unit = run.is_of_tile ? kTileTokens : 1;
        const int n_strips = pages_for(n_slots / unit * unit, kStripTokens);
        const std::uint8_t expected = run.slot < n_strips * kStripTokens ? 1 : 0;
        ASSERT_EQ(target[run.offset], expected) << test.name() << " slot " << run.slot;
        ASSERT_EQ(target[run.offset + run.bytes - 1], expected)
            << test.name() << " slot " << run.slot;
      });
    }
  }
}

}  // namespace
}  // namespace kvasir::cache
