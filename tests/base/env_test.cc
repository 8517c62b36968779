#include "base/env.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace kvasir {
namespace {

namespace fs = std::filesystem;

/// A folder of its own for each test, removed afterwards.
class EnvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "kvasir-env-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  void put(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }
  std::string get(const std::string& name) const {
    const auto content = env_.read_file(path(name), 1 << 20);
    return content ? *content : "(" + content.error().message + ")";
  }
  std::size_t n_files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }
  static std::span<const std::uint8_t> bytes(std::string_view text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
  }

  Env& env_ = Env::posix();
  fs::path directory_;
};

TEST_F(EnvTest, ReadsAFileUpToTheLimit) {
  put("a", std::string(100000, 'x'));
  EXPECT_EQ(env_.read_file(path("a"), 100000)->size(), 100000u);
  const auto too_large = env_.read_file(path("a"), 99999);
  ASSERT_FALSE(too_large);
  EXPECT_EQ(too_large.error().code, ErrorCode::kExhausted);
  EXPECT_NE(too_large.error().message.find("99999"), std::string::npos);
}

TEST_F(EnvTest, ReadsAnEmptyFileAtLimitZero) {
  put("empty", "");
  EXPECT_EQ(*env_.read_file(path("empty"), 0), "");
}

TEST_F(EnvTest, RefusesToReadWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);  // nobody will ever write into it
  for (const auto& [what, got] : {std::pair{path("pipe"), "a named pipe"},
                                  {directory_.string(), "a directory"},
                                  {std::string("/dev/zero"), "a device"}}) {
    const auto content = env_.read_file(what, 1 << 20);
    ASSERT_FALSE(content) << what;
    EXPECT_EQ(content.error().code, ErrorCode::kIo);
    EXPECT_NE(content.error().message.find(what + ": cannot read; got " + got), std::string::npos)
        << content.error().message;
  }
}

/// Of these the kernel says that they have no bytes.
TEST_F(EnvTest, ReadsFilesOfTheKernel) {
  const auto limits = env_.read_file("/proc/self/limits", 1 << 20);
  ASSERT_TRUE(limits) << limits.error().message;
  EXPECT_FALSE(limits->empty());
}

TEST_F(EnvTest, ErrorsNameThePathAndTellMissingFromRefused) {
  const auto missing = env_.read_file(path("missing"), 10);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find(path("missing")), std::string::npos);
  EXPECT_EQ(env_.read_file(directory_.string(), 10).error().code, ErrorCode::kIo);
}

TEST_F(EnvTest, MapsTheBytesOfAFile) {
  put("a", "hello");
  const auto mapping = env_.map_file(path("a"));
  ASSERT_TRUE(mapping) << mapping.error().message;
  const auto got = (*mapping)->bytes();
  EXPECT_EQ(std::string(got.begin(), got.end()), "hello");
}

TEST_F(EnvTest, MapsAnEmptyFileToNoBytes) {
  put("empty", "");
  const auto mapping = env_.map_file(path("empty"));
  ASSERT_TRUE(mapping) << mapping.error().message;
  EXPECT_TRUE((*mapping)->bytes().empty());
  (*mapping)->drop(0, 100);
}

TEST_F(EnvTest, RefusesToMapWhatIsNoRegularFile) {
  EXPECT_EQ(env_.map_file(path("missing")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(env_.map_file(directory_.string()).error().code, ErrorCode::kIo);
  EXPECT_EQ(env_.map_file("/dev/null").error().code, ErrorCode::kIo);
}

TEST_F(EnvTest, MappingANamedPipeFailsInsteadOfWaitingForAWriter) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(env_.map_file(path("pipe")).error().code, ErrorCode::kIo);
}

TEST_F(EnvTest, DroppedBytesReadTheSameAgain) {
  std::string content;
  for (int i = 0; i < 40000; ++i) content += static_cast<char>('a' + i % 26);
  put("a", content);
  const auto mapping = env_.map_file(path("a"));
  ASSERT_TRUE(mapping) << mapping.error().message;
  const std::uint64_t max = ~std::uint64_t{0};
  const std::pair<std::uint64_t, std::uint64_t> ranges[] = {
      {0, 40000}, {1, 8191}, {4096, 4096}, {39999, 1}, {50000, 10}, {0, max}, {max, max}, {max, 1}};
  for (const auto& [offset, size] : ranges) (*mapping)->drop(offset, size);
  const auto got = (*mapping)->bytes();
  EXPECT_EQ(std::string(got.begin(), got.end()), content);
}

TEST_F(EnvTest, AMappingOutlivesTheName) {
  put("a", "still here");
  const auto mapping = env_.map_file(path("a"));
  ASSERT_TRUE(mapping) << mapping.error().message;
  fs::remove(path("a"));
  EXPECT_EQ((*mapping)->bytes().size(), 10u);
}

TEST_F(EnvTest, AtomicWriteCreatesAndReplaces) {
  ASSERT_TRUE(env_.write_file_atomic(path("a"), bytes("one")));
  EXPECT_EQ(get("a"), "one");
  ASSERT_TRUE(env_.write_file_atomic(path("a"), bytes("")));
  EXPECT_EQ(get("a"), "");
  EXPECT_EQ(n_files(), 1u) << "a temporary file was left behind";
}

TEST_F(EnvTest, AtomicWriteObeysTheUmask) {
  ASSERT_TRUE(env_.write_file_atomic(path("a"), bytes("x")));
  put("b", "made by the library's own open");
  struct stat a {
  }, b{};
  ASSERT_EQ(::stat(path("a").c_str(), &a), 0);
  ASSERT_EQ(::stat(path("b").c_str(), &b), 0);
  EXPECT_EQ(a.st_mode, b.st_mode);
}

TEST_F(EnvTest, AFailedAtomicWriteLeavesEverythingAsItWas) {
  // The target is a folder with something in it: the last step, the rename, fails.
  fs::create_directory(path("taken"));
  put("taken/inner", "old");
  const Status status = env_.write_file_atomic(path("taken"), bytes("new"));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_EQ(get("taken/inner"), "old");
  EXPECT_EQ(n_files(), 1u) << "a temporary file was left behind";
}

TEST_F(EnvTest, AtomicWriteIntoAMissingFolderFails) {
  const Status status = env_.write_file_atomic(path("no/such/folder/a"), bytes("x"));
  ASSERT_FALSE(status);
  EXPECT_EQ(n_files(), 0u);
}

TEST_F(EnvTest, AnOpenReaderKeepsTheOldContentWhole) {
  ASSERT_TRUE(env_.write_file_atomic(path("a"), bytes("old content")));
  const auto mapping = env_.map_file(path("a"));
  ASSERT_TRUE(mapping) << mapping.error().message;
  ASSERT_TRUE(env_.write_file_atomic(path("a"), bytes("n")));
  const auto got = (*mapping)->bytes();
  EXPECT_EQ(std::string(got.begin(), got.end()), "old content");
}

TEST_F(EnvTest, AStaleTemporaryFileIsNoObstacle) {
  put("a.tmp-" + std::to_string(::getpid()) + "-0", "left by a killed process of the same id");
  ASSERT_TRUE(env_.write_file_atomic(path("a"), bytes("new")));
  EXPECT_EQ(get("a"), "new");
}

TEST_F(EnvTest, AFullDeviceIsAnErrorAndKeepsTheOldFile) {
  // A file size limit stands in for a full disk; the child inherits nothing else of ours.
  put("a", "old");
  EXPECT_EXIT(
      {
        struct rlimit limit {};
        limit.rlim_cur = limit.rlim_max = 4096;
        ::signal(SIGXFSZ, SIG_IGN);
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const std::string large(100000, 'n');
        const Status status = env_.write_file_atomic(path("a"), bytes(large));
        const bool kept =
            !status && status.error().code == ErrorCode::kIo && get("a") == "old" && n_files() == 1;
        std::_Exit(kept ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace kvasir
