// Random prompts with shared beginnings, in random company: every logit is the bit that a cold
// computation gives, whatever was reused.
#include <gtest/gtest.h>

#include <ostream>
#include <random>
#include <utility>

#include "engine/reuse_support.h"

namespace kvasir::engine {
namespace {

using namespace testing;
using cache::CodecId;

struct Setting {
  std::string name;
  const char* file;
  KvChoice kv;
  int page_tokens;
  int n_batch;
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

std::vector<Setting> settings() {
  std::vector<Setting> all;
  const std::pair<const char*, const char*> models[] = {
      {"Llama", "arch_vectors/llama_9q3kv_hd64.gguf"},  // 9 heads over 3
      {"Gemma2", "arch_vectors/gemma2_b.gguf"},         // window 24 in every second layer
      {"Stories", kStories},
  };
  const std::pair<const char*, CodecId> codecs[] = {
      {"F16", CodecId::kF16}, {"Bf16", CodecId::kBF16}, {"F32", CodecId::kF32}};
  for (const auto& [model, file] : models) {
    for (const auto& [codec_name, codec] : codecs) {
      for (const int page_tokens : {16, 64}) {
        for (const int n_batch : {7, 512}) {
          KvChoice kv;
          kv.codecs = {codec, codec};
          all.push_back({std::string(model) + codec_name + "Page" + std::to_string(page_tokens) +
                             "Batch" + std::to_string(n_batch),
                         file, kv, page_tokens, n_batch});
        }
      }
    }
  }
  for (const CodedSetting& coded : coded_settings()) {
    for (const int n_batch : {7, 512}) {
      all.push_back({coded.name + "Batch" + std::to_string(n_batch), coded.file, coded.kv,
                     coded.page_tokens, n_batch});
    }
  }
  return all;
}

class PrefixIdentity : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const Setting& setting = GetParam();
    EngineOptions options;
    options.kv = setting.kv;
    options.n_batch = setting.n_batch;
    cold_ = std::make_unique<Cold>(setting.file, options);
    prompts_.emplace(cold_->vocab_size(), 30, 5);
    options.page_tokens = setting.page_tokens;
    options.prefix_bytes = kPlenty;
    engine_ = load(setting.file, options);
  }

  int below(int n) { return prompts_->below(n); }
  Session& any_session() {
    return *sessions_[static_cast<std::size_t>(below(static_cast<int>(sessions_.size())))];
  }

  void prompt(Session& session) {
    const Tokens tokens = prompts_->next();
    const auto report = session.prompt(tokens);
    ASSERT_TRUE(report) << report.error().message;
    ASSERT_EQ(report->n_reused + report->n_computed, static_cast<int>(tokens.size()));
    n_reused_ += report->n_reused;
    if (report->n_reused % GetParam().page_tokens != 0) ++n_partial_;
    expect_bits(session);
  }

  void expect_bits(const Session& session) {
    const Tokens tokens(session.tokens().begin(), session.tokens().end());
    ASSERT_TRUE(same_bits(session.logits(), cold_->logits(tokens))) << tokens.size() << " tokens";
  }

  std::unique_ptr<Cold> cold_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::optional<RandomPrompts> prompts_;
  int n_reused_ = 0, n_partial_ = 0;
};

TEST_P(PrefixIdentity, WhateverIsReused) {
  for (int i = 0; i < 120; ++i) {
    const int choice = below(100);
    if (sessions_.size() < 2 || choice < 40) {
      sessions_.push_back(std::make_unique<Session>(*engine_));
      ASSERT_NO_FATAL_FAILURE(prompt(*sessions_.back()));
    } else if (choice < 60) {
      ASSERT_NO_FATAL_FAILURE(prompt(any_session()));
    } else if (choice < 75) {
      auto fork = std::make_unique<Session>(any_session().fork().value());
      for (int k = below(4); k >= 0; --k) ASSERT_TRUE(fork->push(prompts_->token()));
      ASSERT_NO_FATAL_FAILURE(expect_bits(*fork));
      sessions_.push_back(std::move(fork));
    } else if (choice < 85) {
      for (int k = below(5); k > 0; --k) engine_->cache().evict_one();
    } else {
      sessions_.erase(sessions_.begin() + below(static_cast<int>(sessions_.size())));
    }
    if (sessions_.size() > 5) sessions_.erase(sessions_.begin());
    engine_->cache().check_invariants();
  }
  for (const auto& session : sessions_) {
    ASSERT_TRUE(session->push(11));
    ASSERT_NO_FATAL_FAILURE(expect_bits(*session));
  }
  EXPECT_GT(n_reused_, GetParam().page_tokens > 64 ? 200 : 500);  // prompts have 220 tokens at most
  EXPECT_GT(n_partial_, 5);
  sessions_.clear();
  engine_->cache().evict_all();
  EXPECT_EQ(engine_->memory_summary().allocated, 0u);
}

INSTANTIATE_TEST_SUITE_P(Settings, PrefixIdentity, ::testing::ValuesIn(settings()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace kvasir::engine
