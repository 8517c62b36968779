// Speed of the matmul kernels at the shapes of SmolLM2-135M, beside what the machine can do at
// most: bytes read per second by a plain loop, and multiply-adds of the widest instruction.
//
//   matmul_bench --benchmark_filter=Q4_1
//
// GB/s counts packed weight bytes; GOP/s counts a multiply and an add as two.
#include <benchmark/benchmark.h>

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
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/matmul_bench.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "simd/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sn = simd::HWY_NAMESPACE;

/// 12 independent chains of the 4-bit byte dot; returns its multiply-adds.
std::int64_t PeakDot(std::int64_t n, std::int32_t* sink) {
  std::uint8_t bytes[64] = {1, 2, 3};
  std::int8_t quad[4] = {1, 0, 1, 0};
  std::int32_t minus_sum = 0;
  using Dot = sn::Dot<4, 0>;
  const auto weights = Dot::prepare(sn::LoadBytes(bytes));
  sn::Bytes q = sn::BroadcastQuad(quad);
  typename Dot::Sum sums[12];
  KVASIR_UNROLL
  for (int i = 0; i < 12; ++i) sums[i] = Dot::start(&minus_sum);
  for (std::int64_t k = 0; k < n; ++k) {
    KVASIR_UNROLL
    for (int i = 0; i < 12; ++i) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
      asm("" : "+v"(q.raw));  // or the product, being always the same, is computed once
#endif
      sums[i] = Dot::step(sums[i], weights, q);
    }
  }
  auto total = hn::Zero(sn::DI32());
  KVASIR_UNROLL
  for (int i = 0; i < 12; ++i) total = hn::Add(total, Dot::finish(sums[i], &minus_sum));
  std::int32_t lanes[16];
  hn::StoreU(total, sn::DI32(), lanes);
  *sink = lanes[0];
  return n * 12 * 4 * sn::kLanes;
}

/// 12 independent chains of the float FMA; returns its multiply-adds.
std::int64_t PeakFma(std::int64_t n, float* sink) {
  const sn::DF32 d;
  const sn::VF32 a = hn::Set(d, 0.5f + static_cast<float>(n & 1));
  sn::VF32 sums[12];
  KVASIR_UNROLL
  for (int i = 0; i < 12; ++i) sums[i] = hn::Set(d, static_cast<float>(i));
  for (std::int64_t k = 0; k < n; ++k) {
    KVASIR_UNROLL
    for (int i = 0; i < 12; ++i) sums[i] = sn::FusedMulAdd(sums[i], a, a);
  }
  sn::VF32 total = hn::Zero(d);
  KVASIR_UNROLL
  for (int i = 0; i < 12; ++i) total = hn::Add(total, sums[i]);
  float lanes[16];
  hn::StoreU(total, d, lanes);
  *sink = lanes[0];
  return n * 12 * sn::kLanes;
}

/// Reads `n_bytes`, a multiple of 256.
void ReadBytes(const std::uint8_t* p, std::size_t n_bytes, std::int32_t* sink) {
  const sn::DI32 d;
  auto a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  const auto* words = reinterpret_cast<const std::int32_t*>(p);
  const std::size_t n = n_bytes / 4;
  for (std::size_t i = 0; i < n; i += 4 * sn::kLanes) {
    a = hn::Add(a, hn::LoadU(d, words + i));
    b = hn::Add(b, hn::LoadU(d, words + i + sn::kLanes));
    c = hn::Add(c, hn::LoadU(d, words + i + 2 * sn::kLanes));
    e = hn::Add(e, hn::LoadU(d, words + i + 3 * sn::kLanes));
  }
  std::int32_t lanes[16];
  hn::StoreU(hn::Add(hn::Add(a, b), hn::Add(c, e)), d, lanes);
  *sink = lanes[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::bench {
namespace {

HWY_EXPORT(PeakDot);
HWY_EXPORT(PeakFma);
HWY_EXPORT(ReadBytes);

using gguf::TensorType;

struct Shape {
  int n_rows, n_cols;
};
constexpr std::array<Shape, 5> kShapes{
    {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}}};

// Random blocks with small f16 scales, so that sums stay finite.
model::Matrix random_matrix(TensorType type, Shape shape, ThreadPool& pool, unsigned seed) {
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
  return model::Matrix::pack(gguf::File(), tensors, pool).value();
}

void matmul(benchmark::State& state, TensorType type, Shape shape, int n_tokens, int n_threads,
            model::ActivationMode mode) {
  ThreadPool pool(n_threads);
  // As many copies as a model has layers, so that a GEMV reads memory and not the cache.
  const std::size_t one = static_cast<std::size_t>(shape.n_rows) * shape.n_cols;
  const std::size_t n_copies =
      n_tokens > 4 ? 1 : std::max<std::size_t>(1, (std::size_t{160} << 20) / one);
  std::vector<model::Matrix> matrices;
  for (std::size_t i = 0; i < n_copies; ++i) {
    matrices.push_back(random_matrix(type, shape, pool, static_cast<unsigned>(i)));
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

void read_probe(benchmark::State& state, int n_threads) {
  ThreadPool pool(n_threads);
  const std::size_t share = std::size_t{128} << 20;
  AlignedBuffer buffer(share * static_cast<std::size_t>(n_threads));
  std::memset(buffer.data(), 1, buffer.size());
  std::vector<std::array<std::int32_t, 16>> sinks(static_cast<std::size_t>(n_threads));
  for (auto _ : state) {
    pool.run([&](int i) {
      const std::size_t t = static_cast<std::size_t>(i);
      HWY_DYNAMIC_DISPATCH(ReadBytes)(buffer.data() + t * share, share, sinks[t].data());
    });
  }
  benchmark::DoNotOptimize(sinks);
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(buffer.size()) * 1e-9,
      benchmark::Counter::kIsRate);
}

void peak_dot(benchmark::State& state) {
  std::int32_t sink = 0;
  std::int64_t n = 0;
  for (auto _ : state) n += HWY_DYNAMIC_DISPATCH(PeakDot)(10000, &sink);
  benchmark::DoNotOptimize(sink);
  state.counters["GOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(n), benchmark::Counter::kIsRate);
}

void peak_fma(benchmark::State& state) {
  float sink = 0;
  std::int64_t n = 0;
  for (auto _ : state) n += HWY_DYNAMIC_DISPATCH(PeakFma)(10000, &sink);
  benchmark::DoNotOptimize(sink);
  state.counters["GOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(n), benchmark::Counter::kIsRate);
}

void register_all() {
  benchmark::RegisterBenchmark("peak/dot/1thread", peak_dot);
  benchmark::RegisterBenchmark("peak/fma/1thread", peak_fma);
  benchmark::RegisterBenchmark("quantize/512x576", quantize);
  for (const int n_threads : {1, 2}) {
    benchmark::RegisterBenchmark(("peak/read/" + std::to_string(n_threads) + "threads").c_str(),
                                 read_probe, n_threads)
        ->UseRealTime();
  }
  const std::pair<const char*, TensorType> types[] = {
      {"Q4_1", TensorType::kQ4_1}, {"Q4_0", TensorType::kQ4_0}, {"Q8_0", TensorType::kQ8_0},
      {"Q4_K", TensorType::kQ4_K}, {"Q6_K", TensorType::kQ6_K}, {"F16", TensorType::kF16},
      {"F32", TensorType::kF32}};
  for (const auto& [name, type] : types) {
    for (const Shape shape : kShapes) {
      if (gguf::type_traits(type)->block_values == 256 && shape.n_cols % 256 != 0) continue;
      if (shape.n_rows > 10000 && type != TensorType::kQ8_0) continue;
      for (const int n_tokens : {1, 4, 32, 512}) {
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
#endif  // HWY_ONCE
