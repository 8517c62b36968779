// Bases of K for tests: random, far from orthogonal, and with an inverse.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "cache/codec/key_basis.h"

namespace kvasir {

/// Matrices of `random_key_bases`: the identity and noise, every channel louder than the one
/// before.
inline std::vector<float> random_key_matrices(const cache::KeyBases::Shape& shape,
                                              std::uint32_t seed) {
  std::mt19937 random(seed);
  const int n = shape.head_dim;
  std::normal_distribution<float> normal(0.0f, 0.5f / std::sqrt(static_cast<float>(n)));
  std::vector<float> keys(shape.floats());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto col = static_cast<int>(i % static_cast<std::size_t>(n));
    const auto row =
        static_cast<int>(i / static_cast<std::size_t>(n) % static_cast<std::size_t>(n));
    const float loudness = 0.5f + 2.0f * static_cast<float>(col) / static_cast<float>(n);
    keys[i] = ((row == col ? 1.0f : 0.0f) + normal(random)) * loudness;
  }
  return keys;
}

inline std::shared_ptr<const cache::KeyBases> random_key_bases(const cache::KeyBases::Shape& shape,
                                                               std::uint32_t seed = 1) {
  auto made = cache::KeyBases::create(shape, random_key_matrices(shape, seed));
  EXPECT_TRUE(made) << made.error().message;
  return made ? *std::move(made) : nullptr;
}

}  // namespace kvasir
