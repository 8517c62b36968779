// Tokens that are noted as poisoned are those that read back with a value that is not finite, in
// every codec.
#include "cache/codec/poison.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/codec/row_codec.h"

namespace kvasir::cache {
namespace {

constexpr int kHeads = 2, kDim = 80, kRow = kHeads * kDim;
constexpr int kTokens = 75;
constexpr CodecId kCodecs[] = {CodecId::kF32,  CodecId::kF16,     CodecId::kBF16,
                               CodecId::kInt8, CodecId::kInt8G64, CodecId::kTile4};

/// The ends of the codecs' ranges, and what is beyond all.
std::vector<float> hard_values() {
  std::vector<float> all = {std::nanf(""), std::numeric_limits<float>::infinity(), 3.4e38f,
                            std::numeric_limits<float>::max()};
  // f16: 65504 and half a step above it; bf16 likewise; int8: 65504 * 127 over a Hadamard row.
  for (const std::uint32_t bits : {0x477FE000u, 0x477FEFFFu, 0x477FF000u, 0x7F7F0000u, 0x7F7F7FFFu,
                                   0x7F7F8000u, 0x4B7D0000u, 0x4AFDE000u}) {
    all.push_back(std::bit_cast<float>(bits));
  }
  for (int exponent = 14; exponent < 30; ++exponent) all.push_back(std::ldexp(1.3f, exponent));
  return all;
}

bool reads_finite(const PagedKvView& view, int pos) {
  std::vector<float> row(kDim);
  for (int head = 0; head < kHeads; ++head) {
    for (const auto read : {read_k, read_v}) {
      read(view, pos, head, row.data());
      for (const float value : row) {
        if (!std::isfinite(value)) return false;
      }
    }
  }
  return true;
}

class Poison : public ::testing::TestWithParam<std::tuple<CodecId, CodecId, HeadOrder>> {};

TEST_P(Poison, IsNotedWhereARowReadsBackNotFinite) {
  ByteBudget budget;
  CacheOptions options;
  options.groups = {{.layers = {0}, .n_kv_heads = kHeads, .head_dim = kDim, .window = 0}};
  std::tie(options.codec_k, options.codec_v, options.head_order) = GetParam();
  options.page_tokens = 64;
  const auto cache = KvCache::create(options, budget).value();
  Sequence sequence = cache->open();
  ASSERT_TRUE(sequence.append(kTokens));
  const PagedKvView view = sequence.views()[0];

  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> rows(2 * kRow * kTokens);
  const std::vector<float> hard = hard_values();
  int n_poisoned = 0, n_clean = 0;
  for (int round = 0; round < 8; ++round) {
    for (float& value : rows) value = normal(random);
    for (int pos = 0; pos < kTokens; ++pos) {  // every second token has one hard value somewhere
      if (random() % 2 != 0) continue;
      const float value = hard[random() % hard.size()];
      rows[static_cast<std::size_t>(pos) * 2 * kRow + random() % (2 * kRow)] =
          random() % 2 != 0 ? value : -value;
    }
    std::vector<std::uint8_t> noted(kTokens);
    for (int first = 0; first < kTokens;) {  // ends inside strips
      const int n = std::min(1 + static_cast<int>(random() % 40), kTokens - first);
      const float* k = rows.data() + static_cast<std::size_t>(first) * 2 * kRow;
      write_kv(view, first, n, k, k + kRow, 2 * kRow);
      note_poisoned(view, first, n, k, k + kRow, 2 * kRow, noted.data() + first);
      first += n;
    }
    for (int pos = 0; pos < kTokens; ++pos) {
      const bool is_finite = reads_finite(view, pos);
      ASSERT_EQ(noted[static_cast<std::size_t>(pos)], is_finite ? 0 : 1) << "token " << pos;
      ++(is_finite ? n_clean : n_poisoned);
    }
  }
  EXPECT_GT(n_poisoned, 20);
  EXPECT_GT(n_clean, 300);
}

std::string name_of(const ::testing::TestParamInfo<Poison::ParamType>& tested) {
  const auto [k, v, order] = tested.param;
  std::string name;
  for (const CodecId codec : {k, v}) {
    for (const char letter : codec_name(codec)) name += letter == '-' ? '_' : letter;
    name += '_';
  }
  return name + (order == HeadOrder::kSplit ? "split" : "interleaved");
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, Poison,
    ::testing::Combine(::testing::ValuesIn(kCodecs), ::testing::ValuesIn(kCodecs),
                       ::testing::Values(HeadOrder::kSplit, HeadOrder::kInterleaved)),
    name_of);

}  // namespace
}  // namespace kvasir::cache
