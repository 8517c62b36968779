// Bases of K: q . k is what it was, every target stores the same bytes, and what has no inverse is
// refused.
#include "cache/codec/key_basis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/codec/coded_rows.h"
#include "cache/codec/row_codec.h"
#include "support/key_bases.h"
#include "support/simd_targets.h"

namespace kvasir::cache {
namespace {

constexpr int kHeadDims[] = {16, 64, 80, 96, 112, 128, 256};

std::vector<float> normal_floats(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

/// Row i of the result is row i of `rows` times the matrix, in doubles.
std::vector<double> multiplied(const std::vector<float>& row, const float* matrix) {
  std::vector<double> out(row.size());
  for (const float value : row) {
    for (double& sum : out) sum += double{value} * *matrix++;
  }
  return out;
}

double dot(const auto& a, const auto& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

TEST(KeyBasis, QueriesAndKeysHaveTheProductThatTheyHad) {
  for (const int head_dim : kHeadDims) {
    const KeyBases::Shape shape{2, 3, head_dim};
    const auto bases = random_key_bases(shape);
    ASSERT_NE(bases, nullptr);
    for (int layer = 0; layer < shape.n_layers; ++layer) {
      PagedKvView view;
      view.head_dim = head_dim;
      view.basis = bases->of_layer(layer);
      for (int head = 0; head < shape.n_kv_heads; ++head) {
        const auto q = normal_floats(static_cast<std::size_t>(head_dim), 11);
        const auto k = normal_floats(static_cast<std::size_t>(head_dim), 12);
        const double got =
            dot(multiplied(q, view.query_basis(head)), multiplied(k, view.key_basis(head)));
        EXPECT_NEAR(got, dot(q, k), 1e-5 * head_dim) << head_dim << " " << layer << " " << head;
      }
    }
  }
}

TEST(KeyBasis, ALayerHasTheMatricesThatItWasGiven) {
  const KeyBases::Shape shape{2, 3, 16};
  const std::vector<float> keys = random_key_matrices(shape, 5);
  const auto bases = *KeyBases::create(shape, keys);
  EXPECT_EQ(bases->shape(), shape);
  EXPECT_TRUE(std::equal(keys.begin(), keys.end(), bases->keys().begin(), bases->keys().end()));
  EXPECT_EQ(bases->of_layer(1).keys, bases->keys().data() + shape.layer_floats());
  EXPECT_EQ(bases->bytes(), 2 * keys.size() * sizeof(float));
}

TEST(KeyBasis, EveryBitAndTheShapeAreInTheFingerprint) {
  const KeyBases::Shape shape{1, 2, 16};
  std::vector<float> keys = random_key_matrices(shape, 5);
  const Fingerprint whole = (*KeyBases::create(shape, keys))->fingerprint();
  EXPECT_EQ(fingerprint_of(shape, keys), whole);
  EXPECT_NE(fingerprint_of({2, 1, 16}, keys), whole);
  keys[300] = std::nextafter(keys[300], 9.0f);
  EXPECT_NE((*KeyBases::create(shape, keys))->fingerprint(), whole);
}

TEST(KeyBasis, AMatrixWithoutInverseIsRefusedByLayerAndHead) {
  const KeyBases::Shape shape{2, 2, 16};
  const std::vector<float> whole = random_key_matrices(shape, 5);
  const auto message = [&](auto spoil) {
    std::vector<float> keys = whole;
    spoil(keys.data() + 3 * shape.matrix_floats());
    const auto made = KeyBases::create(shape, keys);
    return made ? std::string() : made.error().message;
  };
  const std::string want = "K basis of layer 1, kv head 1: got a matrix without an inverse";
  EXPECT_EQ(message([](float*) {}), "");
  EXPECT_EQ(message([](float* m) { std::fill_n(m, 256, 0.0f); }), want);
  EXPECT_EQ(message([](float* m) { std::copy_n(m, 16, m + 16); }), want);
  EXPECT_EQ(message([](float* m) { m[7] = std::numeric_limits<float>::infinity(); }), want);
  EXPECT_EQ(message([](float* m) { m[7] = std::numeric_limits<float>::quiet_NaN(); }), want);
  // Two rows that differ by less than f32 can tell apart after two products.
  EXPECT_EQ(message([](float* m) {
              std::copy_n(m, 16, m + 16);
              m[16] += 1e-6f;
            }),
            want);
}

TEST(KeyBasis, TheIdentityStoresWhatNoneDoes) {
  for (const int head_dim : {64, 80}) {
    const auto n = static_cast<std::size_t>(head_dim);
    std::vector<float> identity(n * n);
    for (std::size_t i = 0; i < n; ++i) identity[i * (n + 1)] = 1.0f;
    const auto rows = normal_floats(16 * n, 3);
    std::vector<std::uint8_t> codes(16 * n), meta(32), other_codes(16 * n), other_meta(32);
    write_coded_strip(CodecId::kInt8, false, head_dim, rows.data(), n, 0, 16, codes.data(),
                      meta.data());
    write_coded_strip(CodecId::kInt8, false, head_dim, rows.data(), n, 0, 16, other_codes.data(),
                      other_meta.data(), identity.data());
    EXPECT_EQ(codes, other_codes);
    EXPECT_EQ(meta, other_meta);
  }
}

/// One layer's pages of int8 K, as they are beside tiles.
struct Pages {
  explicit Pages(const std::shared_ptr<const KeyBases>& bases) {
    const KeyBases::Shape& shape = bases->shape();
    const PageGeometry geometry =
        PageGeometry::create({.shape = {1, shape.n_kv_heads, shape.head_dim},
                              .codec_k = CodecId::kInt8,
                              .codec_v = CodecId::kInt8,
                              .page_tokens = 64})
            .value();
    memory = AlignedBuffer(geometry.frame_bytes());
    frame = memory.data();
    view = view_of(geometry, 0);
    view.rows.frames = &frame;
    view.n_tokens = 64;
    view.basis = bases->of_layer(0);
  }
  AlignedBuffer memory;
  std::uint8_t* frame;
  PagedKvView view;
};

TEST(KeyBasis, RowsAreReadBackInTheBasisOfTheModel) {
  for (const int head_dim : kHeadDims) {
    const auto bases = random_key_bases({1, 2, head_dim});
    Pages pages(bases);
    const auto stride = static_cast<std::size_t>(2 * head_dim);
    const auto k = normal_floats(64 * stride, 4), v = normal_floats(64 * stride, 5);
    write_kv(pages.view, 0, 64, k.data(), v.data(), stride);
    std::vector<float> row(static_cast<std::size_t>(head_dim));
    for (const int pos : {0, 17, 63}) {
      for (int head = 0; head < 2; ++head) {
        const std::size_t at =
            static_cast<std::size_t>(pos) * stride + static_cast<std::size_t>(head * head_dim);
        for (const bool is_v : {false, true}) {
          (is_v ? read_v : read_k)(pages.view, pos, head, row.data());
          for (std::size_t d = 0; d < row.size(); ++d) {
            EXPECT_NEAR(row[d], (is_v ? v : k)[at + d], 0.3) << head_dim << " " << pos;
          }
        }
      }
    }
  }
}

TEST(KeyBasis, EveryTargetStoresTheSameBytesAndARowDoesNotDependOnItsNeighbours) {
  for (const int head_dim : kHeadDims) {
    const auto bases = random_key_bases({1, 2, head_dim});
    const auto stride = static_cast<std::size_t>(2 * head_dim + 3);
    const auto k = normal_floats(64 * stride, 4);
    std::vector<std::uint8_t> expected;
    for_each_target([&](const char* target) {
      for (const int chunk : {64, 7}) {
        Pages pages(bases);
        for (int first = 0; first < 64; first += chunk) {
          const float* from = k.data() + static_cast<std::size_t>(first) * stride;
          write_kv(pages.view, first, std::min(chunk, 64 - first), from, from, stride);
        }
        const std::vector<std::uint8_t> bytes(pages.memory.data(),
                                              pages.memory.data() + pages.memory.size());
        if (expected.empty()) expected = bytes;
        EXPECT_EQ(bytes, expected) << target << ", " << head_dim << " in chunks of " << chunk;
      }
    });
  }
}

TEST(KeyBasis, IsOfLayersWithTilesOfKAndOfNoOthers) {
  ByteBudget budget(0);
  CacheOptions options;
  options.groups = {{.layers = {0, 1, 2}, .n_kv_heads = 2, .head_dim = 32}};
  options.layer_codecs = {{CodecId::kTile4, CodecId::kInt8},
                          {CodecId::kInt8, CodecId::kTile3},
                          {CodecId::kTile5, CodecId::kTile3}};
  options.page_tokens = 64;
  options.key_bases = random_key_bases({3, 2, 32});
  const auto cache = KvCache::create(options, budget);
  ASSERT_TRUE(cache) << cache.error().message;
  Sequence sequence = (*cache)->open();
  ASSERT_TRUE(sequence.append(1));
  const auto views = sequence.views();
  EXPECT_EQ(views[0].basis.keys, options.key_bases->of_layer(0).keys);
  EXPECT_EQ(views[1].basis.keys, nullptr);
  EXPECT_EQ(views[1].key_basis(1), nullptr);
  EXPECT_EQ(views[2].basis.queries, options.key_bases->of_layer(2).queries);
}

TEST(KeyBasis, OfAnotherShapeACacheRefusesIt) {
  ByteBudget budget(0);
  CacheOptions options;
  options.groups = {{.layers = {0, 1}, .n_kv_heads = 2, .head_dim = 32}};
  options.codec_k = options.codec_v = CodecId::kTile4;
  options.page_tokens = 64;
  for (const KeyBases::Shape& shape :
       {KeyBases::Shape{1, 2, 32}, KeyBases::Shape{2, 1, 32}, KeyBases::Shape{2, 2, 64}}) {
    options.key_bases = random_key_bases(shape);
    const auto cache = KvCache::create(options, budget);
    ASSERT_FALSE(cache);
    EXPECT_EQ(cache.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(cache.error().message.find("K bases; got"), std::string::npos);
  }
}

TEST(KeyBasis, IsAPartOfWhatAFormatSaysWhereSomeKHasTiles) {
  KvFormat format{{CodecId::kTile4, CodecId::kTile4}, {}, 1, 1};
  const std::string without = format.details(2);
  format.key_bases = random_key_bases({2, 1, 16}, 1);
  const std::string with = format.details(2);
  EXPECT_TRUE(with.starts_with(without + " basis ")) << with;
  format.key_bases = random_key_bases({2, 1, 16}, 2);
  EXPECT_NE(format.details(2), with);
  format.all.k = CodecId::kInt8;
  EXPECT_EQ(format.details(2), without);
}

}  // namespace
}  // namespace kvasir::cache
