// What the tests of the disk tier share: a folder, a clock, pages, and a file system that fails.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/tier/disk_tier.h"
#include "cache/tier/file_system.h"

namespace kvasir::cache {

/// Stands still until it is moved.
class FakeClock final : public Clock {
 public:
  double now_seconds() const override { return now_.load(); }
  void advance(double seconds) { now_ = now_ + seconds; }

 private:
  std::atomic<double> now_{1000};
};

/// The real file system, except for what a test makes of it. Syncs are counted, but not done.
class FaultyFileSystem final : public FileSystem {
 public:
  /// Before each call: its name and its path (empty where there is only a descriptor); not 0: the
  /// call is not made and fails with it. Set while no tier works.
  std::function<int(const std::string& call, const std::string& path)> before;
  /// The most bytes a write takes; 0: all.
  std::atomic<std::size_t> write_bytes_max{0};
  std::atomic<std::int64_t> clock_offset_ns{0};
  std::atomic<int> n_open{0};  ///< descriptors

  /// Every read from now on waits in the call.
  void block_reads() {
    const std::lock_guard lock(mutex_);
    blocked_ = true;
  }
  /// Returns when a read waits.
  void wait_for_blocked_read() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return n_blocked_ > 0; });
  }
  void release_reads() {
    {
      const std::lock_guard lock(mutex_);
      blocked_ = false;
    }
    changed_.notify_all();
  }

  IoResult<OpenedFile> open_read(const std::string& path) override {
    if (const int error = ask("open_read", path)) return {.value = {}, .error = error};
    return counted(real_.open_read(path));
  }
  IoResult<int> create(const std::string& path) override {
    if (const int error = ask("create", path)) return {.value = -1, .error = error};
    return counted(real_.create(path));
  }
  IoResult<std::size_t> read_at(int fd, std::uint64_t offset,
                                std::span<std::uint8_t> out) override {
    {
      std::unique_lock lock(mutex_);
      ++n_blocked_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !blocked_; });
      --n_blocked_;
    }
    if (const int error = ask("read_at", "")) return {.value = 0, .error = error};
    return real_.read_at(fd, offset, out);
  }
  IoResult<std::size_t> write(int fd, std::span<const std::uint8_t> bytes) override {
    if (const int error = ask("write", "")) return {.value = 0, .error = error};
    const std::size_t max = write_bytes_max;
    return real_.write(fd, max == 0 ? bytes : bytes.first(std::min(max, bytes.size())));
  }
  IoStatus sync(int) override { return {.error = ask("sync", "")}; }
  void close(int fd) override {
    real_.close(fd);
    --n_open;
  }
  IoStatus rename(const std::string& from, const std::string& to) override {
    if (const int error = ask("rename", to)) return {.error = error};
    return real_.rename(from, to);
  }
  IoStatus remove(const std::string& path) override {
    if (const int error = ask("remove", path)) return {.error = error};
    return real_.remove(path);
  }
  IoStatus make_directory(const std::string& path) override {
    if (const int error = ask("make_directory", path)) return {.error = error};
    return real_.make_directory(path);
  }
  IoResult<std::vector<std::string>> list(const std::string& path) override {
    if (const int error = ask("list", path)) return {.value = {}, .error = error};
    return real_.list(path);
  }
  IoResult<FileInfo> stat(const std::string& path) override {
    if (const int error = ask("stat", path)) return {.value = {}, .error = error};
    return real_.stat(path);
  }
  IoStatus touch(const std::string& path) override {
    if (const int error = ask("touch", path)) return {.error = error};
    return real_.touch(path);
  }
  IoStatus count_use(const std::string& path) override {
    if (const int error = ask("count_use", path)) return {.error = error};
    return real_.count_use(path);
  }
  IoResult<std::uint64_t> use_count(const std::string& path) override {
    if (const int error = ask("use_count", path)) return {.value = 0, .error = error};
    return real_.use_count(path);
  }
  std::int64_t now_ns() override { return real_.now_ns() + clock_offset_ns; }
  std::uint32_t user() override { return real_.user(); }

 private:
  template <class T>
  IoResult<T> counted(IoResult<T> opened) {
    if (opened.ok()) ++n_open;
    return opened;
  }
  int ask(const char* call, const std::string& path) { return before ? before(call, path) : 0; }

  FileSystem& real_ = FileSystem::posix();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool blocked_ = false;
  int n_blocked_ = 0;
};

/// A page with everything it needs; the same number gives the same page.
struct TestPage {
  PageKey key;
  PageKey parent;
  PageKey root;
  std::vector<TokenId> tokens;
  std::string description = "f16 f16, 2 layers";
  std::vector<std::uint8_t> payload;

  PageRecord record() const {
    return {.key = key,
            .parent = parent,
            .root = root,
            .first_token = 64,
            .tokens = tokens,
            .description = description,
            .payload = payload};
  }
};

inline std::vector<TokenId> tokens_of(std::uint64_t n) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 16; ++i) tokens.push_back(static_cast<TokenId>(n * 100) + i);
  return tokens;
}

/// 0: the root, which all test pages follow.
inline PageKey key_of(std::uint64_t n) {
  return n == 0 ? root_key(KeyScope()) : next_key(key_of(0), tokens_of(n));
}

inline TestPage page_of(std::uint64_t n, std::size_t payload_bytes = 3000) {
  TestPage page;
  page.key = key_of(n);
  page.root = key_of(0);
  page.parent = page.root;
  page.tokens = tokens_of(n);
  page.payload.resize(payload_bytes);
  for (std::size_t i = 0; i < payload_bytes; ++i) {
    page.payload[i] = static_cast<std::uint8_t>(i * 7 + i / 256 + n * 31);
  }
  return page;
}

/// A folder of its own for each test, removed afterwards.
class TierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // mkdtemp puts something unique in the place of the six X.
    std::string name = (std::filesystem::temp_directory_path() / "kvasir-tier-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    scratch_ = name;
  }
  void TearDown() override {
    EXPECT_EQ(fs_.n_open, 0) << "descriptors left open";
    std::error_code ignored;
    std::filesystem::remove_all(scratch_, ignored);
  }

  std::string directory() const { return (scratch_ / "tier").string(); }
  DiskTierOptions options(std::uint64_t capacity_bytes = 1 << 30) const {
    return {.directory = directory(), .capacity_bytes = capacity_bytes, .back_off = {}};
  }
  std::unique_ptr<DiskTier> open_tier(std::uint64_t capacity_bytes = 1 << 30) {
    auto tier = DiskTier::open(options(capacity_bytes), fs_, clock_);
    EXPECT_TRUE(tier) << (tier ? "" : tier.error().message);
    return tier ? std::move(*tier) : nullptr;
  }

  /// Checks that a hit has the page's bytes.
  static GetOutcome get(DiskTier& tier, const TestPage& page) {
    std::vector<std::uint8_t> out(page.payload.size(), 0xee);
    const GetOutcome outcome = tier.get(page.key, page.tokens, out);
    if (outcome == GetOutcome::kHit) {
      EXPECT_EQ(out, page.payload) << "a wrong payload";
    }
    return outcome;
  }

  static std::uint64_t file_bytes(const TestPage& page) { return *page_file_bytes(page.record()); }
  /// Least recently used first.
  static std::vector<PageKey> keys(const DiskTier& tier) {
    std::vector<PageKey> found;
    for (const PageInfo& info : tier.list()) found.push_back(info.key);
    return found;
  }
  /// Makes a file older.
  static void age(const std::string& path, int seconds) {
    const auto time = std::filesystem::last_write_time(path);
    std::filesystem::last_write_time(path, time - std::chrono::seconds(seconds));
  }
  /// All calls of these names fail from now on.
  void fail(std::vector<std::string> calls, int error) {
    fs_.before = [calls = std::move(calls), error](const std::string& call, const std::string&) {
      return std::find(calls.begin(), calls.end(), call) != calls.end() ? error : 0;
    };
  }
  void mend() { fs_.before = nullptr; }

  std::string path_of(const PageKey& key) const {
    const std::string hex = key.to_hex();
    return directory() + "/pages/" + hex.substr(0, 2) + "/" + hex.substr(2) + ".kvp";
  }
  static std::vector<std::uint8_t> read_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static void write_bytes(const std::string& path, const std::vector<std::uint8_t>& bytes) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::filesystem::remove(path);  // ext4 flushes a file that is truncated and written anew
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  /// Regular files below the tier's directory whose path has `part`.
  std::vector<std::string> files(const std::string& part = "") const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory())) {
      if (entry.is_regular_file() && entry.path().string().find(part) != std::string::npos) {
        found.push_back(entry.path().string());
      }
    }
    return found;
  }
  std::uint64_t bytes_on_disk() const {
    std::uint64_t sum = 0;
    for (const std::string& path : files()) sum += std::filesystem::file_size(path);
    return sum;
  }

  FakeClock clock_;
  FaultyFileSystem fs_;
  std::filesystem::path scratch_;
};

}  // namespace kvasir::cache
