// A trained model end to end: stories260K must write its published story, token by token.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/harness.h"

namespace kvasir::model {
namespace {

using testing::Harness;
using testing::Layout;
using Json = nlohmann::json;

constexpr TokenId kBos = 1;

Json reference() {
  std::ifstream stream(testing::data_path("stories260k/stories260K.reference.json"));
  return Json::parse(stream);
}

/// Greedy from BOS, one token at a time; also each step's logits.
struct Story {
  std::vector<TokenId> ids{kBos};
  std::vector<std::vector<float>> logits;
};

Story write_story(ActivationMode mode, cache::CodecId codec, int n_tokens) {
  Story story;
  auto harness = Harness::load("stories260k/stories260K.gguf", 2, mode);
  if (harness == nullptr) return story;
  Layout layout;
  layout.codec = codec;
  auto kv = harness->make_cache(layout);
  cache::Sequence sequence = kv->open();
  for (int i = 0; i < n_tokens; ++i) {
    story.logits.push_back(harness->forward(sequence, {&story.ids.back(), 1}, 1));
    const auto& row = story.logits.back();
    story.ids.push_back(
        static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  return story;
}

std::vector<TokenId> expected_ids(const Json& json, std::size_t n_tokens) {
  auto ids = json["ids"].get<std::vector<TokenId>>();
  EXPECT_GE(ids.size(), n_tokens);
  return ids;
}

// The reference is float64; 1e-3 is a quarter of the smallest gap between best and second logit.
TEST(Stories260K, GreedyIdsAndLogitsAgreeWithTheReference) {
  const Json json = reference();
  const auto top5 = json["top5_logits_per_step"].get<std::vector<Json>>();
  const Story story =
      write_story(ActivationMode::kFloat32, cache::CodecId::kF32, static_cast<int>(top5.size()));
  ASSERT_EQ(story.logits.size(), top5.size());
  const auto ids = expected_ids(json, top5.size());
  for (std::size_t step = 0; step < top5.size(); ++step) {
    if (step < ids.size()) {
      ASSERT_EQ(story.ids[step], ids[step]) << "step " << step;
    }
    for (const Json& pair : top5[step]) {
      EXPECT_NEAR(story.logits[step][pair[0].get<std::size_t>()], pair[1].get<double>(), 1e-3)
          << "step " << step << " token " << pair[0];
    }
  }
  for (const auto& [key, step] : {std::pair<const char*, std::size_t>{"full_logits_step0", 0},
                                  {"full_logits_last", top5.size() - 1}}) {
    const auto row = json[key].get<std::vector<double>>();
    ASSERT_EQ(row.size(), story.logits[step].size());
    for (std::size_t token = 0; token < row.size(); ++token) {
      EXPECT_NEAR(story.logits[step][token], row[token], 1e-3) << key << " token " << token;
    }
  }
}

TEST(Stories260K, DefaultModeWritesTheSameStory) {
  const Json json = reference();
  const auto ids = json["ids"].get<std::vector<TokenId>>();
  const Story story =
      write_story(ActivationMode::kInt8, cache::CodecId::kF32, static_cast<int>(ids.size()) - 1);
  EXPECT_EQ(story.ids, ids);
}

}  // namespace
}  // namespace kvasir::model
