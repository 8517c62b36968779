// Keys turned to another position, against the rotation from scratch in double precision.
#include "model/key_shift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "model/rope_scaling.h"

namespace kvasir::model {
namespace {

constexpr int kHeads = 3;

/// Layer 0 sees all, layer 1 has a window and another base, layer 2 knows no positions.
ModelConfig make_config(RopePairing pairing, int n_rotated, RopeScaling scaling) {
  ModelConfig config;
  config.n_layers = 3;
  config.n_kv_heads = kHeads;
  config.head_dim = 32;
  config.window = 64;
  config.is_window_layer = {false, true, false};
  config.is_rope_layer = {true, true, false};
  RopeParams params;
  params.pairing = pairing;
  params.n_rotated = n_rotated;
  params.base = 10000;
  params.scaling = scaling;
  params.factor = scaling == RopeScaling::kNone ? 1 : 4;
  params.n_ctx_original = 256;
  config.rope[0] = make_rope_table(params);
  params.base = 500000;
  config.rope[1] = make_rope_table(params);
  return config;
}

std::vector<double> rotated(const ModelConfig& config, int layer, const std::vector<float>& keys,
                            int pos) {
  std::vector<double> out(keys.begin(), keys.end());
  if (!config.is_rope_layer[static_cast<std::size_t>(layer)]) return out;
  const RopeTable& table =
      config.rope[config.is_window_layer[static_cast<std::size_t>(layer)] ? 1 : 0];
  const auto half = static_cast<std::size_t>(table.n_rotated / 2);
  const auto magnitude = static_cast<double>(table.magnitude);
  for (std::size_t row = 0; row < out.size(); row += static_cast<std::size_t>(config.head_dim)) {
    for (std::size_t i = 0; i < half; ++i) {
      const bool halves = table.pairing == RopePairing::kHalves;
      double& a = out[row + (halves ? i : 2 * i)];
      double& b = out[row + (halves ? half + i : 2 * i + 1)];
      const double angle = pos * table.inverse_frequency[i];
      const double x = a, y = b;
      a = magnitude * (x * std::cos(angle) - y * std::sin(angle));
      b = magnitude * (x * std::sin(angle) + y * std::cos(angle));
    }
  }
  return out;
}

TEST(KeyShift, TurnsAKeyToItsNewPosition) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const RopePairing pairing : {RopePairing::kNeighbours, RopePairing::kHalves}) {
    for (const int n_rotated : {32, 20}) {
      for (const RopeScaling scaling :
           {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kYarn, RopeScaling::kLlama3}) {
        const ModelConfig config = make_config(pairing, n_rotated, scaling);
        ASSERT_TRUE(scaling != RopeScaling::kYarn || config.rope[0].magnitude > 1.1f);
        for (const int shift : {0, 1, -1, 17, -300, 4000}) {
          const int old_pos = 5000;
          for (int layer = 0; layer < config.n_layers; ++layer) {
            std::vector<float> keys(2 * kHeads * 32);
            for (float& value : keys) value = normal(random);
            const std::vector<double> want = rotated(config, layer, keys, old_pos + shift);
            const std::vector<double> stored = rotated(config, layer, keys, old_pos);
            for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<float>(stored[i]);
            KeyShift(config, shift).apply(layer, 2, keys.data());
            for (std::size_t i = 0; i < keys.size(); ++i) {
              // Some 4 roundings of values up to 5 x 1.14.
              ASSERT_NEAR(keys[i], want[i], 2e-6) << "layer " << layer << ", shift " << shift;
            }
          }
        }
      }
    }
  }
}

TEST(KeyShift, ByNothingChangesNothing) {
  const ModelConfig config = make_config(RopePairing::kHalves, 32, RopeScaling::kYarn);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> keys(16 * kHeads * 32);
  for (float& value : keys) value = normal(random);
  const std::vector<float> before = keys;
  for (int layer = 0; layer < config.n_layers; ++layer) {
    KeyShift(config, 0).apply(layer, 16, keys.data());
  }
  EXPECT_EQ(keys, before);
}

}  // namespace
}  // namespace kvasir::model
