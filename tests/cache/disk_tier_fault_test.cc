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

namespace kvasir::cache {
namespace {

namespace fs = std::filesystem;

class DiskTierFaultTest : public TierTest {
 protected:
  /// All calls of these names fail from now on.
  void fail(std::vector<std::string> calls, int error) {
    fs_.before = [calls = std::move(calls), error](const std::string& call, const std::string&) {
      return std::find(calls.begin(), calls.end(), call) != calls.end() ? error : 0;
    };
  }
  void mend() { fs_.before = nullptr; }

  /// A life of a tier: everything that touches the disk, with two versions of a damaged page.
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
  for (const int error : {ENOSPC, EIO, EROFS, EACCES, ENOENT}) {
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

TEST_F(DiskTierFaultTest, AFullDiskDegradesKeepsServingAndIsTriedAgainAfterABackOff) {
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

TEST_F(DiskTierFaultTest, AReadOnlyDirectoryServesWhatItHas) {
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

TEST_F(DiskTierFaultTest, AVanishedDirectoryIsDownAndComesBackWithItsPages) {
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

TEST_F(DiskTierFaultTest, ADirectoryThatVanishesUnderAPutIsDown) {
  const auto tier = open_tier();
  fs::remove_all(directory());
  EXPECT_FALSE(tier->put(page_of(1).record()));
  EXPECT_EQ(tier->health().state, HealthState::kDown);
  EXPECT_FALSE(fs::exists(directory()));
}

TEST_F(DiskTierFaultTest, ReadErrorsAreMissesAndThreeInARowTakeItDown) {
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

TEST_F(DiskTierFaultTest, ARefreshThatFailedIsMadeUpForByTheNextPut) {
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

TEST_F(DiskTierFaultTest, APageThatCannotBeRemovedDoesNotBlockTheOthers) {
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

TEST_F(DiskTierFaultTest, PermissionsOfTheRealFileSystem) {
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

TEST_F(DiskTierFaultTest, GetManyReturnsByTheDeadlineThoughTheDiskHangs) {
  const auto tier = open_tier();
  std::vector<TestPage> pages;
  std::vector<std::vector<std::uint8_t>> outs;
  std::vector<GetRequest> requests;
  for (std::uint64_t n = 1; n <= 10; ++n) {
    pages.push_back(page_of(n));
    ASSERT_TRUE(tier->put(pages.back().record()));
    outs.emplace_back(pages.back().payload.size(), 0xee);
  }
  for (std::size_t i = 0; i < pages.size(); ++i) {
    requests.push_back({.key = pages[i].key, .tokens = pages[i].tokens, .out = outs[i]});
  }
  fs_.block_reads();
  std::atomic<bool> returned{false};
  std::thread mover([&] {
    // The deadline comes by this clock alone, and the reads end only after the call has.
    while (!returned) {
      clock_.advance(0.01);
      std::this_thread::yield();
    }
  });
  tier->get_many(requests, 5);
  returned = true;
  mover.join();
  for (const GetRequest& request : requests) EXPECT_EQ(request.outcome, GetOutcome::kMiss);
  EXPECT_EQ(tier->stats().n_late, 10u);
  EXPECT_EQ(tier->stats().n_misses, 10u);
  EXPECT_EQ(tier->health().state, HealthState::kDegraded);
  fs_.release_reads();
  // All threads are through with the late ones when these are read; they touched nothing of ours.
  std::vector<std::vector<std::uint8_t>> later(outs.size(), std::vector<std::uint8_t>(3000));
  for (std::size_t i = 0; i < pages.size(); ++i) requests[i].out = later[i];
  tier->get_many(requests, 1e9);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(requests[i].outcome, GetOutcome::kHit) << i;
    EXPECT_EQ(later[i], pages[i].payload) << i;
    EXPECT_EQ(outs[i], std::vector<std::uint8_t>(3000, 0xee)) << "written to after the return";
  }
  EXPECT_EQ(tier->health().state, HealthState::kUp);
}

TEST_F(DiskTierFaultTest, ADiskThatHangsThreeTimesIsLeftAlone) {
  DiskTierOptions patient = options();
  patient.back_off = {.first_seconds = 1e9, .max_seconds = 1e9};  // the clock runs fast here
  const auto tier = std::move(*DiskTier::open(patient, fs_, clock_));
  const TestPage page = page_of(1);
  ASSERT_TRUE(tier->put(page.record()));
  fs_.block_reads();
  std::vector<std::uint8_t> out(page.payload.size());
  std::vector<GetRequest> requests = {{.key = page.key, .tokens = page.tokens, .out = out}};
  std::atomic<bool> stopping{false};
  std::thread mover([&] {
    while (!stopping) {
      clock_.advance(0.001);
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 3; ++i) tier->get_many(requests, 0.01);
  stopping = true;
  mover.join();
  EXPECT_EQ(tier->health().state, HealthState::kDown);
  EXPECT_NE(tier->health().reason.find("late"), std::string::npos) << tier->health().reason;
  tier->get_many(requests, 1e9);  // would wait for ever
  EXPECT_EQ(requests[0].outcome, GetOutcome::kMiss);
  EXPECT_EQ(tier->stats().n_late, 3u);
  fs_.release_reads();
}

TEST_F(DiskTierFaultTest, ADeadlineThatIsOverReadsNothing) {
  const auto tier = open_tier();
  const TestPage page = page_of(1);
  ASSERT_TRUE(tier->put(page.record()));
  int n_calls = 0;
  fs_.before = [&](const std::string&, const std::string&) { return ++n_calls, 0; };
  std::vector<std::uint8_t> out(page.payload.size());
  std::vector<GetRequest> requests = {{.key = page.key, .tokens = page.tokens, .out = out}};
  for (const double seconds : {0.0, -1.0, std::nan("")}) {
    requests[0].outcome = GetOutcome::kHit;
    tier->get_many(requests, seconds);
    EXPECT_EQ(requests[0].outcome, GetOutcome::kMiss);
  }
  EXPECT_EQ(n_calls, 0);
  EXPECT_EQ(tier->health().state, HealthState::kUp);
}

TEST_F(DiskTierFaultTest, APutThatHangsHoldsUpNoGet) {
  const auto tier = open_tier();
  ASSERT_TRUE(tier->put(page_of(1).record()));
  std::mutex mutex;
  std::condition_variable changed;
  bool is_in_sync = false, may_go_on = false;
  fs_.before = [&](const std::string& call, const std::string&) {
    if (call != "sync") return 0;
    std::unique_lock lock(mutex);
    is_in_sync = true;
    changed.notify_all();
    changed.wait(lock, [&] { return may_go_on; });
    return 0;
  };
  std::thread writer([&] { EXPECT_TRUE(tier->put(page_of(2).record())); });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_in_sync; });
  }
  EXPECT_EQ(get(*tier, page_of(1)), GetOutcome::kHit);  // I5: returns at all
  EXPECT_TRUE(tier->contains(key_of(1)));
  EXPECT_EQ(tier->list().size(), 1u);
  {
    const std::lock_guard lock(mutex);
    may_go_on = true;
  }
  changed.notify_all();
  writer.join();
}

/// KVASIR_TIER_KILLS: how many times; 40 unless set.
TEST_F(DiskTierFaultTest, AKilledWriterLeavesWholePages) {
  const char* text = std::getenv("KVASIR_TIER_KILLS");
  const int n_kills = text != nullptr ? std::atoi(text) : 40;
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
