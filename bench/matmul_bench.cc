// Speed of the matmul kernels at the shapes of SmolLM2-135M, beside what the machine can do at
// most: bytes read per second by a plain loop, and multiply-adds of the widest instruction.
//
//   matmul_bench --benchmark_filter=Q4_1
//
// GB/s counts packed weight bytes; GOP/s counts a multiply and an add as two.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "model/matmul.h"
#include "simd/half.h"
#include "simd/probe.h"

namespace kvasir::bench {
namespace {

using gguf::TensorType;

struct Shape {
  int n_rows, n_cols;
};
constexpr std::array<Shape, 5> kShapes{
    {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}}};

// Random blocks with small f16 scales, so that sums stay finite.
model::Matrix random_matrix(TensorType type, Shape shape, ThreadPool& pool, unsigned seed,
                            model::WeightArena& arena) {
  const gguf::TypeTraits& traits = *gguf::type_traits(type);
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(shape.n_rows) * shape.n_cols /
                                  traits.block_values * traits.block_bytes);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random() >> 7);
  if (traits.block_values == 32) {
    const std::uint16_t scale = simd::f32_to_f16(0.01f);
    for (std::size_t i = 0; i < bytes.size(); i += traits.block_bytes) {
      std::memcpy(bytes.data() + i, &scale, 2);
      if (type == TensorType::kQ4_1) std::memcpy(bytes.data() + i + 2, &scale, 2);
    }
  } else {
    for (std::size_t i = 0; i < bytes.size(); i += traits.block_bytes) {
      std::memset(bytes.data() + i, 0x21, traits.block_bytes);
    }
  }
  gguf::TensorInfo tensor;
  tensor.type = type;
  tensor.n_dims = 2;
  tensor.shape = {static_cast<std::uint64_t>(shape.n_cols),
                  static_cast<std::uint64_t>(shape.n_rows), 1, 1};
  tensor.data = bytes;
  const gguf::TensorInfo* tensors[] = {&tensor};
  return model::Matrix::pack(gguf::File(), tensors, pool, &arena).value();
}

void matmul(benchmark::State& state, TensorType type, Shape shape, int n_tokens, int n_threads,
            model::ActivationMode mode) {
  ThreadPool pool(n_threads);
  // As many copies as a model has layers, so that a GEMV reads memory and not the cache.
  const std::size_t one = static_cast<std::size_t>(shape.n_rows) * shape.n_cols;
  const std::size_t n_copies =
      n_tokens > 4 ? 1 : std::max<std::size_t>(1, (std::size_t{160} << 20) / one);
  const std::uint64_t packed =
      model::packed_bytes(*model::Matrix::format_for(type), shape.n_rows, shape.n_cols);
  model::WeightArena arena(n_copies * model::WeightArena::rounded(packed));
  std::vector<model::Matrix> matrices;
  for (std::size_t i = 0; i < n_copies; ++i) {
    matrices.push_back(random_matrix(type, shape, pool, static_cast<unsigned>(i), arena));
  }
  std::vector<float> x(static_cast<std::size_t>(n_tokens) * shape.n_cols);
  std::vector<float> y(static_cast<std::size_t>(n_tokens) * shape.n_rows);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  model::Activations activations;
  activations.prepare(pool, mode, x.data(), n_tokens, shape.n_cols, shape.n_cols);
  std::size_t next = 0;
  for (auto _ : state) {
    model::matmul(pool, matrices[next], activations, y.data(), shape.n_rows);
    next = (next + 1) % n_copies;
  }
  const double n = static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(
      n * static_cast<double>(matrices[0].packed_bytes()) * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GOP/s"] = benchmark::Counter(n * 2e-9 * static_cast<double>(one) * n_tokens,
                                               benchmark::Counter::kIsRate);
}

void quantize(benchmark::State& state) {
  ThreadPool pool(1);
  std::vector<float> x(512 * 576, 1.25f);
  model::Activations activations;
  for (auto _ : state) {
    activations.prepare(pool, model::ActivationMode::kInt8, x.data(), 512, 576, 576);
  }
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(x.size() * 4) * 1e-9,
      benchmark::Counter::kIsRate);
}

// The ceilings, each measured once per iteration.
void probe(benchmark::State& state, double (*rate)(ThreadPool&), int n_threads) {
  ThreadPool pool(n_threads);
  double best = 0;
  for (auto _ : state) best = std::max(best, rate(pool));
  state.counters["GOP/s"] = 2e-9 * best;
}

void read_probe(benchmark::State& state, int n_threads) {
  ThreadPool pool(n_threads);
  AlignedBuffer buffer((std::size_t{128} << 20) * static_cast<std::size_t>(n_threads));
  std::memset(buffer.data(), 1, buffer.size());
  double best = 0;
  for (auto _ : state) {
    best = std::max(best, simd::read_rate(pool, {buffer.data(), buffer.size()}));
  }
  state.counters["GB/s"] = 1e-9 * best;
}

void register_all() {
  benchmark::RegisterBenchmark("quantize/512x576", quantize);
  for (const int n_threads : {1, 2}) {
    const std::string suffix = "/threads:" + std::to_string(n_threads);
    benchmark::RegisterBenchmark(("peak/dot" + suffix).c_str(), probe, simd::integer_rate,
                                 n_threads);
    benchmark::RegisterBenchmark(("peak/fma" + suffix).c_str(), probe, simd::float_rate, n_threads);
    benchmark::RegisterBenchmark(("peak/read" + suffix).c_str(), read_probe, n_threads);
  }
  const std::pair<const char*, TensorType> types[] = {
      {"Q4_1", TensorType::kQ4_1}, {"Q4_0", TensorType::kQ4_0}, {"Q8_0", TensorType::kQ8_0},
      {"Q4_K", TensorType::kQ4_K}, {"Q6_K", TensorType::kQ6_K}, {"F16", TensorType::kF16},
      {"F32", TensorType::kF32}};
  for (const auto& [name, type] : types) {
    for (const Shape shape : kShapes) {
      if (gguf::type_traits(type)->block_values == 256 && shape.n_cols % 256 != 0) continue;
      if (shape.n_rows > 10000 && type != TensorType::kQ8_0) continue;
      for (const int n_tokens : {1, 4, 8, 32, 512}) {
        if (shape.n_rows > 10000 && n_tokens > 32) continue;
        for (const auto mode : {model::ActivationMode::kInt8, model::ActivationMode::kFloat32}) {
          for (const int n_threads : {1, 2}) {
            const std::string label =
                std::string(name) + (mode == model::ActivationMode::kInt8 ? "/int8/" : "/f32/") +
                std::to_string(shape.n_rows) + "x" + std::to_string(shape.n_cols) +
                "/tokens:" + std::to_string(n_tokens) + "/threads:" + std::to_string(n_threads);
            benchmark::RegisterBenchmark(label.c_str(), matmul, type, shape, n_tokens, n_threads,
                                         mode)
                ->UseRealTime();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  kvasir::bench::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
