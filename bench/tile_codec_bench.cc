// Encoding one tile (64 tokens of one kv head) of K or V, per head dim and codec, on one core.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cache/codec/tile_codec.h"

namespace kvasir::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Args: codec, head dim. Counts the best of all batches, because a virtual machine's rate drifts.
template <bool kIsV>
void encode_tile(benchmark::State& state) {
  const auto codec = static_cast<cache::CodecId>(state.range(0));
  const int head_dim = static_cast<int>(state.range(1));
  const auto row = static_cast<std::size_t>(head_dim);
  std::vector<float> rows(cache::kTileTokens * row);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : rows) value = normal(random);
  std::vector<std::uint8_t> codes(cache::tile_code_bytes(codec, head_dim));
  std::vector<std::uint8_t> meta(cache::tile_meta_bytes(codec, head_dim, kIsV));
  constexpr int kBatch = 100;
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    const auto start = Clock::now();
    for (int i = 0; i < kBatch; ++i) {
      (kIsV ? cache::encode_v_tile : cache::encode_k_tile)(codec, head_dim, rows.data(), row,
                                                           codes.data(), meta.data());
      benchmark::DoNotOptimize(codes.data());
      benchmark::ClobberMemory();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count() / kBatch;
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["best_us"] = best * 1e6;
  state.counters["values/ns"] = static_cast<double>(rows.size()) / best * 1e-9;
  state.SetLabel(std::string(cache::codec_name(codec)) + " D" + std::to_string(head_dim));
}

void shapes(benchmark::internal::Benchmark* bench) {
  for (const int head_dim : {64, 80, 96, 112, 128, 256}) {
    for (const cache::CodecId codec :
         {cache::CodecId::kTile3, cache::CodecId::kTile4, cache::CodecId::kTile5}) {
      bench->Args({static_cast<std::int64_t>(codec), head_dim});
    }
  }
}

BENCHMARK(encode_tile<false>)
    ->Name("encode_k")
    ->Apply(shapes)
    ->UseManualTime()
    ->MinTime(0.02)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(encode_tile<true>)
    ->Name("encode_v")
    ->Apply(shapes)
    ->UseManualTime()
    ->MinTime(0.02)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvasir::bench

BENCHMARK_MAIN();
