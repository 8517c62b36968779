// The small steps between matmuls, per SIMD target.
//
// Rows end in a partial vector through a padded copy, so every element sees the same arithmetic;
// sums run in 16 canonical lanes and are added by one fixed tree.
#include "model/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "simd/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::model {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sn = simd::HWY_NAMESPACE;

/// out[i] = op(a[i], b[i]), vector by vector; out may alias a or b.
template <class Op>
HWY_INLINE void Map(const float* a, const float* b, int n, float* out, Op op) {
  const sn::DF32 d;
  int i = 0;
  for (; i + sn::kLanes <= n; i += sn::kLanes) {
    hn::StoreU(op(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  }
  if (i >= n) return;
  alignas(64) float tail_a[16] = {}, tail_b[16] = {};
  const std::size_t bytes = static_cast<std::size_t>(n - i) * sizeof(float);
  std::memcpy(tail_a, a + i, bytes);
  std::memcpy(tail_b, b + i, bytes);
  hn::Store(op(hn::Load(d, tail_a), hn::Load(d, tail_b)), d, tail_a);
  std::memcpy(out + i, tail_a, bytes);
}

/// Sum of squares: element i in lane i % 16, then lanes by halves.
HWY_INLINE float SumOfSquares(const float* x, int n) {
  const sn::DF32 d;
  sn::VF32 sums[sn::kRegisters];
  KVASIR_UNROLL
  for (int r = 0; r < sn::kRegisters; ++r) sums[r] = hn::Zero(d);
  const auto add = [&](const float* p) HWY_ATTR {
    KVASIR_UNROLL
    for (int r = 0; r < sn::kRegisters; ++r) {
      const sn::VF32 v = hn::LoadU(d, p + r * sn::kLanes);
      sums[r] = sn::FusedMulAdd(v, v, sums[r]);
    }
  };
  int i = 0;
  for (; i + 16 <= n; i += 16) add(x + i);
  if (i < n) {
    float tail[16] = {};
    std::memcpy(tail, x + i, static_cast<std::size_t>(n - i) * sizeof(float));
    add(tail);
  }
  float lanes[16];
  for (int r = 0; r < sn::kRegisters; ++r) hn::StoreU(sums[r], d, lanes + r * sn::kLanes);
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

void RmsNorm(const float* x, const float* weight, float eps, int n, float* y) {
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const sn::VF32 factor = hn::Set(sn::DF32(), 1.0f / std::sqrt(mean + eps));
  Map(x, weight, n, y,
      [=](sn::VF32 v, sn::VF32 w) HWY_ATTR { return hn::Mul(hn::Mul(v, factor), w); });
}

void Add(float* x, const float* y, int n) {
  Map(x, y, n, x, [](sn::VF32 a, sn::VF32 b) HWY_ATTR { return hn::Add(a, b); });
}

void SiluMul(const float* gate, const float* up, int n, float* out) {
  const sn::DF32 d;
  Map(gate, up, n, out,
      [=](sn::VF32 g, sn::VF32 u) HWY_ATTR { return hn::Mul(hn::Mul(g, sn::Sigmoid(d, g)), u); });
}

void GeluMul(const float* gate, const float* up, int n, float* out) {
  // 0.5 g (1 + tanh(z)) = g sigmoid(2 z), z = sqrt(2 / pi) (g + 0.044715 g^3): no cancellation.
  const sn::DF32 d;
  Map(gate, up, n, out, [=](sn::VF32 g, sn::VF32 u) HWY_ATTR {
    const sn::VF32 inner = sn::FusedMulAdd(hn::Mul(g, g), hn::Set(d, 0.044715f), hn::Set(d, 1.0f));
    const sn::VF32 two_z = hn::Mul(hn::Mul(g, hn::Set(d, 1.59576912f)), inner);
    return hn::Mul(hn::Mul(g, sn::Sigmoid(d, two_z)), u);
  });
}

void Softcap(float* x, float cap, int n) {
  const sn::DF32 d;
  const sn::VF32 c = hn::Set(d, cap);
  Map(x, x, n, x,
      [=](sn::VF32 v, sn::VF32) HWY_ATTR { return hn::Mul(c, sn::Tanh(d, hn::Div(v, c))); });
}

void Scale(float* x, float factor, int n) {
  const sn::VF32 f = hn::Set(sn::DF32(), factor);
  Map(x, x, n, x, [=](sn::VF32 v, sn::VF32) HWY_ATTR { return hn::Mul(v, f); });
}

/// (a, b) -> (a cos - b sin, a sin + b cos) for the pairs (i, i + half) of one head.
HWY_INLINE void RotateHalves(const float* cos, const float* sin, int half, float* x) {
  const sn::DF32 d;
  int i = 0;
  for (; i + sn::kLanes <= half; i += sn::kLanes) {
    const sn::VF32 a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + half + i);
    const sn::VF32 c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    hn::StoreU(sn::FusedNegMulAdd(b, s, hn::Mul(a, c)), d, x + i);
    hn::StoreU(sn::FusedMulAdd(b, c, hn::Mul(a, s)), d, x + half + i);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = std::fma(-b, sin[i], a * cos[i]);
    x[half + i] = std::fma(b, cos[i], a * sin[i]);
  }
}

/// The same for the pairs (2i, 2i + 1).
HWY_INLINE void RotateNeighbours(const float* cos, const float* sin, int half, float* x) {
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  const sn::DF32 d;
  for (; i + sn::kLanes <= half; i += sn::kLanes) {
    sn::VF32 a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const sn::VF32 c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    hn::StoreInterleaved2(sn::FusedNegMulAdd(b, s, hn::Mul(a, c)),
                          sn::FusedMulAdd(b, c, hn::Mul(a, s)), d, x + 2 * i);
  }
#endif
  for (; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = std::fma(-b, sin[i], a * cos[i]);
    x[2 * i + 1] = std::fma(b, cos[i], a * sin[i]);
  }
}

void Rope(const RopeTable& table, const float* cos, const float* sin, int n_heads, int head_dim,
          float* x) {
  for (int h = 0; h < n_heads; ++h, x += head_dim) {
    if (table.pairing == RopePairing::kHalves) {
      RotateHalves(cos, sin, table.n_rotated / 2, x);
    } else {
      RotateNeighbours(cos, sin, table.n_rotated / 2, x);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::model
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::model {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(Add);
HWY_EXPORT(SiluMul);
HWY_EXPORT(GeluMul);
HWY_EXPORT(Softcap);
HWY_EXPORT(Scale);
HWY_EXPORT(Rope);

void rms_norm(const float* x, const float* weight, float eps, int n, float* y) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, eps, n, y);
}

void add(float* x, const float* y, int n) { HWY_DYNAMIC_DISPATCH(Add)(x, y, n); }

void silu_mul(const float* gate, const float* up, int n, float* out) {
  HWY_DYNAMIC_DISPATCH(SiluMul)(gate, up, n, out);
}

void gelu_mul(const float* gate, const float* up, int n, float* out) {
  HWY_DYNAMIC_DISPATCH(GeluMul)(gate, up, n, out);
}

void softcap(float* x, float cap, int n) { HWY_DYNAMIC_DISPATCH(Softcap)(x, cap, n); }

void scale(float* x, float factor, int n) { HWY_DYNAMIC_DISPATCH(Scale)(x, factor, n); }

void rope_angles(const RopeTable& table, Position pos, float* cos, float* sin) {
  for (std::size_t i = 0; i < table.inverse_frequency.size(); ++i) {
    const double angle = static_cast<double>(pos) * table.inverse_frequency[i];
    cos[i] = static_cast<float>(std::cos(angle)) * table.magnitude;
    sin[i] = static_cast<float>(std::sin(angle)) * table.magnitude;
  }
}

void rope(const RopeTable& table, const float* cos, const float* sin, int n_heads, int head_dim,
          float* x) {
  KVASIR_DCHECK(table.n_rotated <= head_dim && table.n_rotated % 2 == 0);
  HWY_DYNAMIC_DISPATCH(Rope)(table, cos, sin, n_heads, head_dim, x);
}

}  // namespace kvasir::model
#endif  // HWY_ONCE
