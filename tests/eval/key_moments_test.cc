// The basis that moments call for: q and K have the same moments in it, and it does not depend on
// how a history was cut.
#include "eval/key_moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kvasir::eval {
namespace {

constexpr cache::KeyBases::Shape kShape{2, 2, 16};
constexpr int kHeads = 6, kRows = 700, kStride = (kHeads + 2 * 2) * 16 + 5;

/// q, K, V of 6, 2 and 2 heads: channels of different loudness, K with a mean that drifts.
std::vector<float> rows_of(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(kRows * kStride));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int>(i) / kStride, at = static_cast<int>(i) % kStride;
    const int head = at / 16, d = at % 16;
    const float loudness = head < kHeads ? 1.0f + static_cast<float>(d) : 16.0f / (1.0f + d);
    const float mean = head < kHeads ? 0.0f : 0.3f * std::sin(0.01f * static_cast<float>(row + d));
    rows[i] = loudness * normal(random) + mean;
  }
  return rows;
}

/// Of both layers, in pieces.
KeyMoments moments_of(const std::vector<float>& rows, int piece, int n_threads) {
  ThreadPool pool(n_threads);
  KeyMoments moments(kShape, kHeads);
  for (int first = 0; first < kRows; first += piece) {
    for (int layer = 0; layer < 2; ++layer) {
      moments.add(pool, layer, first, std::min(piece, kRows - first),
                  rows.data() + static_cast<std::size_t>(first * kStride), kStride);
    }
  }
  return moments;
}

TEST(KeyMoments, ABasisDoesNotDependOnPiecesOrThreads) {
  const auto rows = rows_of(1);
  ThreadPool pool(1);
  const auto whole = moments_of(rows, kRows, 1).bases(pool);
  ASSERT_TRUE(whole) << whole.error().message;
  for (const int piece : {1, 33, 64, 341}) {
    const auto other = moments_of(rows, piece, 2).bases(pool);
    EXPECT_EQ((*other)->fingerprint(), (*whole)->fingerprint()) << piece;
  }
  EXPECT_NE((*moments_of(rows_of(2), kRows, 1).bases(pool))->fingerprint(),
            (*whole)->fingerprint());
}

/// Sums of x x^T over tokens from 64 on, of the heads from `first_head` on.
SquareMatrix outer_sum(const std::vector<float>& rows, int first_head, int n_heads) {
  SquareMatrix sum(16);
  for (int row = 64; row < kRows; ++row) {
    for (int head = first_head; head < first_head + n_heads; ++head) {
      const float* x = rows.data() + row * kStride + head * 16;
      for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 16; ++j) sum(i, j) += double{x[i]} * x[j] / (n_heads * (kRows - 64));
      }
    }
  }
  return sum;
}

TEST(KeyMoments, QueriesAndKeysAreEquallyLoudInEachChannelOfABasis) {
  const auto rows = rows_of(1);
  ThreadPool pool(1);
  const auto bases = *moments_of(rows, 64, 1).bases(pool);
  for (int head = 0; head < 2; ++head) {
    SquareMatrix a(16);
    const float* value = bases->of_layer(1).keys + head * 256;
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) a(i, j) = double{*value++};
    }
    const SquareMatrix b = transposed(*inverse(a));
    const SquareMatrix raw = outer_sum(rows, kHeads + head, 1);
    const SquareMatrix q = product(transposed(b), product(outer_sum(rows, 3 * head, 3), b));
    const SquareMatrix k = product(transposed(a), product(raw, a));
    // The drifting means and the ridge are a small part of these moments.
    double ratio = 0, length = 0, raw_length = 0;
    for (int i = 0; i < 16; ++i) {
      ratio += k(i, i) / q(i, i) / 16;
      length += k(i, i);
      raw_length += raw(i, i);
    }
    EXPECT_NEAR(length / raw_length, 1, 0.01) << "K is as long as before";
    for (int i = 0; i < 16; ++i) {
      EXPECT_NEAR(k(i, i) / q(i, i) / ratio, 1, 0.25) << head << " " << i;
      for (int j = 0; j < i; ++j) {
        EXPECT_LT(std::abs(q(i, j)), 0.05 * std::sqrt(q(i, i) * q(j, j))) << i << " " << j;
        EXPECT_LT(std::abs(k(i, j)), 0.25 * std::sqrt(k(i, i) * k(j, j))) << i << " " << j;
      }
    }
  }
}

TEST(KeyMoments, WhatWasNotSeenKeepsItsBasis) {
  ThreadPool pool(1);
  const auto bases = KeyMoments(kShape, kHeads).bases(pool);
  ASSERT_TRUE(bases) << bases.error().message;
  const float* value = (*bases)->keys().data();
  for (int unit = 0; unit < 4; ++unit) {
    for (int i = 0; i < 256; ++i) EXPECT_EQ(*value++, i % 17 == 0 ? 1.0f : 0.0f);
  }
  // Nor is a history of one tile looked at: it is read as rows.
  KeyMoments first(kShape, kHeads);
  first.add(pool, 0, 0, 64, rows_of(1).data(), kStride);
  EXPECT_EQ((*first.bases(pool))->fingerprint(), (*bases)->fingerprint());
}

TEST(KeyMoments, AKeyThatIsAlwaysTheSameHasABasisAllTheSame) {
  auto rows = rows_of(1);
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < 32; ++i)
      rows[static_cast<std::size_t>(row * kStride + kHeads * 16 + i)] = 2;
  }
  ThreadPool pool(1);
  const auto bases = moments_of(rows, 64, 1).bases(pool);
  EXPECT_TRUE(bases) << bases.error().message;
}

}  // namespace
}  // namespace kvasir::eval
