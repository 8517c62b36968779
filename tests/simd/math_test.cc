// exp, tanh and sigmoid against double precision, on every SIMD target this CPU runs.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/math_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::simd {
namespace HWY_NAMESPACE {

/// function: 'e' exp, 'n' and 'c' those of negative numbers, fine and coarse, 't' tanh, 's'
/// sigmoid.
void apply(char function, const float* x, std::size_t n, float* y) {
  const hn::CappedTag<float, 16> d;
  for (std::size_t i = 0; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, x + i);
    if (function == 'e') hn::StoreU(Exp(d, v), d, y + i);
    if (function == 'n') hn::StoreU(ExpOfNegative(d, v), d, y + i);
    if (function == 'c') hn::StoreU(CoarseExpOfNegative(d, v), d, y + i);
    if (function == 't') hn::StoreU(Tanh(d, v), d, y + i);
    if (function == 's') hn::StoreU(Sigmoid(d, v), d, y + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "support/simd_targets.h"

namespace kvasir::simd {
namespace {

HWY_EXPORT(apply);

std::vector<float> inputs(float low, float high) {
  std::vector<float> x;
  for (int i = 0; i < 200000; ++i) x.push_back(low + (high - low) * static_cast<float>(i) / 200000);
  for (int e = -140; e < 7; ++e) {
    x.push_back(std::ldexp(1.1f, e));
    x.push_back(-std::ldexp(1.3f, e));
  }
  while (x.size() % 16 != 0) x.push_back(0.0f);
  return x;
}

std::vector<float> evaluate(char function, const std::vector<float>& x) {
  std::vector<float> y(x.size(), -1.0f);
  HWY_DYNAMIC_DISPATCH(apply)(function, x.data(), x.size(), y.data());
  return y;
}

// Distance in units of the last place of the exact value.
double ulps(float got, double exact) {
  const double magnitude = std::fmax(std::fabs(exact), std::numeric_limits<float>::min());
  const double ulp = std::ldexp(1.0, std::ilogb(magnitude) - 23);
  return std::fabs(static_cast<double>(got) - exact) / ulp;
}

template <class Oracle>
void expect_close(char function, float low, float high, double bound, Oracle oracle) {
  const std::vector<float> x = inputs(low, high);
  std::vector<float> first;
  for_each_target([&](const char* target) {
    const std::vector<float> y = evaluate(function, x);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] < low || x[i] > high) continue;
      worst = std::fmax(worst, ulps(y[i], oracle(static_cast<double>(x[i]))));
    }
    EXPECT_LE(worst, bound) << target;
    if (first.empty()) first = y;
    EXPECT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)), 0)
        << target << " differs in bits from the first target";
  });
}

TEST(SimdMath, ExpIsWithinTwoUlpAndTheSameOnEveryTarget) {
  expect_close('e', -104.0f, 88.7f, 2.0, [](double v) { return std::exp(v); });
}

TEST(SimdMath, ExpOfNegativeIsWithinTwoUlpAndTheSameOnEveryTarget) {
  expect_close('n', -87.3f, 0.0f, 2.0, [](double v) { return std::exp(v); });
}

TEST(SimdMath, CoarseExpIsWithinItsBoundAndTheSameOnEveryTarget) {
  expect_close('c', -87.3f, 0.0f, 1.1e-4 * 0x1p24, [](double v) { return std::exp(v); });
}

TEST(SimdMath, TanhIsWithinThreeUlpAndTheSameOnEveryTarget) {
  expect_close('t', -12.0f, 12.0f, 3.0, [](double v) { return std::tanh(v); });
}

TEST(SimdMath, SigmoidIsWithinThreeUlpAndTheSameOnEveryTarget) {
  expect_close('s', -87.0f, 87.0f, 3.0, [](double v) { return 1.0 / (1.0 + std::exp(-v)); });
}

TEST(SimdMath, ExtremesAreExact) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(16, 0.0f);
  x[1] = -inf;
  x[2] = inf;
  x[3] = nan;
  x[4] = -104.5f;
  x[5] = -3e38f;
  x[6] = 89.0f;
  x[7] = 3e38f;
  for_each_target([&](const char* target) {
    SCOPED_TRACE(target);
    const std::vector<float> e = evaluate('e', x);
    EXPECT_EQ(e[0], 1.0f);
    EXPECT_EQ(e[1], 0.0f);
    EXPECT_EQ(e[2], inf);
    EXPECT_TRUE(std::isnan(e[3]));
    EXPECT_EQ(e[4], 0.0f);
    EXPECT_EQ(e[5], 0.0f);
    EXPECT_EQ(e[6], inf);
    EXPECT_EQ(e[7], inf);
    for (const char function : {'n', 'c'}) {
      const std::vector<float> n = evaluate(function, x);
      EXPECT_EQ(n[0], 1.0f);
      EXPECT_EQ(n[1], 0.0f);
      EXPECT_TRUE(std::isnan(n[3]));
      EXPECT_EQ(n[4], 0.0f);
      EXPECT_EQ(n[5], 0.0f);
    }
    const std::vector<float> t = evaluate('t', x);
    EXPECT_EQ(t[0], 0.0f);
    EXPECT_EQ(t[1], -1.0f);
    EXPECT_EQ(t[2], 1.0f);
    EXPECT_TRUE(std::isnan(t[3]));
    const std::vector<float> s = evaluate('s', x);
    EXPECT_EQ(s[0], 0.5f);
    EXPECT_EQ(s[1], 0.0f);
    EXPECT_EQ(s[2], 1.0f);
    EXPECT_TRUE(std::isnan(s[3]));
  });
}

}  // namespace
}  // namespace kvasir::simd
#endif  // HWY_ONCE
