// Pages on their way from one directory to another, whole and damaged.
#include "cache/tier/archive.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "cache/tier/archive_record.h"
#include "cache/tier/atomic_file.h"
#include "tier_support.h"

namespace kvasir::cache {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Two directories: pages go from the first to the second.
class ArchiveTest : public TierTest {
 protected:
  void SetUp() override {
    TierTest::SetUp();
    from_ = open_tier();
    to_ = open_other();
  }
  void TearDown() override {
    from_.reset();
    to_.reset();
    TierTest::TearDown();
  }

  std::unique_ptr<DiskTier> open_other() {
    DiskTierOptions other = options();
    other.directory = (scratch_ / "other").string();
    auto tier = DiskTier::open(other, fs_, clock_);
    EXPECT_TRUE(tier);
    return tier ? std::move(*tier) : nullptr;
  }

  /// `n` pages after each other, of a prompt that begins with `first`; put into from_.
  std::vector<TestPage> put_chain(int n, TokenId first = 1) {
    std::vector<TestPage> chain;
    PageKey previous = key_of(0);
    for (int i = 0; i < n; ++i) {
      TestPage page = page_of(static_cast<std::uint64_t>(first * 50 + i));
      page.root = key_of(0);
      page.parent = previous;
      page.tokens.assign(16, first + i);
      page.key = previous = next_key(page.parent, page.tokens);
      PageRecord record = page.record();
      record.first_token = 16 * i;
      EXPECT_TRUE(from_->put(record));
      chain.push_back(page);
    }
    return chain;
  }

  Bytes exported() {
    Bytes archive;
    std::vector<PageInfo> pages = from_->list();
    std::sort(pages.begin(), pages.end(),
              [](const auto& a, const auto& b) { return a.first_token < b.first_token; });
    const auto sink = [&](std::span<const std::uint8_t> bytes) {
      archive.insert(archive.end(), bytes.begin(), bytes.end());
      return Status{};
    };
    const auto report = export_pages(*from_, fs_, pages, sink, {});
    EXPECT_TRUE(report);
    if (report) exported_ = *report;
    return archive;
  }

  ImportReport import(const Bytes& archive, std::uint64_t capacity_bytes = 1 << 30) {
    std::size_t at = 0;
    const auto source = [&](std::span<std::uint8_t> out) -> Result<std::size_t> {
      const std::size_t n = std::min(out.size(), archive.size() - at);
      std::copy_n(archive.begin() + static_cast<std::ptrdiff_t>(at), n, out.begin());
      at += n;
      return n;
    };
    const ImportOptions how = {
        capacity_bytes, [](const PageKey&, std::string_view text) { return text == "manifest"; }};
    return import_pages(*to_, fs_, how, source, {});
  }

  std::string other_path(const PageKey& key) const { return to_->page_path(key); }

  std::unique_ptr<DiskTier> from_, to_;
  ExportReport exported_;
};

TEST_F(ArchiveTest, PagesAndManifestsArriveAsTheyWere) {
  const auto chain = put_chain(3);
  ASSERT_TRUE(from_->write_manifest(key_of(0), "manifest"));
  const Bytes archive = exported();
  EXPECT_EQ(exported_.n_pages, 3u);
  EXPECT_EQ(exported_.n_manifests, 1u);
  EXPECT_EQ(exported_.bytes, archive.size());

  const ImportReport report = import(archive);
  EXPECT_FALSE(report.error) << report.error->message;
  EXPECT_EQ(report.n_new, 3u);
  EXPECT_EQ(report.n_manifests, 1u);
  EXPECT_EQ(report.new_bytes, 3 * file_bytes(chain[0]));
  for (const TestPage& page : chain) EXPECT_EQ(get(*to_, page), GetOutcome::kHit);
  EXPECT_EQ(*to_->read_manifest(key_of(0)), "manifest");
}

TEST_F(ArchiveTest, WhatIsThereIsKnownAndWhatIsDamagedThereIsReplaced) {
  const auto chain = put_chain(3);
  const Bytes archive = exported();
  (void)import(archive);
  EXPECT_EQ(import(archive).n_known, 3u);

  Bytes damaged = read_bytes(other_path(chain[1].key));
  damaged.back() ^= 1;
  write_bytes(other_path(chain[1].key), damaged);
  const ImportReport report = import(archive);
  EXPECT_EQ(report.n_known, 2u);
  EXPECT_EQ(report.n_new, 1u);
  EXPECT_EQ(get(*to_, chain[1]), GetOutcome::kHit);
}

TEST_F(ArchiveTest, ADamagedPageIsLeftOutByExportAndStaysWhereItIs) {
  const auto chain = put_chain(3);
  Bytes damaged = read_bytes(path_of(chain[1].key));
  damaged[damaged.size() / 2] ^= 1;
  write_bytes(path_of(chain[1].key), damaged);
  const ImportReport report = import(exported());
  EXPECT_EQ(exported_.n_bad, 1u);
  ASSERT_EQ(exported_.bad.size(), 1u);
  EXPECT_EQ(exported_.bad[0].key, chain[1].key);
  EXPECT_EQ(report.n_new, 2u);
  EXPECT_EQ(read_bytes(path_of(chain[1].key)), damaged);
}

TEST_F(ArchiveTest, APageThatVanishedMeanwhileIsNoError) {
  const auto chain = put_chain(2);
  std::filesystem::remove(path_of(chain[1].key));
  const ImportReport report = import(exported());
  EXPECT_EQ(exported_.n_vanished, 1u);
  EXPECT_EQ(report.n_new, 1u);
  EXPECT_FALSE(report.error);
}

TEST_F(ArchiveTest, TheCapacityHoldsAndNothingIsEvictedForIt) {
  const auto chain = put_chain(4);
  const std::uint64_t page_bytes = file_bytes(chain[0]);
  const Bytes archive = exported();
  const ImportReport report = import(archive, 2 * page_bytes + page_bytes / 2);
  EXPECT_EQ(report.n_new, 2u);
  EXPECT_EQ(report.n_no_room, 2u);
  EXPECT_EQ(to_->stats().page_bytes, 2 * page_bytes);
  EXPECT_EQ(get(*to_, chain[0]), GetOutcome::kHit);  // the first ones: the others need them
  const ImportReport again = import(archive, page_bytes);
  EXPECT_EQ(again.n_known, 2u);
  EXPECT_EQ(again.n_no_room, 2u);
  EXPECT_EQ(to_->stats().n_pages, 2u);
}

TEST_F(ArchiveTest, AnyCutIsNoticedAndThePagesBeforeItAreKept) {
  put_chain(2);
  const Bytes archive = exported();
  for (std::size_t n = 0; n < archive.size(); n += 131) {
    const ImportReport report = import({archive.begin(), archive.begin() + static_cast<long>(n)});
    ASSERT_TRUE(report.error) << n;
    EXPECT_EQ(report.error->code, ErrorCode::kCorruption);
    EXPECT_LE(report.n_new + report.n_known, 2u);
  }
  EXPECT_TRUE(to_->verify()->bad.empty());
}

TEST_F(ArchiveTest, NoFlippedBitGetsAName) {
  const auto chain = put_chain(2);
  const Bytes archive = exported();
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    Bytes flipped = archive;
    flipped[random() % flipped.size()] ^= static_cast<std::uint8_t>(1u << random() % 8);
    const ImportReport report = import(flipped);
    // Of a page the keys are compared; a flip elsewhere shows in a record, or as a missing page.
    EXPECT_TRUE(report.error || report.n_bad + report.n_other_version > 0) << i;
    for (const TestPage& page : chain) {
      EXPECT_TRUE(!to_->contains(page.key) || get(*to_, page) == GetOutcome::kHit);
    }
    EXPECT_LE(to_->stats().n_pages, 2u);
    ASSERT_TRUE(to_->gc(0));
  }
}

TEST_F(ArchiveTest, ForgedPagesAreBad) {
  const auto chain = put_chain(1);
  TestPage forged = chain[0];
  forged.tokens[3] = 77;  // with checksums that fit, under the key of other tokens
  PageRecord record = forged.record();
  record.first_token = 0;
  Bytes image = *encode_page_header(record, 1);
  image.insert(image.end(), forged.payload.begin(), forged.payload.end());
  Bytes archive;
  const auto add = [&](const ArchiveRecord& what) {
    const auto bytes = encode_archive_record(what);
    archive.insert(archive.end(), bytes.begin(), bytes.end());
  };
  add({ArchiveKind::kPage, forged.key, image.size()});
  archive.insert(archive.end(), image.begin(), image.end());
  add({ArchiveKind::kEnd, {}, 1});
  const ImportReport report = import(archive);
  EXPECT_EQ(report.n_bad, 1u);
  EXPECT_EQ(report.n_new, 0u);
  EXPECT_FALSE(report.error);
  EXPECT_EQ(to_->stats().n_pages, 0u);
}

TEST_F(ArchiveTest, SizesThatNothingBacksTakeNoMemory) {
  for (const std::uint64_t size : {std::uint64_t{1} << 30, ~std::uint64_t{0}}) {
    for (const std::uint32_t kind : {1u, 2u, 9u}) {
      const auto bytes = encode_archive_record({static_cast<ArchiveKind>(kind), {}, size});
      const ImportReport report = import({bytes.begin(), bytes.end()});
      ASSERT_TRUE(report.error);
      EXPECT_EQ(report.error->code, ErrorCode::kCorruption);
    }
  }
}

TEST_F(ArchiveTest, AnotherVersionIsSaidToBeOne) {
  put_chain(1);
  Bytes archive = exported();
  archive[8] = 2;
  const ImportReport report = import(archive);
  ASSERT_TRUE(report.error);
  EXPECT_EQ(report.error->code, ErrorCode::kUnsupported);
}

TEST_F(ArchiveTest, PagesOfAnotherVersionArePassedOver) {
  put_chain(1);
  Bytes archive = exported();
  archive[kArchiveRecordBytes + 8] = 2;  // the page file's version
  const ImportReport report = import(archive);
  EXPECT_EQ(report.n_other_version, 1u);
  EXPECT_FALSE(report.error);
}

TEST_F(ArchiveTest, ManifestsOfRootsThatNoPageCameOfAreNotWritten) {
  Bytes archive;
  const auto add = [&](std::span<const std::uint8_t> bytes) {
    archive.insert(archive.end(), bytes.begin(), bytes.end());
  };
  const std::string_view text = "manifest";
  add(encode_archive_record({ArchiveKind::kManifest, key_of(0), text.size()}));
  add({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  add(encode_archive_record({ArchiveKind::kEnd, {}, 1}));
  const ImportReport report = import(archive);
  EXPECT_FALSE(report.error);
  EXPECT_FALSE(to_->read_manifest(key_of(0)));
}

TEST_F(ArchiveTest, ADiskThatIsFullEndsTheImportWithWhatCameByThen) {
  const auto chain = put_chain(2);
  const Bytes archive = exported();
  fail({"write"}, ENOSPC);
  const ImportReport report = import(archive);
  mend();
  ASSERT_TRUE(report.error);
  EXPECT_EQ(report.error->code, ErrorCode::kIo);
  EXPECT_EQ(report.n_new, 0u);
  EXPECT_FALSE(to_->contains(chain[0].key));
}

TEST_F(ArchiveTest, ProgressMayStopBoth) {
  put_chain(2);
  const Bytes archive = exported();
  const auto stop = [](std::uint64_t) { return false; };
  const auto sink = [](std::span<const std::uint8_t>) { return Status{}; };
  const auto report = export_pages(*from_, fs_, from_->list(), sink, stop);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
}

TEST_F(ArchiveTest, HitsAreCountedInTheFile) {
  const auto chain = put_chain(1);
  if (!from_->total_hits(chain[0].key)) GTEST_SKIP() << "no user attributes on this file system";
  EXPECT_EQ(*from_->total_hits(chain[0].key), 0u);
  EXPECT_EQ(get(*from_, chain[0]), GetOutcome::kHit);
  from_ = open_tier();  // another process
  EXPECT_EQ(get(*from_, chain[0]), GetOutcome::kHit);
  EXPECT_EQ(*from_->total_hits(chain[0].key), 2u);
}

class AtomicFileTest : public TierTest {
 protected:
  std::string path() const { return (scratch_ / "file").string(); }
  static constexpr std::array<std::uint8_t, 4> kContent = {1, 2, 3, 4};
};

TEST_F(AtomicFileTest, HasItsNameWhenItIsWholeAndLeavesNothingElse) {
  auto file = AtomicFile::create(fs_, path(), AtomicFile::Existing::kRefuse);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->write(kContent));
  EXPECT_FALSE(std::filesystem::exists(path()));
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(read_bytes(path()), Bytes(kContent.begin(), kContent.end()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch_), {}), 1);
}

TEST_F(AtomicFileTest, IsGoneWhenItFails) {
  for (const char* call : {"write", "sync", "rename"}) {
    auto file = AtomicFile::create(fs_, path(), AtomicFile::Existing::kRefuse);
    ASSERT_TRUE(file);
    fail({call}, EIO);
    EXPECT_FALSE(file->write(kContent) && file->commit()) << call;
    mend();
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch_));
}

TEST_F(AtomicFileTest, ReplacesOnlyWhatItMay) {
  write_bytes(path(), {9});
  EXPECT_EQ(AtomicFile::create(fs_, path(), AtomicFile::Existing::kRefuse).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(AtomicFile::create(fs_, scratch_.string(), AtomicFile::Existing::kReplace).error().code,
            ErrorCode::kInvalidArgument);
  {
    auto file = AtomicFile::create(fs_, path(), AtomicFile::Existing::kReplace);
    ASSERT_TRUE(file && file->write(kContent));
  }
  EXPECT_EQ(read_bytes(path()), Bytes{9});  // not committed
  auto file = AtomicFile::create(fs_, path(), AtomicFile::Existing::kReplace);
  ASSERT_TRUE(file && file->write(kContent) && file->commit());
  EXPECT_EQ(read_bytes(path()).size(), kContent.size());
}

}  // namespace
}  // namespace kvasir::cache
