// Whatever became of the directory of pages, the answer is the one that computing everything gives.
#include <gtest/gtest.h>

#include <algorithm>

#include <random>

#include "cache/tier/page_file.h"
#include "engine/kv_dir_support.h"
#include "support/long_tests.h"

namespace kvasir::engine {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using cache::MatchEnd;
using kvasir::testing::count_of;

const Tokens kPrompt = run_of(100);  // six pages of 16, and 4 tokens

/// A model of one cache group, and one whose windows make a second.
class DiskDamage : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    options_.page_tokens = 16;
    options_.n_batch = 16;  // every page is sealed before a window has passed
    cold_ = std::make_unique<Cold>(GetParam(), EngineOptions());
  }
  void start() { engine_ = load_on(directory_, GetParam(), options_); }
  /// The directory has the prompt's pages, memory has none.
  void fill() {
    start();
    ASSERT_NO_FATAL_FAILURE(expect_answer(kPrompt));
    settle(*engine_);
    pages_ = directory_.pages();
    ASSERT_EQ(pages_.size(), 6u);
    engine_->cache().evict_all();
  }

  PromptReport expect_answer(const Tokens& prompt) {
    Session session(*engine_);
    const auto report = session.prompt(prompt);
    EXPECT_TRUE(report) << report.error().message;
    EXPECT_TRUE(same_bits(session.logits(), cold_->logits(prompt)));
    return report ? *report : PromptReport();
  }

  /// The answer with `bytes` in the place of a page, by the engine that knew the page; what was
  /// damaged has been set aside and written anew afterwards.
  void expect_answer_with(const std::string& path, const Bytes& bytes, const std::string& what) {
    SCOPED_TRACE(what);
    write_bytes(path, bytes);
    engine_->cache().evict_all();
    const PromptReport report = expect_answer(kPrompt);
    EXPECT_EQ(report.end, MatchEnd::kCorrupt) << cache::match_end_name(report.end);
    EXPECT_LT(report.n_loaded, 96);
    settle(*engine_);
    EXPECT_EQ(directory_.files("/bad/").size(), 1u);
    fs::remove_all(directory_.path() + "/bad");
    EXPECT_EQ(directory_.pages(), pages_);
    ASSERT_FALSE(HasFailure());
  }

  KvDirectory directory_;
  EngineOptions options_;
  std::unique_ptr<Cold> cold_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::string> pages_;
};

TEST_P(DiskDamage, PagesCutOffAtEvery512Bytes) {
  ASSERT_NO_FATAL_FAILURE(fill());
  for (const std::string& path : pages_) {
    const Bytes good = read_bytes(path);
    for (std::size_t size = 0; size < good.size(); size += 512) {
      const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
      ASSERT_NO_FATAL_FAILURE(expect_answer_with(path, cut, path + " at " + std::to_string(size)));
    }
  }
}

TEST_P(DiskDamage, FlippedBits) {
  ASSERT_NO_FATAL_FAILURE(fill());
  std::mt19937 random(3);
  const int n_flips = count_of("flipped bits", 100, 1000);
  for (int i = 0; i < n_flips; ++i) {
    const std::string& path = pages_[random() % pages_.size()];
    Bytes bytes = read_bytes(path);
    const std::size_t bit = random() % (8 * bytes.size());
    if (bit / 8 == 8) continue;  // another version's file is left alone: see below
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    ASSERT_NO_FATAL_FAILURE(expect_answer_with(path, bytes, path + " bit " + std::to_string(bit)));
  }
}

/// An engine that finds the damage at its start, not at its prompt.
TEST_P(DiskDamage, FlippedBitsFoundAtTheStart) {
  ASSERT_NO_FATAL_FAILURE(fill());
  std::mt19937 random(4);
  const int n_flips = count_of("flipped bits", 20, 200);
  for (int i = 0; i < n_flips; ++i) {
    for (int k = 0; k < 2; ++k) {
      const std::string& path = pages_[random() % pages_.size()];
      Bytes bytes = read_bytes(path);
      // More often in the header than in the payload.
      const std::size_t bit = random() % (8 * (random() % 2 == 0 ? 256 : bytes.size()));
      bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      write_bytes(path, bytes);
    }
    engine_ = nullptr;
    start();
    EXPECT_LT(expect_answer(kPrompt).n_loaded, 96);
    settle(*engine_);
    for (const std::string& path : pages_) fs::remove(path);  // another version's file would stay
    engine_->cache().evict_all();
    (void)expect_answer(kPrompt);
    settle(*engine_);
    ASSERT_EQ(directory_.pages().size(), 6 + directory_.files("/bad/").size());
    ASSERT_FALSE(HasFailure());
  }
}

TEST_P(DiskDamage, PagesSwappedAndAnotherVersions) {
  ASSERT_NO_FATAL_FAILURE(fill());
  for (std::size_t a = 0; a < pages_.size(); ++a) {
    const Bytes bytes_a = read_bytes(pages_[a]), bytes_b = read_bytes(pages_[(a + 2) % 6]);
    write_bytes(pages_[a], bytes_b);
    write_bytes(pages_[(a + 2) % 6], bytes_a);
    engine_->cache().evict_all();
    EXPECT_EQ(expect_answer(kPrompt).end, MatchEnd::kCorrupt);
    settle(*engine_);
    engine_->cache().evict_all();
    (void)expect_answer(kPrompt);  // finds the other one of the two
    settle(*engine_);
    EXPECT_EQ(directory_.files("/bad/").size(), 2u);
    fs::remove_all(directory_.path() + "/bad");
    engine_->cache().evict_all();
    EXPECT_EQ(expect_answer(kPrompt).n_loaded, 96) << "written anew";
  }
  const auto first_token = [](const std::string& path) {
    return cache::decode_page_header(read_bytes(path))->first_token;
  };
  const std::string first = *std::min_element(
      pages_.begin(), pages_.end(),
      [&](const std::string& a, const std::string& b) { return first_token(a) < first_token(b); });
  Bytes newer = read_bytes(first);
  newer[8] ^= 2;
  write_bytes(first, newer);
  engine_->cache().evict_all();
  EXPECT_EQ(expect_answer(kPrompt).n_loaded, 0);
  settle(*engine_);
  EXPECT_EQ(read_bytes(first), newer) << "left alone";
}

/// Whole, with right checksums, under the right key: only the tokens tell.
TEST_P(DiskDamage, APageOfOtherTokensUnderTheName) {
  ASSERT_NO_FATAL_FAILURE(fill());
  for (const std::string& path : pages_) {
    const Bytes good = read_bytes(path);
    const auto header = cache::decode_page_header(good);
    ASSERT_TRUE(header);
    cache::PageRecord record;
    record.key = header->key;
    record.parent = header->parent;
    record.root = header->root;
    record.first_token = header->first_token;
    const Tokens others = run_of(16, 300);
    record.tokens = others;
    record.description = header->description;
    record.payload = std::span(good).subspan(header->header_bytes);
    Bytes forged = cache::encode_page_header(record, header->created_seconds).value();
    forged.insert(forged.end(), record.payload.begin(), record.payload.end());
    write_bytes(path, forged);
    engine_->cache().evict_all();
    EXPECT_LT(expect_answer(kPrompt).n_loaded, 96);
    settle(*engine_);
    write_bytes(path, good);
  }
}

TEST_P(DiskDamage, ADirectoryThatVanishesWhileAPromptIsComputed) {
  ASSERT_NO_FATAL_FAILURE(fill());
  const Tokens longer = branch(kPrompt, 100, 60);
  Session session(*engine_);
  const auto vanish = [&](int done, int) {
    std::error_code ignored;  // the writer may be at work in it
    while (done >= 120 && fs::exists(directory_.path())) fs::remove_all(directory_.path(), ignored);
  };
  ASSERT_TRUE(session.prompt(longer, vanish));
  EXPECT_TRUE(same_bits(session.logits(), cold_->logits(longer)));
  session.clear();
  (void)expect_answer(longer);
  engine_->cache().evict_all();
  EXPECT_EQ(expect_answer(longer).end, MatchEnd::kTierDown);
  EXPECT_EQ(expect_answer(branch(longer, 50, 70)).n_loaded, 0);
  EXPECT_FALSE(fs::exists(directory_.path())) << "may be the mount point of a disk that has gone";
}

TEST_P(DiskDamage, AFullDisk) {
  if (const int error = directory_.mount_small("128k"); error != 0) {
    GTEST_SKIP() << "cannot mount a small file system: " << std::strerror(error);
  }
  for (int i = 0; i < 12; ++i) {
    start();
    for (int k = 0; k < 3; ++k) {
      const Tokens prompt = run_of(80 + 16 * k, 3 + 31 * i);
      (void)expect_answer(prompt);
      settle(*engine_);
      engine_->cache().evict_all();
      (void)expect_answer(prompt);
    }
    engine_ = nullptr;
    EXPECT_TRUE(directory_.files(".tmp-").empty());
    EXPECT_TRUE(directory_.files("/bad/").empty());
  }
  EXPECT_FALSE(directory_.pages().empty()) << "what had room is there";
  std::error_code ignored;
  EXPECT_LT(fs::space(directory_.path(), ignored).available, 16u << 10) << "it was not full";
}

TEST_P(DiskDamage, AReadOnlyDiskServesWhatItHas) {
  if (const int error = directory_.mount_small("1m"); error != 0) {
    GTEST_SKIP() << "cannot mount a file system: " << std::strerror(error);
  }
  ASSERT_NO_FATAL_FAILURE(fill());
  ASSERT_EQ(directory_.make_read_only(), 0);
  for (int i = 0; i < 2; ++i) {
    engine_->cache().evict_all();
    EXPECT_EQ(expect_answer(kPrompt).n_loaded, 96);
    (void)expect_answer(run_of(100, 103 + 100 * i));
    engine_ = nullptr;
    start();  // and so does an engine that has never seen it writable
  }
  EXPECT_EQ(directory_.pages(), pages_);
}

INSTANTIATE_TEST_SUITE_P(Models, DiskDamage,
                         ::testing::Values(kStories, "arch_vectors/gemma2_b.gguf"),
                         [](const auto& tested) {
                           return std::string(tested.param == kStories ? "Stories" : "Gemma2");
                         });

}  // namespace
}  // namespace kvasir::engine
