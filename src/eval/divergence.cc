// Elements are exponentiated in vectors of any width and summed in 16 lanes of doubles, so that the
// bits are those of every CPU.
#include "eval/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "eval/divergence.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvasir::eval {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sn = simd::HWY_NAMESPACE;

constexpr std::size_t kLanes = 16;
/// Floats between two sums: a whole number of lanes and of vectors, in the first cache.
constexpr std::size_t kBlock = 1024;

/// Sums of float terms: term i in lane i % 16, then lanes by halves.
class LaneSum {
 public:
  /// Requires: n a multiple of 16.
  HWY_INLINE void add(const float* terms, std::size_t n) {
    for (std::size_t i = 0; i < n; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        lanes_[lane] += static_cast<double>(terms[i + lane]);
      }
    }
  }
  HWY_INLINE double total() const {
    double lanes[kLanes];
    std::memcpy(lanes, lanes_, sizeof(lanes));
    for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  }

 private:
  double lanes_[kLanes] = {};
};

/// `n` floats from `from`, and `fill` up to a multiple of 16. Returns that multiple.
HWY_INLINE std::size_t copy_padded(const float* from, std::size_t n, float fill, float* to) {
  const std::size_t n_padded = (n + kLanes - 1) / kLanes * kLanes;
  std::memcpy(to, from, n * sizeof(float));
  std::fill(to + n, to + n_padded, fill);
  return n_padded;
}

float Maximum(const float* row, std::size_t n) {
  const hn::CappedTag<float, kLanes> d;
  auto most = hn::Set(d, row[0]);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) most = hn::Max(most, hn::LoadU(d, row + i));
  float maximum = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < n; ++i) maximum = std::max(maximum, row[i]);
  return maximum;
}

double SumOfExponents(const float* row, std::size_t n, float maximum) {
  const hn::CappedTag<float, kLanes> d;
  const auto most = hn::Set(d, maximum);
  alignas(64) float terms[kBlock];
  LaneSum sum;
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    // What fills the last lanes is so small that its exponent is 0.
    const std::size_t n_block =
        copy_padded(row + begin, std::min(kBlock, n - begin), maximum - 1000.0f, terms);
    for (std::size_t i = 0; i < n_block; i += hn::Lanes(d)) {
      const auto x = hn::Sub(hn::Load(d, terms + i), most);
      hn::Store(sn::ExpOfNegative(d, x), d, terms + i);
    }
    sum.add(terms, n_block);
  }
  return sum.total();
}

/// e^t - 1 - t for |t| <= 1/2, relative error below 1e-6: its Taylor series.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SecondOrder(D d, V t) {
  V q = hn::Set(d, 1.0f / 5040);
  q = sn::FusedMulAdd(q, t, hn::Set(d, 1.0f / 720));
  q = sn::FusedMulAdd(q, t, hn::Set(d, 1.0f / 120));
  q = sn::FusedMulAdd(q, t, hn::Set(d, 1.0f / 24));
  q = sn::FusedMulAdd(q, t, hn::Set(d, 1.0f / 6));
  q = sn::FusedMulAdd(q, t, hn::Set(d, 0.5f));
  return hn::Mul(hn::Mul(t, t), q);
}

/// other - base - (ratio + ratio_rest), rounded as if at the end: what is left may be far smaller
/// than the logits are.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Difference(D, V other, V base, V ratio, V ratio_rest) {
  const V difference = hn::Sub(other, base);
  const V seen_base = hn::Sub(other, difference);
  const V seen_other = hn::Add(difference, seen_base);
  const V rest = hn::Add(hn::Sub(other, seen_other), hn::Sub(seen_base, base));
  return hn::Add(hn::Sub(difference, ratio), hn::Sub(rest, ratio_rest));
}

/// The base's sum times the divergence. `log_ratio` is ln of the other sum over the base's, maxima
/// included; `sum_ratio` the base's sum over the other one's without them.
double SumOfTerms(const float* base, const float* other, std::size_t n, float base_maximum,
                  float other_maximum, double log_ratio, float sum_ratio) {
  const hn::CappedTag<float, kLanes> d;
  const auto ratio = hn::Set(d, static_cast<float>(log_ratio));
  const auto ratio_rest = hn::Set(
      d, static_cast<float>(log_ratio - static_cast<double>(static_cast<float>(log_ratio))));
  alignas(64) float p_block[kBlock], q_block[kBlock];
  LaneSum sum;
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t n_row = std::min(kBlock, n - begin);
    copy_padded(base + begin, n_row, base_maximum - 1000.0f, p_block);
    const std::size_t n_block = copy_padded(other + begin, n_row, other_maximum - 1000.0f, q_block);
    for (std::size_t i = 0; i < n_block; i += hn::Lanes(d)) {
      const auto base_logit = hn::Load(d, p_block + i), other_logit = hn::Load(d, q_block + i);
      const auto t = Difference(d, other_logit, base_logit, ratio, ratio_rest);
      const auto p = sn::ExpOfNegative(d, hn::Sub(base_logit, hn::Set(d, base_maximum)));
      const auto q = sn::ExpOfNegative(d, hn::Sub(other_logit, hn::Set(d, other_maximum)));
      const auto near = hn::Mul(p, SecondOrder(d, t));
      const auto scaled = hn::Mul(q, hn::Set(d, sum_ratio));
      const auto far = hn::Sub(scaled, hn::Mul(p, hn::Add(t, hn::Set(d, 1.0f))));
      const auto is_near = hn::Lt(hn::Abs(t), hn::Set(d, 0.5f));
      hn::Store(hn::IfThenElse(is_near, near, far), d, p_block + i);
    }
    sum.add(p_block, n_block);
  }
  return sum.total();
}

}  // namespace HWY_NAMESPACE
}  // namespace kvasir::eval
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvasir::eval {

HWY_EXPORT(Maximum);
HWY_EXPORT(SumOfExponents);
HWY_EXPORT(SumOfTerms);

double RowSoftmax::log_probability(float logit) const {
  return static_cast<double>(logit) - static_cast<double>(maximum) - std::log(sum);
}

RowSoftmax softmax_of(std::span<const float> logits) {
  KVASIR_CHECK(!logits.empty());
  RowSoftmax softmax;
  softmax.maximum = HWY_DYNAMIC_DISPATCH(Maximum)(logits.data(), logits.size());
  softmax.top = static_cast<TokenId>(std::find(logits.begin(), logits.end(), softmax.maximum) -
                                     logits.begin());
  softmax.sum = HWY_DYNAMIC_DISPATCH(SumOfExponents)(logits.data(), logits.size(), softmax.maximum);
  return softmax;
}

double divergence(std::span<const float> base, const RowSoftmax& base_softmax,
                  std::span<const float> other, const RowSoftmax& other_softmax) {
  KVASIR_CHECK(base.size() == other.size());
  const double shift =
      static_cast<double>(other_softmax.maximum) - static_cast<double>(base_softmax.maximum);
  const double log_ratio = shift + std::log(other_softmax.sum) - std::log(base_softmax.sum);
  const double sum_ratio = base_softmax.sum / other_softmax.sum;
  const double sum = HWY_DYNAMIC_DISPATCH(SumOfTerms)(
      base.data(), other.data(), base.size(), base_softmax.maximum, other_softmax.maximum,
      static_cast<float>(log_ratio), static_cast<float>(sum_ratio));
  return std::max(0.0, sum / base_softmax.sum);
}

}  // namespace kvasir::eval
#endif  // HWY_ONCE
