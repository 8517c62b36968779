#include "cache/tier/disk_tier.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "cache/tier_support.h"

namespace kvasir::cache {
namespace {

namespace fs = std::filesystem;

using DiskTierTest = TierTest;

TEST_F(DiskTierTest, APagePutIsAPageGot) {
  const auto tier = open_tier();
  const TestPage page = page_of(1, 100000);
  EXPECT_EQ(get(*tier, page), GetOutcome::kMiss);
  EXPECT_FALSE(tier->contains(page.key));
  ASSERT_TRUE(tier->put(page.record()));
  EXPECT_TRUE(tier->contains(page.key));
  EXPECT_EQ(get(*tier, page), GetOutcome::kHit);
  EXPECT_EQ(tier->health().state, HealthState::kUp);

  const auto infos = tier->list();
  ASSERT_EQ(infos.size(), 1u);
  EXPECT_EQ(infos[0].key, page.key);
  EXPECT_EQ(infos[0].parent, page.parent);
  EXPECT_EQ(infos[0].root, page.root);
  EXPECT_EQ(infos[0].first_token, 64);
  EXPECT_EQ(infos[0].n_tokens, 16);
  EXPECT_EQ(infos[0].file_bytes, fs::file_size(path_of(page.key)));
  EXPECT_EQ(infos[0].n_hits, 1u);
  const DiskTierStats stats = tier->stats();
  EXPECT_EQ(stats.n_hits, 1u);
  EXPECT_EQ(stats.n_misses, 1u);
  EXPECT_EQ(stats.n_puts, 1u);
  EXPECT_EQ(stats.page_bytes, file_bytes(page));
}

TEST_F(DiskTierTest, AReopenedTierHasEveryPage) {
  {
    const auto tier = open_tier();
    for (std::uint64_t n = 1; n <= 20; ++n) ASSERT_TRUE(tier->put(page_of(n).record()));
  }
  const auto tier = open_tier();
  EXPECT_EQ(tier->list().size(), 20u);
  for (std::uint64_t n = 1; n <= 20; ++n) EXPECT_EQ(get(*tier, page_of(n)), GetOutcome::kHit);
  const auto header = tier->header(page_of(3).key);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tokens, page_of(3).tokens);
  EXPECT_EQ(header->description, page_of(3).description);
  const auto report = tier->verify();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->n_pages, 20u);
  EXPECT_TRUE(report->bad.empty());
}

TEST_F(DiskTierTest, AgesAreSecondsSinceWritingAndUse) {
  const TestPage page = page_of(1);
  const auto tier = open_tier();
  ASSERT_TRUE(tier->put(page.record()));
  fs_.clock_offset_ns = std::int64_t{1000} * 1'000'000'000;
  ASSERT_EQ(get(*tier, page), GetOutcome::kHit);
  fs_.clock_offset_ns = std::int64_t{5000} * 1'000'000'000;
  const PageInfo info = tier->list()[0];
  EXPECT_NEAR(info.age_seconds, 5000, 900);
  EXPECT_NEAR(info.idle_seconds, 4000, 900);
}

TEST_F(DiskTierTest, OtherTokensOrAnotherSizeAreAMissAndHarmThePageNot) {
  const auto tier = open_tier();
  const TestPage page = page_of(1);
  ASSERT_TRUE(tier->put(page.record()));
  TestPage other = page;
  other.tokens.back() += 1;
  EXPECT_EQ(get(*tier, other), GetOutcome::kMiss);
  other.tokens.pop_back();
  EXPECT_EQ(get(*tier, other), GetOutcome::kMiss);
  other.tokens.clear();
  EXPECT_EQ(get(*tier, other), GetOutcome::kMiss);
  other = page;
  other.payload.push_back(0);
  EXPECT_EQ(get(*tier, other), GetOutcome::kMiss);
  other.payload.clear();
  EXPECT_EQ(get(*tier, other), GetOutcome::kMiss);
  EXPECT_EQ(tier->stats().n_mismatched, 5u);
  EXPECT_EQ(tier->stats().n_corrupt, 0u);
  EXPECT_EQ(get(*tier, page), GetOutcome::kHit);
}

TEST_F(DiskTierTest, GetManyTellsHitsFromMisses) {
  const auto tier = open_tier();
  std::vector<TestPage> pages;
  std::vector<std::vector<std::uint8_t>> outs;
  std::vector<GetRequest> requests;
  for (std::uint64_t n = 1; n <= 40; ++n) {
    pages.push_back(page_of(n, 1000 + 10 * n));
    if (n % 3 != 0) {
      ASSERT_TRUE(tier->put(pages.back().record()));
    }
  }
  for (const TestPage& page : pages) outs.emplace_back(page.payload.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    requests.push_back({.key = pages[i].key, .tokens = pages[i].tokens, .out = outs[i]});
  }
  tier->get_many(requests, 1e9);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const bool is_here = (i + 1) % 3 != 0;
    ASSERT_EQ(requests[i].outcome, is_here ? GetOutcome::kHit : GetOutcome::kMiss) << i;
    if (is_here) {
      EXPECT_EQ(outs[i], pages[i].payload) << i;
    }
  }
  EXPECT_EQ(tier->stats().n_hits, 27u);
  EXPECT_EQ(tier->stats().n_misses, 13u);
  EXPECT_EQ(tier->stats().n_late, 0u);
}

TEST_F(DiskTierTest, EvictsTheLeastRecentlyUsedStepByStep) {
  const std::uint64_t size = file_bytes(page_of(1));
  const auto tier = open_tier(3 * size + 10);
  const auto has = [&](std::vector<std::uint64_t> want) {
    std::vector<PageKey> want_keys;
    for (const std::uint64_t n : want) want_keys.push_back(key_of(n));
    EXPECT_EQ(keys(*tier), want_keys);
    EXPECT_EQ(files("/pages/").size(), want.size());
    EXPECT_EQ(bytes_on_disk(), want.size() * size);
  };
  for (std::uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(tier->put(page_of(n).record()));
  has({1, 2, 3});
  ASSERT_TRUE(tier->put(page_of(4).record()));
  has({2, 3, 4});
  EXPECT_EQ(get(*tier, page_of(2)), GetOutcome::kHit);
  has({3, 4, 2});
  ASSERT_TRUE(tier->put(page_of(5).record()));
  has({4, 2, 5});
  ASSERT_TRUE(tier->put(page_of(4).record()));  // known: only a use
  has({2, 5, 4});
  ASSERT_TRUE(tier->put(page_of(6).record()));
  has({5, 4, 6});
  EXPECT_EQ(get(*tier, page_of(2)), GetOutcome::kMiss);
  ASSERT_TRUE(tier->remove(key_of(4)));
  has({5, 6});
  EXPECT_EQ(tier->remove(key_of(4)).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(tier->put(page_of(7).record()));
  has({5, 6, 7});
  const auto freed = tier->gc(size);
  ASSERT_TRUE(freed);
  EXPECT_EQ(*freed, 2 * size);
  has({7});
  EXPECT_EQ(tier->stats().n_evicted, 5u);
  EXPECT_EQ(tier->stats().n_puts_known, 1u);
}

TEST_F(DiskTierTest, TheCapacityHoldsToTheByteAndBeforeEachWrite) {
  std::uint64_t largest = 0;
  const std::uint64_t capacity = file_bytes(page_of(1, 1000)) + file_bytes(page_of(1, 5000));
  const auto tier = open_tier(capacity);
  std::uint64_t coming = 0;
  // I3: when the temporary file is made, what is there and all that is to come fits.
  fs_.before = [&](const std::string& call, const std::string&) {
    if (call == "create") largest = std::max(largest, bytes_on_disk() + coming);
    return 0;
  };
  for (std::uint64_t n = 1; n <= 60; ++n) {
    const TestPage page = page_of(n, 500 + n * 937 % 5000);
    coming = file_bytes(page);
    const bool fits = file_bytes(page) <= capacity;
    EXPECT_EQ(tier->put(page.record()).has_value(), fits) << n;
    EXPECT_LE(bytes_on_disk(), capacity) << n;
    EXPECT_EQ(bytes_on_disk(), tier->stats().page_bytes) << n;
  }
  EXPECT_GT(largest, capacity / 2);
  EXPECT_LE(largest, capacity);
}

TEST_F(DiskTierTest, APageAsLargeAsTheTierFitsAndALargerOneIsRefused) {
  const TestPage page = page_of(1);
  {
    const auto tier = open_tier(file_bytes(page) - 1);
    ASSERT_TRUE(tier->put(page_of(2, 1000).record()));
    const Status status = tier->put(page.record());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kExhausted);
    EXPECT_EQ(keys(*tier), std::vector<PageKey>{key_of(2)}) << "nothing went for nothing";
    EXPECT_EQ(tier->health().state, HealthState::kUp) << "no fault of the disk";
  }
  const auto tier = open_tier(file_bytes(page));
  ASSERT_TRUE(tier->put(page_of(2).record()));
  ASSERT_TRUE(tier->put(page.record()));
  EXPECT_EQ(keys(*tier), std::vector<PageKey>{page.key});
}

TEST_F(DiskTierTest, AByteTooFewIsAPageLess) {
  const std::uint64_t size = file_bytes(page_of(1));
  for (const std::uint64_t capacity : {2 * size, 2 * size - 1}) {
    const auto tier = open_tier(capacity);
    for (std::uint64_t n = 1; n <= 2; ++n) ASSERT_TRUE(tier->put(page_of(n).record()));
    EXPECT_EQ(keys(*tier).size(), capacity / size);
    ASSERT_TRUE(tier->gc(0));
  }
}

TEST_F(DiskTierTest, AChainLongerThanTheTierKeepsItsBeginning) {
  const auto tier = open_tier(3 * file_bytes(page_of(1)));
  std::vector<bool> taken;
  for (std::uint64_t n = 1; n <= 5; ++n) {
    TestPage page = page_of(n);
    page.parent = key_of(n - 1);
    taken.push_back(tier->put(page.record()).has_value());
  }
  EXPECT_EQ(taken, (std::vector<bool>{true, true, true, false, true}));
  // 4 found no room behind 3; 5, whose 4 is not here, took the place of the end of the chain.
  EXPECT_EQ(keys(*tier), (std::vector<PageKey>{key_of(1), key_of(2), key_of(5)}));
}

TEST_F(DiskTierTest, TheOrderOfUseSurvivesAReopeningAndALowerCapacity) {
  const std::uint64_t size = file_bytes(page_of(1));
  {
    const auto tier = open_tier();
    for (std::uint64_t n = 1; n <= 4; ++n) ASSERT_TRUE(tier->put(page_of(n).record()));
  }
  age(path_of(key_of(1)), 10);
  age(path_of(key_of(2)), 40);
  age(path_of(key_of(3)), 20);
  age(path_of(key_of(4)), 30);
  {
    const auto tier = open_tier();
    EXPECT_EQ(keys(*tier), (std::vector<PageKey>{key_of(2), key_of(4), key_of(3), key_of(1)}));
    EXPECT_EQ(get(*tier, page_of(2)), GetOutcome::kHit);  // touches the file
  }
  const auto tier = open_tier(2 * size);
  EXPECT_EQ(keys(*tier), (std::vector<PageKey>{key_of(1), key_of(2)}));
  EXPECT_EQ(files("/pages/").size(), 2u);
}

TEST_F(DiskTierTest, FilesAndFoldersAreTheOwnersAlone) {
  const mode_t umask = ::umask(0);
  {
    const auto tier = open_tier();
    ASSERT_TRUE(tier->put(page_of(1).record()));
    ASSERT_TRUE(tier->write_manifest(key_of(0), "x"));
    write_bytes(path_of(key_of(2)), {1, 2, 3});
    EXPECT_EQ(get(*tier, page_of(2)), GetOutcome::kCorrupt);
  }
  ::umask(umask);
  EXPECT_EQ(fs::status(directory()).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(directory() + "/pages").permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(directory() + "/roots").permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(directory() + "/bad").permissions(), fs::perms::owner_all);
  const fs::path page = path_of(key_of(1));
  EXPECT_EQ(fs::status(page.parent_path()).permissions(), fs::perms::owner_all);
  const auto owner_file = fs::perms::owner_read | fs::perms::owner_write;
  EXPECT_EQ(fs::status(page).permissions(), owner_file);
  EXPECT_EQ(fs::status(directory() + "/roots/" + key_of(0).to_hex()).permissions(), owner_file);
}

TEST_F(DiskTierTest, StaleTemporariesAreSweptAndYoungOnesLeft) {
  { const auto tier = open_tier(); }
  const std::string folder = directory() + "/pages/ab/";
  for (const char* name : {".tmp-1-1", ".tmp-1-2"}) write_bytes(folder + name, {1});
  write_bytes(directory() + "/roots/.tmp-9-9", {1});
  write_bytes(folder + "notes.txt", {1});
  age(folder + ".tmp-1-1", 3700);
  age(folder + ".tmp-1-2", 3500);
  age(folder + "notes.txt", 9999);
  age(directory() + "/roots/.tmp-9-9", 3700);
  const auto tier = open_tier();
  EXPECT_FALSE(fs::exists(folder + ".tmp-1-1"));
  EXPECT_TRUE(fs::exists(folder + ".tmp-1-2")) << "its writer may be alive";
  EXPECT_FALSE(fs::exists(directory() + "/roots/.tmp-9-9"));
  EXPECT_TRUE(fs::exists(folder + "notes.txt")) << "not ours";
  EXPECT_EQ(tier->stats().n_temporaries_removed, 2u);
}

TEST_F(DiskTierTest, ATemporaryNameThatIsTakenIsPassedOver) {
  const auto tier = open_tier();
  const TestPage page = page_of(1);
  const std::string folder = fs::path(path_of(page.key)).parent_path().string();
  const std::string taken = folder + "/.tmp-" + std::to_string(::getpid()) + "-0";
  write_bytes(taken, {1});
  ASSERT_TRUE(tier->put(page.record()));
  EXPECT_EQ(get(*tier, page), GetOutcome::kHit);
  EXPECT_EQ(read_bytes(taken), std::vector<std::uint8_t>{1});
}

TEST_F(DiskTierTest, AManifestIsTheCallersText) {
  const auto tier = open_tier();
  EXPECT_EQ(tier->read_manifest(key_of(1)).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(tier->manifests()->empty());
  ASSERT_TRUE(tier->write_manifest(key_of(1), "model=a\n"));
  ASSERT_TRUE(tier->write_manifest(key_of(2), ""));
  ASSERT_TRUE(tier->write_manifest(key_of(1), "model=b\n"));
  EXPECT_EQ(*tier->read_manifest(key_of(1)), "model=b\n");
  EXPECT_EQ(*tier->read_manifest(key_of(2)), "");
  const auto roots = tier->manifests();
  ASSERT_TRUE(roots);
  EXPECT_EQ(roots->size(), 2u);
  EXPECT_TRUE(std::find(roots->begin(), roots->end(), key_of(1)) != roots->end());
  const std::string longest(64 * 1024, 'x');
  ASSERT_TRUE(tier->write_manifest(key_of(3), longest));
  EXPECT_EQ(*tier->read_manifest(key_of(3)), longest);
  EXPECT_EQ(tier->write_manifest(key_of(3), longest + "x").error().code,
            ErrorCode::kInvalidArgument);
  write_bytes(directory() + "/roots/" + key_of(4).to_hex(), std::vector<std::uint8_t>(65537, 'x'));
  EXPECT_EQ(tier->read_manifest(key_of(4)).error().code, ErrorCode::kCorruption);
}

TEST_F(DiskTierTest, RefusesOptionsThatMakeNoSense) {
  const auto refuses = [&](DiskTierOptions options) {
    const auto tier = DiskTier::open(options, fs_, clock_);
    return !tier && tier.error().code == ErrorCode::kInvalidArgument;
  };
  const auto with = [&](auto change) {
    DiskTierOptions changed = options();
    change(changed);
    return changed;
  };
  EXPECT_FALSE(refuses(options()));
  EXPECT_TRUE(refuses(with([](auto& o) { o.directory = ""; })));
  EXPECT_TRUE(refuses(with([](auto& o) { o.capacity_bytes = 0; })));
  EXPECT_TRUE(refuses(with([](auto& o) { o.n_read_threads = 0; })));
  EXPECT_TRUE(refuses(with([](auto& o) { o.n_read_threads = 65; })));
  EXPECT_TRUE(refuses(with([](auto& o) { o.refresh_seconds = std::nan(""); })));
  EXPECT_TRUE(refuses(with([](auto& o) { o.back_off.first_seconds = 0; })));
  EXPECT_TRUE(refuses(with([](auto& o) { o.back_off.max_seconds = 0.5; })));
}

TEST_F(DiskTierTest, MakesTheDirectoriesAboveAndTakesASlashAtTheEnd) {
  DiskTierOptions deep = options();
  deep.directory = (scratch_ / "a" / "b" / "c/").string();
  const auto tier = DiskTier::open(deep, fs_, clock_);
  ASSERT_TRUE(tier) << tier.error().message;
  ASSERT_TRUE((*tier)->put(page_of(1).record()));
  EXPECT_TRUE(fs::exists(scratch_ / "a" / "b" / "c" / "pages"));
}

TEST_F(DiskTierTest, AFileInTheDirectorysPlaceIsAnError) {
  write_bytes(directory(), {1});
  const auto tier = DiskTier::open(options(), fs_, clock_);
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code, ErrorCode::kIo);
  EXPECT_NE(tier.error().message.find(directory()), std::string::npos) << tier.error().message;
}

TEST_F(DiskTierTest, ADirectoryThatOthersFillIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving a directory away takes root";
  fs::create_directory(directory());
  ASSERT_EQ(::chown(directory().c_str(), 12345, 12345), 0);
  ASSERT_EQ(::chmod(directory().c_str(), 0777), 0);
  const auto tier = DiskTier::open(options(), fs_, clock_);
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().code, ErrorCode::kInvalidArgument);
  // Its owner may write into it as well.
  ASSERT_EQ(::chmod(directory().c_str(), 0755), 0);
  EXPECT_FALSE(DiskTier::open(options(), fs_, clock_));
  ASSERT_EQ(::chown(directory().c_str(), 0, 0), 0);
  EXPECT_TRUE(DiskTier::open(options(), fs_, clock_));
  // Nor may what is in it be given away.
  fs::create_directories(directory() + "/pages");
  ASSERT_EQ(::chmod((directory() + "/pages").c_str(), 0777), 0);
  const auto open_pages = DiskTier::open(options(), fs_, clock_);
  ASSERT_FALSE(open_pages);
  EXPECT_NE(open_pages.error().message.find("/pages: others may write"), std::string::npos)
      << open_pages.error().message;
}

TEST_F(DiskTierTest, PagesOfOneTimeHaveOneOrder) {
  std::vector<PageKey> sorted;
  {
    const auto tier = open_tier();
    for (std::uint64_t n = 1; n <= 12; ++n) {
      ASSERT_TRUE(tier->put(page_of(n).record()));
      sorted.push_back(key_of(n));
    }
  }
  const auto time = fs::last_write_time(path_of(key_of(1)));
  for (const PageKey& key : sorted) fs::last_write_time(path_of(key), time);
  std::sort(sorted.begin(), sorted.end(),
            [](const PageKey& a, const PageKey& b) { return a.bytes < b.bytes; });
  EXPECT_EQ(keys(*open_tier()), sorted);
}

}  // namespace
}  // namespace kvasir::cache
