// Files of the disk tier that somebody or something changed: never a wrong payload.
#include <unistd.h>

#include <algorithm>
#include <random>

#include "cache/tier_support.h"

namespace kvasir::cache {
namespace {

namespace fs = std::filesystem;

class DiskTierDamageTest : public TierTest {
 protected:
  /// A page on the disk and its file's bytes.
  TestPage put_page(std::uint64_t n) {
    const TestPage page = page_of(n);
    EXPECT_TRUE(open_tier()->put(page.record()));
    return page;
  }
  /// Names of the files that verify calls bad, or of another version.
  static std::vector<std::string> suspects(const DiskTier& tier) {
    const auto report = tier.verify();
    EXPECT_TRUE(report);
    std::vector<std::string> paths;
    for (const auto& bad : report->bad) paths.push_back(bad.path);
    for (const auto& skipped : report->skipped) paths.push_back(skipped.path);
    return paths;
  }
  /// Puts `bytes` where a page's file was and looks at it with a tier that knew the file, and with
  /// one that finds it so.
  void expect_never_a_hit(const TestPage& page, const std::vector<std::uint8_t>& good,
                          const std::vector<std::uint8_t>& bytes, const std::string& what) {
    const std::string path = path_of(page.key);
    write_bytes(path, good);
    const auto knowing = open_tier();
    write_bytes(path, bytes);
    EXPECT_EQ(suspects(*knowing), std::vector<std::string>{path}) << what;
    EXPECT_NE(get(*knowing, page), GetOutcome::kHit) << what;
    EXPECT_NE(get(*knowing, page), GetOutcome::kHit) << what << ", again";
    write_bytes(path, bytes);
    const auto finding = open_tier();
    EXPECT_NE(get(*finding, page), GetOutcome::kHit) << what << ", found at open";
    fs::remove_all(directory() + "/bad");
  }
};

TEST_F(DiskTierDamageTest, ATruncatedFileIsNeverAHit) {
  const TestPage page = put_page(1);
  const std::vector<std::uint8_t> good = read_bytes(path_of(page.key));
  const std::size_t header_bytes = good.size() - page.payload.size();
  for (std::size_t size = 0; size < good.size(); ++size) {
    if (size > header_bytes && size % 512 != 0 && size + 1 != good.size()) continue;
    expect_never_a_hit(page, good, {good.begin(), good.begin() + static_cast<long>(size)},
                       "cut at " + std::to_string(size));
  }
}

TEST_F(DiskTierDamageTest, AFileWithMoreOrZeroedBytesIsNeverAHit) {
  const TestPage page = put_page(1);
  const std::vector<std::uint8_t> good = read_bytes(path_of(page.key));
  std::vector<std::uint8_t> longer = good;
  longer.push_back(0);
  expect_never_a_hit(page, good, longer, "a byte more");
  for (std::size_t begin = 0; begin < good.size(); begin += 512) {  // a sector that never arrived
    std::vector<std::uint8_t> zeroed = good;
    std::fill_n(zeroed.begin() + static_cast<long>(begin),
                std::min<std::size_t>(512, good.size() - begin), std::uint8_t{0});
    expect_never_a_hit(page, good, zeroed, "zeros from " + std::to_string(begin));
  }
}

TEST_F(DiskTierDamageTest, AThousandFlippedBitsAreNeverAHit) {
  const TestPage page = put_page(1);
  const std::vector<std::uint8_t> good = read_bytes(path_of(page.key));
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::uint8_t> flipped = good;
    const std::size_t bit = random() % (8 * good.size());
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    expect_never_a_hit(page, good, flipped, "bit " + std::to_string(bit));
    if (HasFailure()) return;
  }
}

TEST_F(DiskTierDamageTest, ADamagedPageIsMovedAsideCountedAndCanBePutAgain) {
  const auto tier = open_tier();
  const TestPage page = page_of(1);
  ASSERT_TRUE(tier->put(page.record()));
  std::vector<std::uint8_t> bytes = read_bytes(path_of(page.key));
  bytes.back() ^= 1;
  write_bytes(path_of(page.key), bytes);
  EXPECT_EQ(get(*tier, page), GetOutcome::kCorrupt);
  EXPECT_FALSE(fs::exists(path_of(page.key)));
  ASSERT_EQ(files("/bad/").size(), 1u);
  EXPECT_EQ(read_bytes(files("/bad/")[0]), bytes) << "kept for whoever wants to know";
  const DiskTierStats stats = tier->stats();
  EXPECT_EQ(stats.n_corrupt, 1u);
  EXPECT_EQ(stats.n_pages, 0u);
  EXPECT_EQ(stats.n_bad, 1u);
  EXPECT_EQ(stats.bad_bytes, bytes.size());
  EXPECT_EQ(tier->health().state, HealthState::kUp) << "of one file, not of the disk";
  EXPECT_EQ(tier->verify()->quarantined, files("/bad/"));
  EXPECT_FALSE(tier->contains(page.key));
  EXPECT_EQ(get(*tier, page), GetOutcome::kMiss);
  ASSERT_TRUE(tier->put(page.record()));
  EXPECT_EQ(get(*tier, page), GetOutcome::kHit);
}

/// Else no put would write it anew: a page that is known is not written again.
TEST_F(DiskTierDamageTest, ADamagedHeaderIsMovedAsideByWhoeverLooksAtItAlone) {
  const auto tier = open_tier();
  const TestPage page = page_of(1);
  ASSERT_TRUE(tier->put(page.record()));
  std::vector<std::uint8_t> bytes = read_bytes(path_of(page.key));
  bytes[40] ^= 1;
  write_bytes(path_of(page.key), bytes);
  EXPECT_EQ(tier->header(page.key).error().code, ErrorCode::kCorruption);
  EXPECT_EQ(files("/bad/").size(), 1u);
  EXPECT_EQ(tier->header(page.key).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(tier->put(page.record()));
  EXPECT_EQ(tier->stats().n_puts, 2u);
  EXPECT_EQ(get(*tier, page), GetOutcome::kHit);
}

TEST_F(DiskTierDamageTest, WhatWasMovedAsideCountsAndGoesFirst) {
  const auto tier = open_tier();
  for (std::uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(tier->put(page_of(n).record()));
  const std::uint64_t size = fs::file_size(path_of(key_of(1)));
  std::vector<std::uint8_t> bytes = read_bytes(path_of(key_of(3)));
  bytes.back() ^= 1;
  write_bytes(path_of(key_of(3)), bytes);
  const auto small = open_tier(3 * size);
  EXPECT_EQ(get(*tier, page_of(3)), GetOutcome::kCorrupt);
  ASSERT_TRUE(small->refresh());
  EXPECT_EQ(small->stats().bad_bytes, size);
  ASSERT_TRUE(small->put(page_of(4).record()));
  EXPECT_TRUE(files("/bad/").empty());
  EXPECT_EQ(small->list().size(), 3u);
  EXPECT_EQ(small->stats().n_evicted, 0u) << "counts pages";
  EXPECT_EQ(bytes_on_disk(), 3 * size);
}

TEST_F(DiskTierDamageTest, TwoSwappedFilesAreDetected) {
  const TestPage a = put_page(1);
  const TestPage b = put_page(2);
  const auto tier = open_tier();
  fs::rename(path_of(a.key), scratch_ / "a");
  fs::rename(path_of(b.key), path_of(a.key));
  fs::rename(scratch_ / "a", path_of(b.key));
  const auto report = tier->verify();
  ASSERT_TRUE(report);
  ASSERT_EQ(report->bad.size(), 2u);
  EXPECT_NE(report->bad[0].reason.find("another page"), std::string::npos);
  EXPECT_EQ(get(*tier, a), GetOutcome::kCorrupt);
  EXPECT_EQ(get(*tier, b), GetOutcome::kCorrupt);
}

TEST_F(DiskTierDamageTest, APayloadUnderAnotherPagesHeaderIsDetected) {
  // A misdirected write: both halves are whole, of two pages of the same size.
  const TestPage a = put_page(1);
  const TestPage b = put_page(2);
  std::vector<std::uint8_t> mixed = read_bytes(path_of(a.key));
  std::copy(b.payload.begin(), b.payload.end(), mixed.end() - static_cast<long>(b.payload.size()));
  const auto tier = open_tier();
  write_bytes(path_of(a.key), mixed);
  EXPECT_EQ(get(*tier, a), GetOutcome::kCorrupt);
}

TEST_F(DiskTierDamageTest, APageOfOtherTokensUnderTheNameIsAMissAndVerifyNamesIt) {
  const TestPage page = put_page(1);
  TestPage forged = page;  // whole, with checksums that fit
  forged.tokens.back() ^= 1;
  std::vector<std::uint8_t> bytes = *encode_page_header(forged.record(), 0);
  bytes.insert(bytes.end(), page.payload.begin(), page.payload.end());
  write_bytes(path_of(page.key), bytes);
  const auto tier = open_tier();
  EXPECT_EQ(suspects(*tier), std::vector<std::string>{path_of(page.key)});
  EXPECT_NE(tier->verify()->bad.at(0).reason.find("other tokens"), std::string::npos);
  EXPECT_EQ(get(*tier, page), GetOutcome::kMiss);
  EXPECT_EQ(tier->stats().n_mismatched, 1u);
}

TEST_F(DiskTierDamageTest, AFileOfAnotherVersionIsLeftAloneAndCounted) {
  const TestPage page = put_page(1);
  std::vector<std::uint8_t> newer = read_bytes(path_of(page.key));
  newer[8] = 2;
  write_bytes(path_of(page.key), newer);
  const auto tier = open_tier(newer.size() + 10);
  EXPECT_TRUE(tier->list().empty());
  EXPECT_EQ(tier->stats().n_other, 1u);
  EXPECT_EQ(tier->stats().other_bytes, newer.size());
  EXPECT_EQ(tier->stats().n_corrupt, 0u);
  EXPECT_EQ(get(*tier, page), GetOutcome::kMiss);
  EXPECT_EQ(tier->put(page.record()).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(tier->put(page_of(2).record()).error().code, ErrorCode::kExhausted)
      << "it takes its place";
  EXPECT_EQ(tier->gc(0).error().code, ErrorCode::kExhausted);
  EXPECT_EQ(tier->health().state, HealthState::kUp);
  ASSERT_EQ(tier->verify()->skipped.size(), 1u);
  EXPECT_NE(tier->verify()->skipped[0].reason.find("version; got 2"), std::string::npos);
  EXPECT_TRUE(tier->verify()->bad.empty());
  EXPECT_EQ(read_bytes(path_of(page.key)), newer);
}

TEST_F(DiskTierDamageTest, AKnownPageThatAnotherVersionWroteOverIsAMiss) {
  const TestPage page = put_page(1);
  const auto tier = open_tier();
  std::vector<std::uint8_t> newer = read_bytes(path_of(page.key));
  newer[8] = 2;
  write_bytes(path_of(page.key), newer);
  EXPECT_EQ(get(*tier, page), GetOutcome::kMiss);
  EXPECT_TRUE(tier->list().empty());
  ASSERT_TRUE(tier->put(page_of(2).record()));  // refreshes first
  EXPECT_EQ(tier->stats().n_other, 1u);
}

TEST_F(DiskTierDamageTest, NamesThatAreNoKeysAreNotTouched) {
  { const auto tier = open_tier(); }
  const std::string hex = key_of(1).to_hex();
  const std::vector<std::string> names = {
      "/pages/zz/" + hex.substr(2) + ".kvp",
      "/pages/ab/x.kvp",
      "/pages/ab/.kvp",
      "/pages/AB/" + hex.substr(2) + ".kvp",
      "/pages/" + hex.substr(0, 2) + "/" + hex.substr(2),
      "/pages/" + hex.substr(0, 2) + "/" + hex.substr(3) + ".kvp",
      "/pages/loose.kvp"};
  for (const std::string& name : names) write_bytes(directory() + name, {1, 2, 3});
  const auto tier = open_tier();
  EXPECT_TRUE(tier->list().empty());
  EXPECT_TRUE(tier->verify()->bad.empty());
  EXPECT_EQ(files().size(), names.size());
}

TEST_F(DiskTierDamageTest, LinksPipesAndFoldersInAPagesPlaceAreMovedAside) {
  const TestPage real = put_page(1);
  const std::string secret = (scratch_ / "secret").string();
  fs::rename(path_of(real.key), secret);
  fs::create_symlink(secret, path_of(real.key));  // even to the page itself
  const auto pipe = page_of(2);
  fs::create_directories(fs::path(path_of(pipe.key)).parent_path());
  ASSERT_EQ(::mkfifo(path_of(pipe.key).c_str(), 0600), 0);
  const auto folder = page_of(3);
  fs::create_directories(path_of(folder.key));
  const auto tier = open_tier();
  for (const TestPage& page : {real, pipe, folder}) {
    EXPECT_NE(get(*tier, page), GetOutcome::kHit);
    EXPECT_FALSE(fs::exists(fs::symlink_status(path_of(page.key))));
  }
  EXPECT_TRUE(fs::exists(secret)) << "the link was moved, not what it names";
  EXPECT_EQ(tier->stats().n_corrupt, 3u);
  // What cannot be removed by unlink does not stand in the way of anything else.
  ASSERT_TRUE(tier->put(real.record()));
  EXPECT_EQ(get(*tier, real), GetOutcome::kHit);
}

}  // namespace
}  // namespace kvasir::cache
