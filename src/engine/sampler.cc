#include "engine/sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/check.h"

namespace kvasir::engine {
namespace {

Error bad(const char* name, double got, const char* want) {
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}: got {}, want {}", name, got, want)};
}

}  // namespace

Status SamplingParams::validate(int vocab_size) const {
  // Written so that NaN fails every one of them.
  if (!(temperature >= 0.0f && std::isfinite(temperature))) {
    return bad("temp", temperature, "a finite number >= 0");
  }
  if (top_k < 0) return bad("top-k", top_k, "an integer >= 0");
  if (!(top_p > 0.0f && top_p <= 1.0f)) return bad("top-p", top_p, "a number in (0, 1]");
  if (!(min_p >= 0.0f && min_p <= 1.0f)) return bad("min-p", min_p, "a number in [0, 1]");
  if (!(repeat_penalty > 0.0f && std::isfinite(repeat_penalty))) {
    return bad("repeat-penalty", repeat_penalty, "a finite number > 0");
  }
  if (!(std::fabs(presence_penalty) <= 2.0f)) {
    return bad("presence-penalty", presence_penalty, "a number in [-2, 2]");
  }
  if (!(std::fabs(frequency_penalty) <= 2.0f)) {
    return bad("frequency-penalty", frequency_penalty, "a number in [-2, 2]");
  }
  if (penalty_last_n < -1) return bad("repeat-last-n", penalty_last_n, "an integer >= -1");
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0 || token >= vocab_size) return bad("logit-bias token", token, "a token id");
    if (std::isnan(bias)) return bad("logit-bias", bias, "a number");
  }
  return {};
}

Sampler::Sampler(SamplingParams params) : params_(std::move(params)), random_(params_.seed) {}

void Sampler::apply_bias_and_penalties(std::span<const TokenId> history) {
  for (const auto& [token, bias] : params_.logit_bias) {
    logits_[static_cast<std::size_t>(token)] += bias;
  }
  const bool penalize = params_.repeat_penalty != 1.0f || params_.presence_penalty != 0.0f ||
                        params_.frequency_penalty != 0.0f;
  if (!penalize || params_.penalty_last_n == 0) return;
  if (params_.penalty_last_n > 0) {
    const auto n = std::min(history.size(), static_cast<std::size_t>(params_.penalty_last_n));
    history = history.last(n);
  }
  std::unordered_map<TokenId, int> counts;
  for (const TokenId token : history) ++counts[token];
  for (const auto& [token, count] : counts) {
    float& logit = logits_[static_cast<std::size_t>(token)];
    logit = logit > 0.0f ? logit / params_.repeat_penalty : logit * params_.repeat_penalty;
    logit -= params_.presence_penalty + static_cast<float>(count) * params_.frequency_penalty;
  }
}

TokenId Sampler::draw() {
  const float maximum = candidates_.front().logit;
  weights_.clear();
  double total = 0.0;
  for (const Candidate& candidate : candidates_) {
    weights_.push_back(std::exp(static_cast<double>(candidate.logit - maximum)));
    total += weights_.back();
  }
  // top-p: the shortest head whose probability reaches p; min-p: relative to the best.
  std::size_t n_kept = candidates_.size();
  if (params_.top_p < 1.0f) {
    double head = 0.0;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      head += weights_[i];
      if (head >= static_cast<double>(params_.top_p) * total) {
        n_kept = i + 1;
        break;
      }
    }
  }
  while (n_kept > 1 && weights_[n_kept - 1] < static_cast<double>(params_.min_p)) --n_kept;

  total = 0.0;
  const auto inverse_temperature = 1.0 / static_cast<double>(params_.temperature);
  for (std::size_t i = 0; i < n_kept; ++i) {
    weights_[i] =
        std::exp(static_cast<double>(candidates_[i].logit - maximum) * inverse_temperature);
    total += weights_[i];
  }
  double point = static_cast<double>(random_() >> 11) * 0x1.0p-53 * total;
  for (std::size_t i = 0; i < n_kept; ++i) {
    point -= weights_[i];
    if (point < 0.0) return candidates_[i].token;
  }
  return candidates_[n_kept - 1].token;
}

std::optional<TokenId> Sampler::sample(std::span<const float> logits,
                                       std::span<const TokenId> history) {
  KVASIR_CHECK(!logits.empty());
  logits_.assign(logits.begin(), logits.end());
  apply_bias_and_penalties(history);
  for (float& logit : logits_) {
    if (std::isnan(logit)) logit = -std::numeric_limits<float>::infinity();
  }
  const auto best = std::max_element(logits_.begin(), logits_.end());
  const auto best_token = static_cast<TokenId>(best - logits_.begin());
  if (*best == -std::numeric_limits<float>::infinity()) return std::nullopt;
  if (params_.temperature == 0.0f || !std::isfinite(*best)) return best_token;

  candidates_.clear();
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    if (std::isfinite(logits_[i])) candidates_.push_back({static_cast<TokenId>(i), logits_[i]});
  }
  // Ties go to the smaller id, so the order does not depend on the sort.
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  if (params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < candidates_.size()) {
    const auto middle = candidates_.begin() + params_.top_k;
    std::partial_sort(candidates_.begin(), middle, candidates_.end(), before);
    candidates_.erase(middle, candidates_.end());
  } else {
    std::sort(candidates_.begin(), candidates_.end(), before);
  }
  return draw();
}

}  // namespace kvasir::engine
