// The small steps against double precision, at lengths 1..70, misaligned, on every SIMD target.
#include "model/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "support/simd_targets.h"

namespace kvasir::model {
namespace {

std::vector<float> random_values(int n, float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& v : values) v = normal(random);
  return values;
}

constexpr int kLengthMax = 70;

// Runs `op(a, b, n, out)` at all lengths, at pointers off by 0..3 floats, into a third buffer and
// in place, and checks element i against `oracle(a, b, n, i)` within `ulps` of the result plus
// `absolute`.
void check_op(const std::function<void(const float*, const float*, int, float*)>& op,
              const std::function<double(const float*, const float*, int, int)>& oracle,
              float spread, double ulps, double absolute = 0) {
  const std::vector<float> a = random_values(kLengthMax + 4, spread, 1);
  const std::vector<float> b = random_values(kLengthMax + 4, 1.0f, 2);
  std::map<int, std::vector<float>> first;
  for_each_target([&](const char* target) {
    for (int n = 1; n <= kLengthMax; ++n) {
      const int shift = n % 4;
      const float* x = a.data() + shift;
      const float* y = b.data() + (shift + 1) % 4;
      std::vector<float> out(static_cast<std::size_t>(n) + 1, -777.0f);
      op(x, y, n, out.data());
      for (int i = 0; i < n; ++i) {
        const double want = oracle(x, y, n, i);
        const double bound = ulps * 0x1p-23 * std::fabs(want) + absolute;
        ASSERT_NEAR(out[static_cast<std::size_t>(i)], want, bound)
            << target << " n " << n << " i " << i;
      }
      ASSERT_EQ(out.back(), -777.0f) << target << " wrote past " << n;
      std::vector<float> in_place(x, x + n);
      op(in_place.data(), y, n, in_place.data());
      ASSERT_EQ(std::memcmp(in_place.data(), out.data(), in_place.size() * 4), 0)
          << target << " n " << n;
      if (!first.contains(n)) first[n] = out;
      ASSERT_EQ(std::memcmp(first[n].data(), out.data(), out.size() * 4), 0)
          << target << " differs in bits, n " << n;
    }
  });
}

TEST(Ops, RmsNorm) {
  check_op([](const float* x, const float* w, int n, float* out) { rms_norm(x, w, 1e-5f, n, out); },
           [](const float* x, const float* w, int n, int i) {
             double sum = 0;
             for (int k = 0; k < n; ++k) sum += static_cast<double>(x[k]) * x[k];
             return x[i] / std::sqrt(sum / n + static_cast<double>(1e-5f)) * w[i];
           },
           1.0f, 6);
}

TEST(Ops, AddAndScale) {
  check_op(
      [](const float* x, const float* y, int n, float* out) {
        std::memmove(out, x, static_cast<std::size_t>(n) * 4);
        add(out, y, n);
      },
      [](const float* x, const float* y, int, int i) { return static_cast<double>(x[i] + y[i]); },
      1.0f, 0);
  check_op(
      [](const float* x, const float*, int n, float* out) {
        std::memmove(out, x, static_cast<std::size_t>(n) * 4);
        scale(out, 1.7f, n);
      },
      [](const float* x, const float*, int, int i) { return static_cast<double>(x[i] * 1.7f); },
      1.0f, 0);
}

TEST(Ops, SiluMul) {
  check_op([](const float* g, const float* u, int n, float* out) { silu_mul(g, u, n, out); },
           [](const float* g, const float* u, int, int i) {
             return static_cast<double>(g[i]) / (1 + std::exp(-static_cast<double>(g[i]))) * u[i];
           },
           20.0f, 4, 1e-37);
}

TEST(Ops, GeluMul) {
  // Far in the negative tail the argument of the exponential, up to 88, carries its own rounding.
  check_op([](const float* g, const float* u, int n, float* out) { gelu_mul(g, u, n, out); },
           [](const float* g, const float* u, int, int i) {
             const double v = g[i];
             const double z = std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v);
             return v / (1 + std::exp(-2 * z)) * u[i];
           },
           4.0f, 5 + 3 * 88, 1e-37);
}

TEST(Ops, Softcap) {
  check_op(
      [](const float* x, const float*, int n, float* out) {
        std::memmove(out, x, static_cast<std::size_t>(n) * 4);
        softcap(out, 30.0f, n);
      },
      [](const float* x, const float*, int, int i) {
        return 30.0 * std::tanh(static_cast<double>(x[i]) / 30.0);
      },
      40.0f, 5);
}

TEST(Ops, RopeTurnsPairsAndLeavesTheRest) {
  for (const RopePairing pairing : {RopePairing::kNeighbours, RopePairing::kHalves}) {
    for (int half = 1; half <= 64; ++half) {
      RopeTable table;
      table.pairing = pairing;
      table.n_rotated = 2 * half;
      table.magnitude = 1.25f;
      for (int i = 0; i < half; ++i)
        table.inverse_frequency.push_back(std::pow(10000.0, -i / static_cast<double>(half)));
      const int head_dim = 2 * half + 3, n_heads = 2;
      std::vector<float> cos(static_cast<std::size_t>(half)), sin(cos.size());
      rope_angles(table, 1234, cos.data(), sin.data());
      const std::vector<float> x = random_values(n_heads * head_dim + 1, 1.0f, 3);
      std::vector<float> first;
      for_each_target([&](const char* target) {
        std::vector<float> y = x;
        rope(table, cos.data(), sin.data(), n_heads, head_dim, y.data() + 1);
        std::vector<double> want(x.begin(), x.end());
        for (int h = 0; h < n_heads; ++h) {
          for (int i = 0; i < half; ++i) {
            const int base = 1 + h * head_dim;
            const int p = base + (pairing == RopePairing::kHalves ? i : 2 * i);
            const int q = pairing == RopePairing::kHalves ? p + half : p + 1;
            const double angle = 1234 * table.inverse_frequency[static_cast<std::size_t>(i)];
            const double c = 1.25 * std::cos(angle), s = 1.25 * std::sin(angle);
            const double a = x[static_cast<std::size_t>(p)], b = x[static_cast<std::size_t>(q)];
            want[static_cast<std::size_t>(p)] = a * c - b * s;
            want[static_cast<std::size_t>(q)] = a * s + b * c;
          }
        }
        for (std::size_t i = 0; i < x.size(); ++i)
          ASSERT_NEAR(y[i], want[i], 2e-6) << target << " half " << half << " i " << i;
        if (first.empty()) first = y;
        ASSERT_EQ(std::memcmp(first.data(), y.data(), y.size() * 4), 0)
            << target << " half " << half;
      });
    }
  }
}

}  // namespace
}  // namespace kvasir::model
