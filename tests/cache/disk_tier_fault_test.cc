// The disk tier on a file system that fails, hangs or goes away, and in a process that is killed.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "cache/tier_support.h"
#include "support/long_tests.h"

namespace kvasir::cache {
namespace {

namespace fs = std::filesystem;

class DiskTierFaultTest : public TierTest {
 protected:
  /// A life of a tier: everything that touches the disk, a damaged page included.
  void live() {
    const auto tier = DiskTier::open(options(12000), fs_, clock_);
    if (!tier) return;
    for (std::uint64_t n = 1; n <= 5; ++n) {
      (void)(*tier)->put(page_of(n).record());
      // A call that says that a file is not there, though it is, can hide it from the count.
      if (!lying_) {
        EXPECT_LE(bytes_on_disk(), 12000u);
      }
      clock_.advance(1000);  // past every back-off
    }
    (void)(*tier)->write_manifest(key_of(0), "scope");
    for (std::uint64_t n = 2; n <= 5; ++n) (void)get(**tier, page_of(n));
    if (fs::exists(path_of(key_of(5)))) {
      std::vector<std::uint8_t> bytes = read_bytes(path_of(key_of(5)));
      bytes.back() ^= 1;
      write_bytes(path_of(key_of(5)), bytes);
      EXPECT_NE(get(**tier, page_of(5)), GetOutcome::kHit);
    }
    (void)(*tier)->remove(key_of(4));
    (void)(*tier)->refresh();
    (void)(*tier)->gc(4000);
  }

  /// After whatever happened: every page is there whole or not at all.
  void expect_consistent(const std::string& what) {
    mend();
    fs_.write_bytes_max = 0;
    const auto tier = open_tier();
    ASSERT_NE(tier, nullptr) << what;
    for (const std::string& path : files(".tmp-")) ADD_FAILURE() << what << ": left " << path;
    const auto report = tier->verify();
    ASSERT_TRUE(report) << what;
    // The one damaged by the test itself may be where it was, if it could not be moved.
    for (const auto& bad : report->bad) EXPECT_EQ(bad.path, path_of(key_of(5))) << what;
    for (std::uint64_t n = 1; n <= 5; ++n) {
      const bool is_here = fs::exists(path_of(key_of(n)));
      const GetOutcome outcome = get(*tier, page_of(n));
      if (n != 5) {
        EXPECT_EQ(outcome, is_here ? GetOutcome::kHit : GetOutcome::kMiss) << what;
      }
    }
    const auto manifest = tier->read_manifest(key_of(0));
    if (manifest) {
      EXPECT_EQ(*manifest, "scope") << what;
    }
    for (std::uint64_t n = 1; n <= 5; ++n) EXPECT_TRUE(tier->put(page_of(n).record())) << what;
    EXPECT_EQ(tier->health().state, HealthState::kUp) << what;
  }

  int count_calls() {
    int n_calls = 0;
    fs_.before = [&](const std::string&, const std::string&) { return ++n_calls, 0; };
    live();
    fs::remove_all(directory());
    return n_calls;
  }

  bool lying_ = false;  ///< the file system says ENOENT of what is there
};

TEST_F(DiskTierFaultTest, OneFailureOfAnyCallLeavesTheDirectoryConsistent) {
  const int n_calls = count_calls();
  ASSERT_GT(n_calls, 80);
  for (const int error : {ENOSPC, EIO, ENOENT}) {
    lying_ = error == ENOENT;
    for (int n = 1; n <= n_calls; ++n) {
      int i = 0;
      std::string failed;
      fs_.before = [&](const std::string& call, const std::string&) {
        if (++i != n) return 0;
        failed = call;
        return error;
      };
      live();
      expect_consistent("call " + std::to_string(n) + " (" + failed + ") failed with " +
                        std::to_string(error));
      fs::remove_all(directory());
      if (HasFailure()) return;
    }
  }
}

TEST_F(DiskTierFaultTest, AShortWriteAnywhereGoesOnWhereItEnded) {
  for (const std::size_t max : {1u, 7u, 448u, 1000u}) {
    fs_.write_bytes_max = max;
    const auto tier = open_tier();
    ASSERT_TRUE(tier->put(page_of(1).record()));
    EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kHit) << max;
    ASSERT_TRUE(tier->remove(key_of(1)));
  }
}

TEST_F(DiskTierFaultTest, AShortWriteThenNoSpaceLeavesNothing) {
  fs_.write_bytes_max = 500;
  for (int n = 1; n <= 8; ++n) {
    int i = 0;
    fs_.before = [&](const std::string& call, const std::string&) {
      return call == "write" && ++i >= n ? ENOSPC : 0;
    };
    const auto tier = open_tier();
    const Status status = tier->put(page_of(1).record());
    if (n <= 7) {
      ASSERT_FALSE(status) << n;
      EXPECT_TRUE(files().empty()) << n;
    } else {
      EXPECT_TRUE(status) << "seven writes do";
    }
  }
}

TEST_F(DiskTierFaultTest, ADiskThatDiesAtAnyCallLeavesWholePages) {
  const int n_calls = count_calls();
  for (int n = 1; n <= n_calls; ++n) {
    int i = 0;
    fs_.before = [&](const std::string&, const std::string&) { return ++i >= n ? EIO : 0; };
    live();
    // A process that dies there leaves its temporary file, which is swept when it is old.
    fs_.clock_offset_ns = std::int64_t{7200} * 1'000'000'000;
    expect_consistent("all calls from " + std::to_string(n) + " on failed");
    fs_.clock_offset_ns = 0;
    fs::remove_all(directory());
    if (HasFailure()) return;
  }
}

TEST_F(DiskTierFaultTest, TheContentIsOnTheDeviceBeforeTheNameIs) {
  const auto tier = open_tier();
  ASSERT_TRUE(tier->put(page_of(2).record()));
  std::vector<std::string> calls;
  fs_.before = [&](const std::string& call, const std::string&) {
    if (call != "stat") calls.push_back(call);
    return 0;
  };
  TestPage page = page_of(1);
  page.key = page_of(2).key;
  page.key.bytes[31] ^= 1;  // the folder is there
  ASSERT_TRUE(tier->put(page.record()));
  EXPECT_EQ(calls,
            (std::vector<std::string>{"open_read", "create", "write", "write", "sync", "rename"}));
}

TEST_F(DiskTierFaultTest, AKilledWriterLeavesWholePages) {
  const int n_kills = kvasir::testing::count_of("kills", 40, 200);
  std::mt19937 random(11);
  std::size_t n_pages = 0;
  for (int i = 0; i < n_kills; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it ends on no other account
      const SteadyClock clock;
      const auto tier = DiskTier::open(options(3'000'000), FileSystem::posix(), clock);
      if (!tier) ::_exit(1);
      for (std::uint64_t n = 1;; ++n) {
        (void)(*tier)->put(page_of(static_cast<std::uint64_t>(i) * 1000 + n, 60000).record());
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 20000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it could not open the tier";

    const auto tier = open_tier(3'000'000);
    ASSERT_NE(tier, nullptr);
    const auto report = tier->verify();
    ASSERT_TRUE(report);
    EXPECT_EQ(report->n_pages, tier->list().size());
    for (const auto& bad : report->bad) ADD_FAILURE() << bad.path << ": " << bad.reason;
    EXPECT_TRUE(report->quarantined.empty());
    n_pages = std::max(n_pages, tier->list().size());
  }
  EXPECT_GT(n_pages, 0u) << "no child came to write a page: the test has shown nothing";
  fs_.clock_offset_ns = std::int64_t{7200} * 1'000'000'000;
  { const auto tier = open_tier(3'000'000); }
  EXPECT_TRUE(files(".tmp-").empty());
}

}  // namespace
}  // namespace kvasir::cache
