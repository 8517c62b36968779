// Random prompts with shared beginnings over a directory of pages, through restarts: every logit is
// the bit that a cold computation gives, from the tree, from the disk, from a copied page, in a
// fork, after eviction.
#include <gtest/gtest.h>

#include <ostream>
#include <random>
#include <utility>

#include "engine/kv_dir_support.h"
#include "support/long_tests.h"

namespace kvasir::engine {
namespace {

using namespace testing;
using cache::CodecId;

constexpr int kSteps = 120, kMostSteps = 1000;

struct Setting {
  std::string name;
  const char* file;
  KvChoice kv;
  int page_tokens;
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

std::vector<Setting> settings() {
  std::vector<Setting> all;
  const std::pair<const char*, const char*> models[] = {
      {"Llama", "arch_vectors/llama_9q3kv_hd64.gguf"},  // 9 heads over 3
      {"Gemma2", "arch_vectors/gemma2_b.gguf"},         // window 24 in every second layer
      {"Stories", kStories},
  };
  const std::tuple<const char*, CodecId, CodecId> codecs[] = {
      {"F16", CodecId::kF16, CodecId::kF16},
      {"Bf16", CodecId::kBF16, CodecId::kBF16},
      {"F32", CodecId::kF32, CodecId::kF32},
      {"F32F16", CodecId::kF32, CodecId::kF16},
  };
  for (const auto& [model, file] : models) {
    for (const auto& [codec, k, v] : codecs) {
      for (const int page_tokens : {16, 64}) {
        KvChoice kv;
        kv.codecs = {k, v};
        all.push_back({std::string(model) + codec + "Page" + std::to_string(page_tokens), file, kv,
                       page_tokens});
      }
    }
  }
  for (const CodedSetting& coded : coded_settings()) {
    all.push_back({coded.name, coded.file, coded.kv, coded.page_tokens});
  }
  return all;
}

class DiskIdentity : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    options_.kv = GetParam().kv;
    cold_ = std::make_unique<Cold>(GetParam().file, options_);
    prompts_.emplace(cold_->vocab_size(), 60, 5489);
    options_.page_tokens = GetParam().page_tokens;
    options_.n_batch = 48;
  }

  int below(int n) { return prompts_->below(n); }
  Session& any_session() {
    return *sessions_[static_cast<std::size_t>(below(static_cast<int>(sessions_.size())))];
  }

  void restart() {
    sessions_.clear();
    if (engine_ != nullptr) settle(*engine_);
    engine_ = nullptr;
    engine_ = load_on(directory_, GetParam().file, options_);
    is_fresh_ = true;
  }

  void prompt(Session& session) {
    const Tokens tokens = prompts_->next();
    const auto report = session.prompt(tokens);
    ASSERT_TRUE(report) << report.error().message;
    ASSERT_EQ(report->n_reused + report->n_computed, static_cast<int>(tokens.size()));
    n_reused_ += report->n_reused - report->n_loaded;
    const int n_known = prompts_->n_shared() / GetParam().page_tokens * GetParam().page_tokens;
    if (report->n_reused < std::min(n_known, report->n_prompt - 1)) ++n_recomputed_;
    if (report->n_loaded > 0) ++(is_fresh_ ? n_after_restart_ : n_after_eviction_);
    if (report->n_reused % GetParam().page_tokens != 0) ++n_partial_;
    is_fresh_ = false;
    expect_bits(session);
  }

  void expect_bits(const Session& session) {
    const Tokens tokens(session.tokens().begin(), session.tokens().end());
    ASSERT_TRUE(same_bits(session.logits(), cold_->logits(tokens))) << tokens.size() << " tokens";
  }

  void fork() {
    auto fork = std::make_unique<Session>(any_session().fork().value());
    for (int k = below(4); k >= 0; --k) ASSERT_TRUE(fork->push(prompts_->token()));
    ASSERT_NO_FATAL_FAILURE(expect_bits(*fork));
    sessions_.push_back(std::move(fork));
  }

  /// Out of memory; sometimes out of the directory as well: it must be computed again.
  void evict() {
    if (below(2) == 0) sessions_.clear();
    if (below(2) == 0) {
      engine_->cache().evict_all();
    } else {
      for (int k = below(5); k > 0; --k) engine_->cache().evict_one();
    }
    settle(*engine_);
    const std::vector<std::string> pages = directory_.pages();
    if (below(2) == 0 && !pages.empty()) {
      std::filesystem::remove(
          pages[static_cast<std::size_t>(below(static_cast<int>(pages.size())))]);
    }
  }

  void step() {
    const int choice = below(100);
    if (choice < 12) {
      restart();
    } else if (sessions_.size() < 2 || choice < 45) {
      sessions_.push_back(std::make_unique<Session>(*engine_));
      ASSERT_NO_FATAL_FAILURE(prompt(*sessions_.back()));
    } else if (choice < 60) {
      ASSERT_NO_FATAL_FAILURE(prompt(any_session()));
    } else if (choice < 70) {
      ASSERT_NO_FATAL_FAILURE(fork());
    } else if (choice < 90) {
      evict();
    } else {
      sessions_.erase(sessions_.begin() + below(static_cast<int>(sessions_.size())));
    }
    if (sessions_.size() > 5) sessions_.erase(sessions_.begin());
    engine_->cache().check_invariants();
  }

  bool has_seen_all() const {
    return n_partial_ > 0 && n_after_restart_ > 0 && n_after_eviction_ > 0 && n_recomputed_ > 0;
  }

  KvDirectory directory_;
  EngineOptions options_;
  std::unique_ptr<Cold> cold_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::optional<RandomPrompts> prompts_;
  bool is_fresh_ = true;  ///< no prompt since the restart
  int n_reused_ = 0, n_partial_ = 0, n_after_restart_ = 0, n_after_eviction_ = 0;
  int n_recomputed_ = 0;
};

TEST_P(DiskIdentity, WhateverIsReused) {
  const int n_steps = kvasir::testing::count_of("steps", kSteps, kMostSteps);
  restart();
  // What happens is chance: few steps go on until all of it has.
  for (int i = 0; i < n_steps || (i < kMostSteps && !has_seen_all()); ++i) {
    ASSERT_NO_FATAL_FAILURE(step());
  }
  EXPECT_GT(n_reused_, GetParam().page_tokens > 64 ? 0 : 300);  // prompts have 220 tokens at most
  EXPECT_GT(n_partial_, 0);
  EXPECT_GT(n_after_restart_, 0);
  EXPECT_GT(n_after_eviction_, 0);
  EXPECT_GT(n_recomputed_, 0);
  if (n_steps > kSteps) {
    std::printf(
        "%zu prompts; from memory %d tokens; partial pages %d, from the disk %d after a "
        "restart and %d after eviction, evicted and recomputed %d\n",
        prompts_->n_prompts(), n_reused_, n_partial_, n_after_restart_, n_after_eviction_,
        n_recomputed_);
  }
  sessions_.clear();
  engine_->cache().evict_all();
  EXPECT_EQ(engine_->memory_summary().allocated, 0u);
}

INSTANTIATE_TEST_SUITE_P(Settings, DiskIdentity, ::testing::ValuesIn(settings()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace kvasir::engine
