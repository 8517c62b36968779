// Why a prompt is reused no further: each reason that there is, reached through an engine.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "engine/kv_dir_support.h"

namespace kvasir::engine {
namespace {

using namespace testing;
using cache::MatchEnd;

constexpr int kPage = 16;
const Tokens kKnown = run_of(100);  // ids 3..102; six pages

EngineOptions small_pages() {
  EngineOptions options;
  options.page_tokens = kPage;
  return options;
}

std::unique_ptr<Engine> stories_on(const KvDirectory& directory, EngineOptions options) {
  return load_on(directory, kStories, options);
}

/// What `engine` says of `prompt` in a session of its own.
PromptReport ask(Engine& engine, const Tokens& prompt) {
  return Session(engine).prompt(prompt).value();
}

/// The file of the page with `kKnown`'s tokens from `first_token` on.
std::string file_of(const KvDirectory& directory, const Engine& engine, int first_token) {
  cache::PageKey key = engine.root_key();
  for (int i = 0; i <= first_token; i += kPage) {
    key = cache::next_key(key, std::span(kKnown).subspan(static_cast<std::size_t>(i), kPage));
  }
  const std::vector<std::string> found = directory.files(key.to_hex().substr(2));
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? "" : found[0];
}

struct Row {
  MatchEnd end;
  int n_reused;  ///< -1: depends on the disk
  const char* scope_difference;
  /// Over a directory that has the pages of kKnown, written by an earlier engine.
  std::function<PromptReport(const KvDirectory&)> reach;
  TokenId cached = -1, wanted = -1;
};

PromptReport ask_changed(const KvDirectory& directory,
                         const std::function<void(EngineOptions&)>& change) {
  EngineOptions options = small_pages();
  change(options);
  return ask(*stories_on(directory, options), kKnown);
}

PromptReport ask_after_damage(const KvDirectory& directory) {
  const auto engine = stories_on(directory, small_pages());
  const std::string path = file_of(directory, *engine, 48);
  Bytes bytes = read_bytes(path);
  bytes.back() ^= 1;
  write_bytes(path, bytes);
  return ask(*engine, kKnown);
}

PromptReport ask_without_a_disk(const KvDirectory& directory) {
  const auto engine = stories_on(directory, small_pages());
  std::filesystem::remove_all(directory.path());
  return ask(*engine, kKnown);
}

PromptReport ask_after_eviction(const KvDirectory& directory) {
  const auto engine = stories_on(directory, small_pages());
  (void)ask(*engine, kKnown);
  settle(*engine);
  std::filesystem::remove(file_of(directory, *engine, 80));
  EXPECT_TRUE(engine->cache().evict_one());  // the same page: the last one
  return ask(*engine, kKnown);
}

/// Stories compute a page in microseconds: no disk is that fast, two pages at most come by chance.
PromptReport ask_in_a_hurry(const KvDirectory& directory) {
  EngineOptions options = small_pages();
  options.kv_dir = directory.path();
  options.prefix_bytes = kPlenty;
  const auto engine = load(kStories, options);
  // However often: that there was no time says nothing of the disk.
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(ask(*engine, kKnown).end, MatchEnd::kLoadSlowerThanRecompute);
    settle(*engine);
    engine->cache().evict_all();
  }
  return ask(*engine, kKnown);
}

const Row kRows[] = {
    {MatchEnd::kEndOfCache, 96, "",
     [](const KvDirectory& directory) {
       return ask(*stories_on(directory, small_pages()), run_of(120));
     }},
    {MatchEnd::kFirstDifference, 41, "",
     [](const KvDirectory& directory) {
       const auto engine = stories_on(directory, small_pages());
       (void)ask(*engine, kKnown);
       return ask(*engine, branch(kKnown, 41, 20));
     },
     44, 400},
    {MatchEnd::kLastToken, 95, "",
     [](const KvDirectory& directory) {
       const auto engine = stories_on(directory, small_pages());
       (void)ask(*engine, kKnown);
       return ask(*engine, run_of(96));
     }},
    {MatchEnd::kEvicted, 80, "", ask_after_eviction},
    {MatchEnd::kOtherModel, 0, "model",
     [](const KvDirectory& directory) {
       return ask(*load_on(directory, "arch_vectors/llama_mha.gguf", small_pages()), kKnown);
     }},
    {MatchEnd::kOtherCodec, 0, "codec_k",
     [](const KvDirectory& directory) {
       return ask_changed(directory, [](auto& to) { to.kv.codecs.k = cache::CodecId::kBF16; });
     }},
    {MatchEnd::kOtherCodec, 0, "page_tokens",
     [](const KvDirectory& directory) {
       return ask_changed(directory, [](auto& to) { to.page_tokens = 32; });
     }},
    {MatchEnd::kNamespace, 0, "salt",
     [](const KvDirectory& directory) {
       return ask_changed(directory, [](auto& to) { to.salt = "tenant 7"; });
     }},
    {MatchEnd::kLoadSlowerThanRecompute, -1, "", ask_in_a_hurry},
    {MatchEnd::kCorrupt, 48, "", ask_after_damage},
    {MatchEnd::kTierDown, 0, "", ask_without_a_disk},
};

TEST(MatchReason, IsRightInEachOfItsCases) {
  std::set<MatchEnd> reached;
  for (const Row& row : kRows) {
    SCOPED_TRACE(std::string(cache::match_end_name(row.end)) + " " + row.scope_difference);
    const KvDirectory directory;
    {
      const auto engine = stories_on(directory, small_pages());
      (void)ask(*engine, kKnown);
      settle(*engine);
      ASSERT_EQ(directory.pages().size(), 6u);
    }
    const PromptReport report = row.reach(directory);
    EXPECT_EQ(report.end, row.end) << cache::match_end_name(report.end);
    if (row.n_reused >= 0) {
      EXPECT_EQ(report.n_reused, row.n_reused);
    }
    EXPECT_EQ(report.n_computed, report.n_prompt - report.n_reused);
    EXPECT_EQ(report.scope_difference, row.scope_difference);
    EXPECT_EQ(report.cached, row.cached);
    EXPECT_EQ(report.wanted, row.wanted);
    reached.insert(row.end);
  }
  EXPECT_EQ(reached.size(), static_cast<std::size_t>(MatchEnd::kTierDown) + 1)
      << "a reason without a case";
}

/// The page that differs in its middle is on the disk only.
TEST(MatchReason, ADifferenceInsideAPageIsFoundOnTheDiskToo) {
  const KvDirectory directory;
  {
    const auto engine = stories_on(directory, small_pages());
    (void)ask(*engine, kKnown);
    settle(*engine);
  }
  const PromptReport report = ask(*stories_on(directory, small_pages()), branch(kKnown, 41, 20));
  EXPECT_EQ(report.end, MatchEnd::kFirstDifference) << cache::match_end_name(report.end);
  EXPECT_EQ(report.n_reused, 41);
  EXPECT_EQ(report.cached, 44);
  EXPECT_EQ(report.wanted, 400);
}

}  // namespace
}  // namespace kvasir::engine
