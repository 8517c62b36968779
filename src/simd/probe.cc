#include "simd/probe.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/probe.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "simd/cpu.h"
#include "simd/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Chains that do not wait for each other: latency x throughput of FMA is 10 at most, and with 12
// sums, two operands fit 16 registers.
constexpr int kChains = 12;

template <class Dot>
std::int64_t DotChainsOf(std::int64_t n, float* sink) {
  std::uint8_t bytes[64] = {1, 2, 3};
  std::int8_t quad[4] = {1, 0, 1, 0};
  std::int32_t minus_sum = 0;
  const auto weights = Dot::prepare(LoadBytes(bytes));
  Bytes q = BroadcastQuad(quad);
  typename Dot::Sum sums[kChains];
  KVASIR_UNROLL
  for (int i = 0; i < kChains; ++i) sums[i] = Dot::start(&minus_sum);
  for (std::int64_t k = 0; k < n; ++k) {
    KVASIR_UNROLL
    for (int i = 0; i < kChains; ++i) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
      asm("" : "+v"(q.raw));  // or the product, being always the same, is computed once
#endif
      sums[i] = Dot::step(sums[i], weights, q);
    }
  }
  auto total = hn::Zero(DI32());
  KVASIR_UNROLL
  for (int i = 0; i < kChains; ++i) total = hn::Add(total, Dot::finish(sums[i], &minus_sum));
  *sink = static_cast<float>(hn::GetLane(total));
  return n * kChains * 4 * kLanes;
}

/// Returns its multiply-adds; `sink` gets something that depends on all of them.
std::int64_t DotChains(std::int64_t n, float* sink) {
#if HWY_TARGET == HWY_AVX2
  if (use_avx_vnni()) return DotChainsOf<VnniDot<4, 0>>(n, sink);
#endif
  return DotChainsOf<Dot<4, 0>>(n, sink);
}

/// Returns its multiply-adds; `sink` gets something that depends on all of them.
std::int64_t FmaChains(std::int64_t n, float* sink) {
  const DF32 d;
  const VF32 a = hn::Set(d, 0.5f + static_cast<float>(n & 1));
  VF32 sums[kChains];
  KVASIR_UNROLL
  for (int i = 0; i < kChains; ++i) sums[i] = hn::Set(d, static_cast<float>(i));
  for (std::int64_t k = 0; k < n; ++k) {
    KVASIR_UNROLL
    for (int i = 0; i < kChains; ++i) sums[i] = FusedMulAdd(sums[i], a, a);
  }
  VF32 total = hn::Zero(d);
  KVASIR_UNROLL
  for (int i = 0; i < kChains; ++i) total = hn::Add(total, sums[i]);
  *sink = hn::GetLane(total);
  return n * kChains * kLanes;
}

/// The same of bf16 pairs: what attention over K and V in bf16 does (attention/terms-inl.h).
std::int64_t PairChains(std::int64_t n, float* sink) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if (use_avx512_bf16()) {
    const DF32 d;
    const VF32 a = hn::Set(d, 1.0f + static_cast<float>(n & 1));
    constexpr int kPairChains = 16;  // a longer latency; more would not be unrolled
    VF32 sums[kPairChains];
    KVASIR_UNROLL
    for (int i = 0; i < kPairChains; ++i) sums[i] = hn::Set(d, static_cast<float>(i));
    for (std::int64_t k = 0; k < n; ++k) {
      KVASIR_UNROLL
      for (int i = 0; i < kPairChains; ++i) {
        asm("vdpbf16ps %1, %1, %0" : "+v"(sums[i].raw) : "v"(a.raw));
      }
    }
    VF32 total = hn::Zero(d);
    KVASIR_UNROLL
    for (int i = 0; i < kPairChains; ++i) total = hn::Add(total, sums[i]);
    *sink = hn::GetLane(total);
    return n * kPairChains * 2 * kLanes;
  }
#endif
  return FmaChains(n, sink);
}

/// `n_bytes` a multiple of 256.
void ReadBytes(const std::uint8_t* bytes, std::size_t n_bytes, float* sink) {
  const DI32 d;
  VI32 a = hn::Zero(d), b = a, c = a, e = a;
  const auto* words = reinterpret_cast<const std::int32_t*>(bytes);
  for (std::size_t i = 0; i < n_bytes / 4; i += 4 * kLanes) {
    a = hn::Add(a, hn::LoadU(d, words + i));
    b = hn::Add(b, hn::LoadU(d, words + i + kLanes));
    c = hn::Add(c, hn::LoadU(d, words + i + 2 * kLanes));
    e = hn::Add(e, hn::LoadU(d, words + i + 3 * kLanes));
  }
  *sink = static_cast<float>(hn::GetLane(hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::simd {

HWY_EXPORT(DotChains);
HWY_EXPORT(FmaChains);
HWY_EXPORT(PairChains);
HWY_EXPORT(ReadBytes);

namespace {

/// One result per thread, on its own cache line; volatile, so that nothing is left out as unused.
struct alignas(64) Sink {
  volatile float value = 0;
};

double seconds_of(ThreadPool& pool, const std::function<void(int, float*)>& work) {
  std::vector<Sink> sinks(static_cast<std::size_t>(pool.n_threads()));
  const auto start = std::chrono::steady_clock::now();
  pool.run([&](int thread_idx) {
    float result = 0;
    work(thread_idx, &result);
    sinks[static_cast<std::size_t>(thread_idx)].value = result;
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The best of a few short runs: a neighbour's time slice must not lower a ceiling.
double best_rate(ThreadPool& pool, std::int64_t (*chains)(std::int64_t, float*)) {
  constexpr int kRuns = 5;
  constexpr std::int64_t kSteps = 100'000;
  double best = 0;
  for (int i = 0; i < kRuns; ++i) {
    std::int64_t n_operations = 0;  // equal on every thread
    const double seconds = seconds_of(pool, [&](int thread_idx, float* sink) {
      const std::int64_t n = chains(kSteps, sink);
      if (thread_idx == 0) n_operations = n;
    });
    best = std::max(best, static_cast<double>(n_operations) * pool.n_threads() / seconds);
  }
  return best;
}

}  // namespace

double read_rate(ThreadPool& pool, std::span<const std::uint8_t> bytes) {
  const std::size_t share = bytes.size() / static_cast<std::size_t>(pool.n_threads()) / 256 * 256;
  const double seconds = seconds_of(pool, [&](int thread_idx, float* sink) {
    const std::uint8_t* begin = bytes.data() + static_cast<std::size_t>(thread_idx) * share;
    HWY_DYNAMIC_DISPATCH(ReadBytes)(begin, share, sink);
  });
  return static_cast<double>(share * static_cast<std::size_t>(pool.n_threads())) / seconds;
}

double integer_rate(ThreadPool& pool) {
  return best_rate(
      pool, [](std::int64_t n, float* sink) { return HWY_DYNAMIC_DISPATCH(DotChains)(n, sink); });
}

double float_rate(ThreadPool& pool) {
  return best_rate(
      pool, [](std::int64_t n, float* sink) { return HWY_DYNAMIC_DISPATCH(FmaChains)(n, sink); });
}

double bf16_rate(ThreadPool& pool) {
  return best_rate(
      pool, [](std::int64_t n, float* sink) { return HWY_DYNAMIC_DISPATCH(PairChains)(n, sink); });
}

double barrier_seconds(ThreadPool& pool) {
  constexpr int kBarriers = 10'000;
  const double seconds = seconds_of(pool, [&](int, float*) {
    for (int i = 0; i < kBarriers; ++i) pool.barrier();
  });
  return seconds / kBarriers;
}

}  // namespace kvasir::simd
#endif  // HWY_ONCE
