// The sampler against hand-computed distributions.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace kvasir::engine {
namespace {

SamplingParams plain(float temperature) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = 0;
  params.top_p = 1.0f;
  params.min_p = 0.0f;
  params.seed = 7;
  return params;
}

std::map<TokenId, double> frequencies(const SamplingParams& params, std::vector<float> logits,
                                      int n = 20000) {
  Sampler sampler(params);
  std::map<TokenId, double> shares;
  for (int i = 0; i < n; ++i) shares[*sampler.sample(logits, {})] += 1.0 / n;
  return shares;
}

TEST(Sampler, TemperatureZeroTakesTheLargestAndTheFirstOfEquals) {
  Sampler sampler(plain(0.0f));
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2}, {}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{2, 5, 5}, {}), 1);
}

TEST(Sampler, DrawsFromTheSoftmax) {
  const auto shares = frequencies(plain(1.0f), {0.0f, std::log(2.0f), std::log(5.0f)});
  EXPECT_NEAR(shares.at(0), 0.125, 0.01);
  EXPECT_NEAR(shares.at(1), 0.25, 0.015);
  EXPECT_NEAR(shares.at(2), 0.625, 0.015);
}

TEST(Sampler, TemperatureSharpens) {
  // At temperature 0.5 the odds are squared: 1 : 4 : 25.
  const auto shares = frequencies(plain(0.5f), {0.0f, std::log(2.0f), std::log(5.0f)});
  EXPECT_NEAR(shares.at(2), 25.0 / 30.0, 0.015);
}

TEST(Sampler, TopKKeepsTheBestWithTiesToTheSmallerId) {
  SamplingParams params = plain(1.0f);
  params.top_k = 2;
  const auto shares = frequencies(params, {1.0f, 1.0f, 1.0f, 0.0f}, 500);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_TRUE(shares.count(0) && shares.count(1));
}

TEST(Sampler, TopPKeepsTheShortestHeadThatReachesP) {
  SamplingParams params = plain(1.0f);
  params.top_p = 0.6f;
  const auto shares = frequencies(params, {std::log(0.5f), std::log(0.3f), std::log(0.2f)}, 2000);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(0), 0.625, 0.05);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
  SamplingParams params = plain(1.0f);
  params.min_p = 0.5f;
  const auto shares = frequencies(params, {std::log(0.5f), std::log(0.3f), std::log(0.2f)}, 2000);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares.count(2), 0u);
}

TEST(Sampler, RepeatPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  SamplingParams params = plain(0.0f);
  params.repeat_penalty = 2.0f;
  const std::vector<TokenId> history{0, 2};
  EXPECT_EQ(Sampler(params).sample(std::vector<float>{3.0f, 2.0f, -1.0f}, history), 1);
  // -1 * 2 = -2 falls below -1.5.
  EXPECT_EQ(Sampler(params).sample(std::vector<float>{-9.0f, -1.5f, -1.0f}, history), 1);
}

TEST(Sampler, PresenceCountsOnceFrequencyEveryTime) {
  const std::vector<TokenId> history{0, 0, 0, 1};
  SamplingParams presence = plain(0.0f);
  presence.presence_penalty = 1.0f;
  EXPECT_EQ(Sampler(presence).sample(std::vector<float>{3.0f, 2.5f, 1.9f}, history), 0);
  SamplingParams frequency = plain(0.0f);
  frequency.frequency_penalty = 1.0f;
  EXPECT_EQ(Sampler(frequency).sample(std::vector<float>{3.0f, 2.5f, 1.9f}, history), 2);
}

TEST(Sampler, PenaltiesLookBackOnlySoFar) {
  SamplingParams params = plain(0.0f);
  params.presence_penalty = 2.0f;
  params.penalty_last_n = 1;
  const std::vector<TokenId> history{0, 1};
  EXPECT_EQ(Sampler(params).sample(std::vector<float>{3.0f, 4.0f}, history), 0);
  params.penalty_last_n = 0;
  EXPECT_EQ(Sampler(params).sample(std::vector<float>{3.0f, 4.0f}, history), 1);
  params.penalty_last_n = -1;
  EXPECT_EQ(Sampler(params).sample(std::vector<float>{3.0f, 4.0f}, history), 1);
}

TEST(Sampler, LogitBiasAddsAndForbids) {
  SamplingParams params = plain(0.0f);
  params.logit_bias = {{1, -std::numeric_limits<float>::infinity()}, {2, 5.0f}};
  EXPECT_EQ(Sampler(params).sample(std::vector<float>{3.0f, 9.0f, 0.0f}, {}), 2);
}

TEST(Sampler, NanNeverWinsAndAllForbiddenGivesNone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler(plain(temperature));
    EXPECT_EQ(sampler.sample(std::vector<float>{nan, 1.0f, nan}, {}), 1);
    EXPECT_EQ(sampler.sample(std::vector<float>{nan, nan}, {}), std::nullopt);
  }
}

TEST(Sampler, SameSeedSameTokens) {
  const std::vector<float> logits(100, 0.0f);
  Sampler first(plain(1.0f)), second(plain(1.0f));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(first.sample(logits, {}), second.sample(logits, {}));
}

TEST(SamplingParams, RefusesWhatIsOutOfRangeByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto message = [](auto change) {
    SamplingParams params;
    change(params);
    const Status status = params.validate(10);
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(message([](SamplingParams&) {}), "accepted");
  EXPECT_NE(message([](auto& p) { p.temperature = -1; }).find("temp"), std::string::npos);
  EXPECT_NE(message([=](auto& p) { p.temperature = nan; }).find("temp"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.top_k = -1; }).find("top-k"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.top_p = 0; }).find("top-p"), std::string::npos);
  EXPECT_NE(message([=](auto& p) { p.top_p = nan; }).find("top-p"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.min_p = 1.5f; }).find("min-p"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.repeat_penalty = 0; }).find("repeat-penalty"),
            std::string::npos);
  EXPECT_NE(message([](auto& p) { p.presence_penalty = 3; }).find("presence"), std::string::npos);
  EXPECT_NE(message([=](auto& p) { p.frequency_penalty = nan; }).find("frequency"),
            std::string::npos);
  EXPECT_NE(message([](auto& p) { p.penalty_last_n = -2; }).find("repeat-last-n"),
            std::string::npos);
  EXPECT_NE(message([](auto& p) {
              p.logit_bias = {{10, 1.0f}};
            }).find("logit-bias"),
            std::string::npos);
}

}  // namespace
}  // namespace kvasir::engine
