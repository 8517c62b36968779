// write_kv against the scalar definition, byte by byte, on every SIMD target of this machine.
#include "cache/codec/row_codec.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "simd/half.h"

namespace kvasir::cache {
namespace {

/// Runs `body` once per SIMD target that this CPU and this build have.
template <class Body>
void for_each_target(Body&& body) {
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const std::int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

/// Every kind of float: all halfs' values and their neighbours, NaNs with payloads, subnormals.
std::vector<float> hard_values(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& value : values) {
    const auto bits = static_cast<std::uint32_t>(random());
    switch (random() % 7) {
      case 0:
        value = std::bit_cast<float>(bits);
        break;
      case 1:
        value = simd::f16_to_f32(static_cast<std::uint16_t>(bits));
        break;
      case 2:  // a midpoint of two halfs, or just beside it
        value = std::bit_cast<float>((bits & 0x80000000u) |
                                     (0x38000000u + (bits & 0x0FFFE000u) + 0xFFFu + bits % 3));
        break;
      case 3:
        value = std::bit_cast<float>(0x33000000u + bits % 0x06000000u);
        break;  // subnormal
      case 4:
        value = std::bit_cast<float>((bits & 0x807FFFFFu) | 0x7F800000u);
        break;  // NaN, inf
      case 5:   // a midpoint of two bfloats, or just beside it
        value = std::bit_cast<float>((bits & 0xFFFF0000u) + 0x7FFFu + bits % 3);
        break;
      default:
        value = static_cast<float>(static_cast<int>(bits % 4001) - 2000) / 500.0f;
    }
  }
  return values;
}

std::uint32_t encoded(CodecId codec, float value) {
  switch (codec) {
    case CodecId::kF32:
      return std::bit_cast<std::uint32_t>(value);
    case CodecId::kF16:
      return simd::f32_to_f16(value);
    case CodecId::kBF16:
      return simd::f32_to_bf16(value);
    default:
      return 0;
  }
}

std::uint32_t stored(CodecId codec, const std::uint8_t* values, int value_idx) {
  const auto bytes = static_cast<std::size_t>(codec_bits(codec)) / 8;
  std::uint32_t bits = 0;
  std::memcpy(&bits, values + static_cast<std::size_t>(value_idx) * bytes, bytes);
  return bits;
}

struct Layout {
  CodecId codec_k = CodecId::kF16, codec_v = CodecId::kF16;
  int n_kv_heads = 2;
  int head_dim = 64;
  int page_tokens = 32;
  HeadOrder head_order = HeadOrder::kSplit;
  std::string name() const {
    return std::string(codec_name(codec_k)) + "/" + std::string(codec_name(codec_v)) + " D" +
           std::to_string(head_dim) + (head_order == HeadOrder::kSplit ? " split" : " interleaved");
  }
};

struct Fixture {
  explicit Fixture(const Layout& layout)
      : cache(KvCache::create({.groups = {{.layers = {0, 1},
                                           .n_kv_heads = layout.n_kv_heads,
                                           .head_dim = layout.head_dim}},
                               .codec_k = layout.codec_k,
                               .codec_v = layout.codec_v,
                               .page_tokens = layout.page_tokens,
                               .head_order = layout.head_order},
                              budget)
                  .value()),
        sequence(cache->open()) {}
  ByteBudget budget;
  std::unique_ptr<KvCache> cache;
  Sequence sequence;
};

/// Writes tokens [first, first + n) of a sequence of `n_slots` and checks every slot's bytes:
/// those written, and the 0xA5 of all others.
void expect_exact_bytes(const Layout& layout, int n_slots, int first, int n, unsigned seed) {
  Fixture fixture(layout);
  ASSERT_TRUE(fixture.sequence.append(n_slots));
  const PagedKvView view = fixture.sequence.views()[1];
  const PageGeometry geometry =
      PageGeometry::create({.shape = {2, layout.n_kv_heads, layout.head_dim},
                            .codec_k = layout.codec_k,
                            .codec_v = layout.codec_v,
                            .page_tokens = layout.page_tokens,
                            .head_order = layout.head_order})
          .value();
  const int n_pages = pages_for(n_slots, layout.page_tokens);
  for (int p = 0; p < n_pages; ++p) std::memset(view.rows.frames[p], 0xA5, geometry.frame_bytes());

  const int row_values = layout.n_kv_heads * layout.head_dim;
  const int row_stride = 2 * row_values + 3;  // K and V interleaved in one buffer, unaligned
  const std::vector<float> rows = hard_values(static_cast<std::size_t>(row_stride * (n + 1)), seed);
  write_kv(view, first, n, rows.data(), rows.data() + row_values,
           static_cast<std::size_t>(row_stride));

  const std::uint32_t untouched_k = layout.codec_k == CodecId::kF32 ? 0xA5A5A5A5u : 0xA5A5u;
  const std::uint32_t untouched_v = layout.codec_v == CodecId::kF32 ? 0xA5A5A5A5u : 0xA5A5u;
  for (int pos = 0; pos < n_pages * layout.page_tokens; ++pos) {
    const bool written = pos >= first && pos < first + n;
    for (int head = 0; head < layout.n_kv_heads; ++head) {
      const std::uint8_t* k = view.k_strip(view.rows, pos / kStripTokens, head);
      const std::uint8_t* v =
          view.v_strip(view.rows, pos / kStripTokens, head) +
          static_cast<std::size_t>(pos % kStripTokens) * view.rows.v.row_stride();
      for (int d = 0; d < layout.head_dim; ++d) {
        const int source = written ? (pos - first) * row_stride + head * layout.head_dim + d : 0;
        const float k_value = rows[static_cast<std::size_t>(source)];
        const float v_value = rows[static_cast<std::size_t>(source + row_values)];
        ASSERT_EQ(stored(layout.codec_k, k, d * kStripTokens + pos % kStripTokens),
                  written ? encoded(layout.codec_k, k_value) : untouched_k)
            << layout.name() << " pos " << pos << " head " << head << " dim " << d << " first "
            << first << " n " << n << " seed " << seed;
        ASSERT_EQ(stored(layout.codec_v, v, d),
                  written ? encoded(layout.codec_v, v_value) : untouched_v)
            << layout.name() << " pos " << pos << " head " << head << " dim " << d << " first "
            << first << " n " << n << " seed " << seed;
      }
    }
  }
  // Nothing outside this layer either: layer 0 is still filled with 0xA5.
  for (int p = 0; p < n_pages; ++p) {
    for (std::size_t i = 0; i < geometry.k(1).offset; ++i)
      ASSERT_EQ(view.rows.frames[p][i], 0xA5) << i;
  }
}

TEST(RowCodec, AllCodecsHeadDimsAndOrders) {
  for_each_target([] {
    unsigned seed = 0;
    for (const HeadOrder order : {HeadOrder::kSplit, HeadOrder::kInterleaved}) {
      for (const CodecId k : {CodecId::kF32, CodecId::kF16, CodecId::kBF16}) {
        for (const CodecId v : {CodecId::kF32, CodecId::kF16, CodecId::kBF16}) {
          for (const int head_dim : {16, 32, 48, 64, 80, 96, 128, 256}) {
            ++seed;
            expect_exact_bytes({.codec_k = k,
                                .codec_v = v,
                                .head_dim = head_dim,
                                .page_tokens = 32,
                                .head_order = order},
                               70, 3, 60, seed);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

TEST(RowCodec, EveryStartAndLengthInAStrip) {
  for_each_target([] {
    for (const CodecId codec : {CodecId::kF32, CodecId::kF16, CodecId::kBF16}) {
      for (int first = 0; first < 16; ++first) {
        for (int n = 0; n <= 40; ++n) {
          expect_exact_bytes({.codec_k = codec,
                              .codec_v = codec,
                              .n_kv_heads = 1,
                              .head_dim = 16,
                              .page_tokens = 16},
                             64, first, n, static_cast<unsigned>(first * 64 + n));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST(RowCodec, OddHeadDims) {
  for_each_target([] {
    for (const int head_dim : {1, 2, 7, 8, 9, 15, 20, 23}) {
      for (const HeadOrder order : {HeadOrder::kSplit, HeadOrder::kInterleaved}) {
        expect_exact_bytes({.n_kv_heads = 3, .head_dim = head_dim, .head_order = order}, 50, 5, 41,
                           static_cast<unsigned>(head_dim));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

/// 1.5 million hard values through the vector path: NaN payloads, ties and subnormals included.
TEST(RowCodec, ManyHardValues) {
  for_each_target([] {
    for (const CodecId codec : {CodecId::kF16, CodecId::kBF16}) {
      for (unsigned seed = 100; seed < 106; ++seed) {
        expect_exact_bytes({.codec_k = codec,
                            .codec_v = codec,
                            .n_kv_heads = 2,
                            .head_dim = 128,
                            .page_tokens = 256},
                           256, 0, 256, seed);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(RowCodec, ChunkedWritesGiveTheSameBytes) {
  const Layout layout{.n_kv_heads = 3, .head_dim = 64, .page_tokens = 64};
  const int n = 150, row = 3 * 64;
  const std::vector<float> k = hard_values(static_cast<std::size_t>(n * row), 1);
  const std::vector<float> v = hard_values(static_cast<std::size_t>(n * row), 2);
  Fixture whole(layout), chunked(layout);
  ASSERT_TRUE(whole.sequence.append(n));
  ASSERT_TRUE(chunked.sequence.append(n));
  write_kv(whole.sequence.views()[0], 0, n, k.data(), v.data(), row);
  std::mt19937 random(5);
  for (int pos = 0; pos < n;) {
    const int chunk = std::min(n - pos, 1 + static_cast<int>(random() % 20));
    write_kv(chunked.sequence.views()[0], pos, chunk, k.data() + pos * row, v.data() + pos * row,
             row);
    pos += chunk;
  }
  std::vector<float> a(64), b(64);
  for (int pos = 0; pos < n; ++pos) {
    for (int head = 0; head < 3; ++head) {
      read_k(whole.sequence.views()[0], pos, head, a.data());
      read_k(chunked.sequence.views()[0], pos, head, b.data());
      ASSERT_EQ(std::memcmp(a.data(), b.data(), 64 * sizeof(float)), 0) << pos;
      read_v(whole.sequence.views()[0], pos, head, a.data());
      read_v(chunked.sequence.views()[0], pos, head, b.data());
      ASSERT_EQ(std::memcmp(a.data(), b.data(), 64 * sizeof(float)), 0) << pos;
    }
  }
}

TEST(RowCodec, ReadsBackWhatItRounded) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kF16, CodecId::kBF16}) {
    Fixture fixture({.codec_k = codec, .codec_v = codec, .n_kv_heads = 1, .head_dim = 16});
    ASSERT_TRUE(fixture.sequence.append(1));
    std::vector<float> k(16), v(16), row(16);
    for (int d = 0; d < 16; ++d) {
      k[static_cast<std::size_t>(d)] = 1.0f / static_cast<float>(d + 1);
      v[static_cast<std::size_t>(d)] = -3.0f * static_cast<float>(d);
    }
    write_kv(fixture.sequence.views()[0], 0, 1, k.data(), v.data(), 16);
    const float relative = codec == CodecId::kF32 ? 0 : codec == CodecId::kF16 ? 0x1p-11f : 0x1p-8f;
    read_k(fixture.sequence.views()[0], 0, 0, row.data());
    for (std::size_t d = 0; d < 16; ++d) EXPECT_NEAR(row[d], k[d], std::abs(k[d]) * relative);
    read_v(fixture.sequence.views()[0], 0, 0, row.data());
    for (std::size_t d = 0; d < 16; ++d) EXPECT_NEAR(row[d], v[d], std::abs(v[d]) * relative);
  }
}

TEST(RowCodec, NamesRoundTrip) {
  for (int id = 1; id <= 8; ++id) {
    const auto codec = static_cast<CodecId>(id);
    EXPECT_EQ(parse_codec(codec_name(codec)), codec);
  }
  EXPECT_EQ(parse_codec("int8-g64"), CodecId::kInt8G64);
  EXPECT_EQ(codec_name(CodecId::kTile4), "tile4");
  EXPECT_EQ(codec_name(static_cast<CodecId>(9)), "?");
  EXPECT_EQ(parse_codec("?"), std::nullopt);
  EXPECT_EQ(parse_codec("int4"), std::nullopt);
  EXPECT_EQ(parse_codec(""), std::nullopt);
}

}  // namespace
}  // namespace kvasir::cache
