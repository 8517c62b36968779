// Attention of SmolLM2-135M's shape: 30 layers x 3 kv heads x 3 query heads of 64.
//
// Decode prints the share of the read rate of a buffer of the same size, prefill the share of the
// f32 FMA peak. Both limits are measured between the iterations, because a virtual machine's rates
// drift within minutes; figures are the best of all iterations on either side.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "cache/codec/row_codec.h"
#include "cache/codec/seal.h"
#include "cache/page/geometry.h"
#include "simd/probe.h"

namespace kvasir::bench {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr cache::CodecId kCodecs[] = {cache::CodecId::kF16,     cache::CodecId::kBF16,
                                      cache::CodecId::kF32,     cache::CodecId::kInt8,
                                      cache::CodecId::kInt8G64, cache::CodecId::kTile3,
                                      cache::CodecId::kTile4,   cache::CodecId::kTile5};
constexpr int kLayers = 30, kKvHeads = 3, kHeads = 9, kHeadDim = 64, kPageTokens = 64;

/// Frames in random order.
struct Frames {
  Frames() = default;
  Frames(const cache::PageGeometry& geometry, std::size_t n_pages)
      : memory(n_pages * geometry.frame_bytes()) {
    for (std::size_t i = 0; i < n_pages; ++i) {
      places.push_back(memory.data() + i * geometry.frame_bytes());
    }
    std::shuffle(places.begin(), places.end(), std::mt19937(1));
  }
  AlignedBuffer memory;
  std::vector<std::uint8_t*> places;
};

cache::PageGeometry geometry_of(cache::CodecId codec) {
  cache::PageGeometry::Options options;
  options.shape = {kLayers, kKvHeads, kHeadDim};
  options.codec_k = options.codec_v = codec;
  options.page_tokens = kPageTokens;
  return *cache::PageGeometry::create(options);
}

/// All layers of one sequence; of a tile codec, the tiles as well.
struct Cache {
  Cache(int n_tokens, cache::CodecId codec) {
    const cache::PageGeometry geometry = geometry_of(cache::row_codec_of(codec));
    const cache::PageGeometry tile_geometry = geometry_of(codec);
    const auto n_pages = static_cast<std::size_t>(cache::pages_for(n_tokens, kPageTokens));
    rows = Frames(geometry, n_pages);
    if (cache::is_tile_codec(codec)) tiles = Frames(tile_geometry, n_pages);
    std::vector<float> values(static_cast<std::size_t>(n_tokens) * kKvHeads * kHeadDim);
    std::mt19937 random(2);
    for (float& value : values) value = static_cast<float>(random()) * 0x1p-31f - 1.0f;
    for (int layer = 0; layer < kLayers; ++layer) {
      cache::PagedKvView& view = views[layer];
      view = cache::view_of(geometry, layer);
      view.rows.frames = rows.places.data();
      view.n_tokens = n_tokens;
      cache::write_kv(view, 0, n_tokens, values.data(), values.data(),
                      std::size_t{kKvHeads} * kHeadDim);
      if (tiles.places.empty()) continue;
      view.tiles = {tiles.places.data(), tile_geometry.k(layer), tile_geometry.v(layer)};
      view.n_sink_tiles = view.n_tail_tiles = 1;
      for (int task = 0; task < n_tokens / kPageTokens * kKvHeads * 2; ++task) {
        cache::seal_tile(view, task / 2 / kKvHeads, task / 2 % kKvHeads, task % 2 == 1);
      }
    }
  }
  /// What a query at the end reads nearly all of.
  std::span<const std::uint8_t> memory() const {
    const AlignedBuffer& most = tiles.places.empty() ? rows.memory : tiles.memory;
    return {most.data(), most.size()};
  }
  Frames rows, tiles;
  cache::PagedKvView views[kLayers];
};

/// Rows [first_pos, first_pos + n_rows) through all layers; returns seconds.
double attend_all_layers(ThreadPool& pool, const Cache& cache, int first_pos, int n_rows,
                         const std::vector<float>& q, std::vector<float>& out,
                         attention::Scratch& scratch) {
  attention::AttentionParams params;
  params.n_heads = kHeads;
  params.head_dim = kHeadDim;
  params.scale = 0.125f;
  params.q_row_stride = params.out_row_stride = std::size_t{kHeads} * kHeadDim;
  const auto start = Clock::now();
  for (const cache::PagedKvView& view : cache.views) {
    const attention::QueryRows rows = {view, first_pos, 0, n_rows};
    attention::attend(pool, params, {&rows, 1}, q.data(), out.data(), scratch);
  }
  return seconds_since(start);
}

std::vector<float> queries(int n_rows) {
  std::vector<float> q(static_cast<std::size_t>(n_rows) * kHeads * kHeadDim);
  std::mt19937 random(3);
  for (float& value : q) value = static_cast<float>(random()) * 0x1p-31f - 1.0f;
  return q;
}

/// Args: codec, tokens, threads.
void decode(benchmark::State& state) {
  const auto codec = static_cast<cache::CodecId>(state.range(0));
  const int n_tokens = static_cast<int>(state.range(1));
  ThreadPool pool(static_cast<int>(state.range(2)));
  const Cache cache(n_tokens, codec);
  const std::vector<float> q = queries(1);
  std::vector<float> out(q.size());
  attention::Scratch scratch;
  double best = std::numeric_limits<double>::infinity(), read = 0.0;
  for (auto _ : state) {
    read = std::max(read, simd::read_rate(pool, cache.memory()));
    const double seconds = attend_all_layers(pool, cache, n_tokens - 1, 1, q, out, scratch);
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  const double rate = static_cast<double>(cache.memory().size()) / best;
  state.counters["best_ms"] = best * 1e3;
  state.counters["GB/s"] = rate / 1e9;
  state.counters["read_GB/s"] = read / 1e9;
  state.counters["percent_of_read"] = 100.0 * rate / read;
  state.SetLabel(std::string(cache::codec_name(codec)));
}

/// Args: codec, depth, rows, threads.
void prefill(benchmark::State& state) {
  const auto codec = static_cast<cache::CodecId>(state.range(0));
  const int depth = static_cast<int>(state.range(1)), n_rows = static_cast<int>(state.range(2));
  ThreadPool pool(static_cast<int>(state.range(3)));
  const Cache cache(depth + n_rows, codec);
  const std::vector<float> q = queries(n_rows);
  std::vector<float> out(q.size());
  attention::Scratch scratch;
  double best = std::numeric_limits<double>::infinity(), peak = 0.0;
  for (auto _ : state) {
    peak = std::max(peak, 2.0 * simd::float_rate(pool));
    const double seconds = attend_all_layers(pool, cache, depth, n_rows, q, out, scratch);
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  // Causal: a row at position p sees p + 1 tokens; 2 operations for each of QK and PV.
  const double pairs = n_rows * (depth + (n_rows + 1) / 2.0);
  const double rate = 4.0 * pairs * kHeadDim * kHeads * kLayers / best;
  state.counters["best_ms"] = best * 1e3;
  state.counters["GFLOP/s"] = rate / 1e9;
  state.counters["peak_GFLOP/s"] = peak / 1e9;
  state.counters["percent_of_peak"] = 100.0 * rate / peak;
  state.SetLabel(std::string(cache::codec_name(codec)));
}

void thread_counts(benchmark::internal::Benchmark* bench, std::vector<std::int64_t> args) {
  for (const std::int64_t n_threads : {std::int64_t{1}, std::int64_t{ThreadPool::usable_cpus()}}) {
    args.push_back(n_threads);
    bench->Args(args);
    args.pop_back();
    if (ThreadPool::usable_cpus() == 1) return;
  }
}

void decode_args(benchmark::internal::Benchmark* bench) {
  for (const cache::CodecId codec : kCodecs) {
    for (const int n_tokens : {512, 4096, 8192}) {
      thread_counts(bench, {static_cast<std::int64_t>(codec), n_tokens});
    }
  }
}

void prefill_args(benchmark::internal::Benchmark* bench) {
  for (const cache::CodecId codec : kCodecs) {
    thread_counts(bench, {static_cast<std::int64_t>(codec), 0, 512});
    thread_counts(bench, {static_cast<std::int64_t>(codec), 7680, 512});
  }
}

BENCHMARK(decode)->Apply(decode_args)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(prefill)->Apply(prefill_args)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvasir::bench

BENCHMARK_MAIN();
