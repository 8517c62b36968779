// Rows are turned to where their tile is moved, and tiles are moved all over the context.
#include "eval/scattered_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

namespace kvasir::eval {
namespace {

constexpr int kHeads = 6, kKvHeads = 2, kHeadDim = 16, kStride = (kHeads + 2 * kKvHeads) * kHeadDim;

/// Two layers with rope, one of them with a window and its own frequencies, and one without.
model::ModelConfig config_of(int n_ctx_train) {
  model::ModelConfig config;
  config.n_layers = 3;
  config.n_heads = kHeads;
  config.n_kv_heads = kKvHeads;
  config.head_dim = kHeadDim;
  config.n_ctx_train = n_ctx_train;
  config.is_rope_layer = {true, true, false};
  config.is_window_layer = {false, true, false};
  for (int table = 0; table < 2; ++table) {
    model::RopeTable& rope = config.rope[table];
    rope.n_rotated = 8 + 8 * table;
    for (int i = 0; i < rope.n_rotated / 2; ++i) {
      rope.inverse_frequency.push_back(std::pow(table == 0 ? 100.0 : 10.0, -i / 4.0));
    }
  }
  return config;
}

std::vector<float> normal_rows(int n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(n * kStride));
  std::generate(rows.begin(), rows.end(), [&] { return normal(random); });
  return rows;
}

void rotate(const model::ModelConfig& config, int layer, Position pos, float* row) {
  if (!config.is_rope_layer[static_cast<std::size_t>(layer)]) return;
  const model::RopeTable& table =
      config.rope[config.is_window_layer[static_cast<std::size_t>(layer)] ? 1 : 0];
  std::vector<float> cos(table.inverse_frequency.size()), sin(cos.size());
  model::rope_angles(table, pos, cos.data(), sin.data());
  model::rope(table, cos.data(), sin.data(), kHeads + kKvHeads, kHeadDim, row);
}

TEST(ScatteredRows, AreWhatTheyWouldBeAtTheirPlace) {
  const model::ModelConfig config = config_of(1024);
  constexpr int kFirst = 40, kRows = 250;  // parts of tiles at both ends
  const std::vector<float> plain = normal_rows(kRows);
  ScatteredRows scattered(config);
  scattered.next_chunk(300);
  scattered.next_chunk(300);
  for (int layer = 0; layer < config.n_layers; ++layer) {
    std::vector<float> rows = plain, wanted = plain;
    for (int i = 0; i < kRows; ++i) {
      const Position pos = kFirst + i;
      rotate(config, layer, pos, rows.data() + i * kStride);
      rotate(config, layer, scattered.place_of(pos / 64) * 64 + pos % 64,
             wanted.data() + i * kStride);
    }
    const auto turned = scattered.turn(layer, kFirst, kRows, rows.data(), kStride);
    constexpr int kRowFloats = (kHeads + kKvHeads) * kHeadDim;
    ASSERT_EQ(turned.size(), std::size_t{kRows} * kRowFloats);
    float most = 0;
    for (int i = 0; i < kRows; ++i) {
      for (int d = 0; d < kRowFloats; ++d) {
        most = std::max(most, std::abs(turned[static_cast<std::size_t>(i * kRowFloats + d)] -
                                       wanted[static_cast<std::size_t>(i * kStride + d)]));
      }
    }
    EXPECT_LT(most, 2e-4) << layer;
  }
}

TEST(ScatteredRows, PlacesAreSpreadOverTheContext) {
  const model::ModelConfig config = config_of(4096);
  ScatteredRows scattered(config);
  std::set<int> places;
  for (int chunk = 0; chunk < 4; ++chunk) {
    scattered.next_chunk(8 * 64 - 1);
    for (int tile = 0; tile < 8; ++tile) places.insert(scattered.place_of(tile));
  }
  ASSERT_EQ(places.size(), 32u);  // of 64: one in each two
  int expected = 0;
  for (const int place : places) EXPECT_EQ(place, expected++ * 2);
}

TEST(ScatteredRows, AContextShorterThanATileHasOnePlace) {
  const model::ModelConfig config = config_of(32);
  ScatteredRows scattered(config);
  scattered.next_chunk(32);
  EXPECT_EQ(scattered.place_of(0), 0);
  EXPECT_EQ(scattered.place_of(3), 0);
}

}  // namespace
}  // namespace kvasir::eval
