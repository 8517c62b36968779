// What the disk tier does about a disk that is full, read-only, gone, or that it may not use.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/tier_support.h"

namespace kvasir::cache {
namespace {

namespace fs = std::filesystem;

using DiskTierHealthTest = TierTest;

TEST_F(DiskTierHealthTest, AFullDiskDegradesKeepsServingAndIsTriedAgainAfterABackOff) {
  const auto tier = open_tier();
  ASSERT_TRUE(tier->put(page_of(1).record()));
  fail({"write"}, ENOSPC);
  EXPECT_EQ(tier->put(page_of(2).record()).error().code, ErrorCode::kIo);
  TierHealth health = tier->health();
  EXPECT_EQ(health.state, HealthState::kDegraded);
  EXPECT_NE(health.reason.find("No space left"), std::string::npos) << health.reason;
  EXPECT_DOUBLE_EQ(health.retry_seconds, 1);
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kHit);

  int n_calls = 0;
  fs_.before = [&](const std::string&, const std::string&) { return ++n_calls, 0; };
  EXPECT_FALSE(tier->put(page_of(2).record()));
  EXPECT_EQ(n_calls, 0) << "dropped without asking the disk";
  EXPECT_EQ(tier->stats().n_puts_dropped, 2u);

  fail({"write"}, ENOSPC);
  clock_.advance(1);
  EXPECT_FALSE(tier->put(page_of(2).record()));
  EXPECT_DOUBLE_EQ(tier->health().retry_seconds, 2) << "each attempt doubles the wait";
  for (int i = 0; i < 10; ++i) {
    clock_.advance(60);
    EXPECT_FALSE(tier->put(page_of(2).record()));
  }
  EXPECT_DOUBLE_EQ(tier->health().retry_seconds, 60) << "up to a minute";

  mend();
  clock_.advance(60);
  EXPECT_EQ(tier->health().state, HealthState::kDegraded) << "until it is known to work";
  EXPECT_TRUE(tier->put(page_of(2).record()));
  EXPECT_EQ(tier->health().state, HealthState::kUp);
  EXPECT_TRUE(tier->health().reason.empty());
  fail({"write"}, ENOSPC);
  EXPECT_FALSE(tier->put(page_of(3).record()));
  EXPECT_DOUBLE_EQ(tier->health().retry_seconds, 1);
}

TEST_F(DiskTierHealthTest, AReadOnlyDirectoryServesWhatItHas) {
  ASSERT_TRUE(open_tier()->put(page_of(1).record()));
  std::vector<std::uint8_t> bytes = read_bytes(path_of(key_of(1)));
  bytes.back() ^= 1;
  write_bytes(path_of(key_of(2)), bytes);  // damaged, and cannot be moved aside
  for (const int error : {EROFS, EACCES}) {
    fail({"create", "write", "rename", "remove", "make_directory", "touch"}, error);
    const auto tier = open_tier();
    ASSERT_NE(tier, nullptr);
    EXPECT_EQ(tier->health().state, HealthState::kUp) << "nothing has failed yet";
    EXPECT_FALSE(tier->put(page_of(3).record()));
    EXPECT_EQ(tier->health().state, HealthState::kDegraded);
    EXPECT_NE(tier->health().reason.find(error == EROFS ? "Read-only" : "Permission denied"),
              std::string::npos)
        << tier->health().reason;
    EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kHit);
    EXPECT_EQ(get(*tier, page_of(3)), GetOutcome::kMiss);
    EXPECT_EQ(get(*tier, page_of(2)), GetOutcome::kCorrupt);
    EXPECT_EQ(get(*tier, page_of(2)), GetOutcome::kCorrupt) << "and again";
    EXPECT_FALSE(tier->remove(key_of(1)));
    EXPECT_FALSE(tier->write_manifest(key_of(0), "x"));
    EXPECT_FALSE(tier->gc(0));
    EXPECT_EQ(tier->stats().other_bytes, bytes.size()) << "the damaged one takes its place";
    mend();
  }
}

TEST_F(DiskTierHealthTest, AVanishedDirectoryIsDownAndComesBackWithItsPages) {
  const auto tier = open_tier();
  for (std::uint64_t n = 1; n <= 3; ++n) ASSERT_TRUE(tier->put(page_of(n).record()));
  const std::string aside = (scratch_ / "aside").string();
  fs::rename(directory(), aside);  // unmounted
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kMiss);
  EXPECT_EQ(tier->health().state, HealthState::kDown);
  EXPECT_NE(tier->health().reason.find(directory()), std::string::npos);
  EXPECT_NE(tier->health().reason.find("No such file"), std::string::npos);
  EXPECT_FALSE(tier->contains(page_of(2).key));
  EXPECT_FALSE(tier->put(page_of(4).record()));
  EXPECT_FALSE(fs::exists(directory())) << "not made anew: the mount point is not ours to fill";
  EXPECT_TRUE(tier->list().empty());
  EXPECT_FALSE(tier->verify());
  EXPECT_FALSE(tier->refresh());
  clock_.advance(1);
  EXPECT_FALSE(tier->put(page_of(4).record()));
  EXPECT_FALSE(fs::exists(directory()));

  fs::rename(aside, directory());  // mounted again
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kMiss) << "not before the back-off";
  clock_.advance(2);
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kHit);
  EXPECT_TRUE(tier->put(page_of(4).record()));
  EXPECT_EQ(tier->health().state, HealthState::kUp);
  EXPECT_EQ(tier->list().size(), 4u) << "found again by the put";
  EXPECT_EQ(tier->stats().page_bytes, bytes_on_disk());
}

TEST_F(DiskTierHealthTest, ADirectoryThatVanishesUnderAPutIsDown) {
  const auto tier = open_tier();
  fs::remove_all(directory());
  EXPECT_FALSE(tier->put(page_of(1).record()));
  EXPECT_EQ(tier->health().state, HealthState::kDown);
  EXPECT_FALSE(fs::exists(directory()));
}

TEST_F(DiskTierHealthTest, ReadErrorsAreMissesAndThreeInARowTakeItDown) {
  const auto tier = open_tier();
  for (std::uint64_t n = 1; n <= 5; ++n) ASSERT_TRUE(tier->put(page_of(n).record()));
  fail({"read_at"}, EIO);
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kMiss);
  EXPECT_EQ(tier->health().state, HealthState::kDegraded);
  mend();
  EXPECT_EQ(get(*tier, page_of(2)), GetOutcome::kHit);
  EXPECT_EQ(tier->health().state, HealthState::kUp);
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kHit) << "an error of reading drops no page";

  fail({"read_at"}, EIO);
  for (std::uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(get(*tier, page_of(n)), GetOutcome::kMiss);
  EXPECT_EQ(tier->health().state, HealthState::kDown);
  EXPECT_NE(tier->health().reason.find("Input/output error"), std::string::npos);
  mend();
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kMiss) << "not tried";
  EXPECT_FALSE(tier->contains(key_of(1)));
  EXPECT_EQ(tier->stats().n_read_errors, 4u);
  clock_.advance(1);
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kHit);
  EXPECT_EQ(tier->health().state, HealthState::kUp);
}

TEST_F(DiskTierHealthTest, ARefreshThatFailedIsMadeUpForByTheNextPut) {
  const auto first = open_tier();
  const auto second = open_tier();
  for (std::uint64_t n = 1; n <= 2; ++n) ASSERT_TRUE(first->put(page_of(n).record()));
  fail({"list"}, EIO);
  EXPECT_EQ(second->refresh().error().code, ErrorCode::kIo);
  EXPECT_FALSE(second->put(page_of(3).record())) << "it cannot know whether there is room";
  EXPECT_EQ(second->health().state, HealthState::kDegraded);
  mend();
  clock_.advance(1);
  ASSERT_TRUE(second->put(page_of(3).record()));
  EXPECT_EQ(second->list().size(), 3u);
}

TEST_F(DiskTierHealthTest, APageThatCannotBeRemovedDoesNotBlockTheOthers) {
  const std::uint64_t size = encode_page_header(page_of(1).record(), 0)->size() + 3000;
  const auto tier = open_tier(2 * size);
  ASSERT_TRUE(tier->put(page_of(1).record()));
  ASSERT_TRUE(tier->put(page_of(2).record()));
  fs_.before = [stuck = path_of(key_of(1))](const std::string& call, const std::string& path) {
    return call == "remove" && path == stuck ? EPERM : 0;
  };
  EXPECT_FALSE(tier->put(page_of(3).record()));
  EXPECT_LE(bytes_on_disk(), 2 * size);
  clock_.advance(1);
  EXPECT_TRUE(tier->put(page_of(3).record())) << "in the place of page 2";
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kHit);
  EXPECT_LE(bytes_on_disk(), 2 * size);
}

TEST_F(DiskTierHealthTest, PermissionsOfTheRealFileSystem) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user takes root";
  // In a child, which gives up its rights.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    FileSystem& real = FileSystem::posix();
    int code = 0;
    fs::create_directory(directory());
    if (::chown(directory().c_str(), 65534, 65534) != 0) code |= 1;
    if (::chmod(scratch_.c_str(), 0755) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0) {
      code |= 2;
    }
    const auto tier = DiskTier::open(options(), real, clock_);
    if (!tier || !(*tier)->put(page_of(1).record())) ::_exit(code | 4);
    if (::chmod(path_of(key_of(1)).substr(0, directory().size() + 9).c_str(), 0500) != 0 ||
        ::chmod((directory() + "/pages").c_str(), 0500) != 0) {
      code |= 8;
    }
    if ((*tier)->put(page_of(2).record())) code |= 16;
    if ((*tier)->health().state != HealthState::kDegraded) code |= 32;
    if (get(**tier, page_of(1)) != GetOutcome::kHit) code |= 64;
    ::chmod(directory().c_str(), 0);
    if (get(**tier, page_of(1)) != GetOutcome::kMiss) code |= 128;
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "bits of the checks that failed";
}

}  // namespace
}  // namespace kvasir::cache
