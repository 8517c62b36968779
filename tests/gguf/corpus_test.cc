// The files of tests/data/gguf_malformed and the valid models of tests/data, through File.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "gguf/describe.h"
#include "gguf/file.h"

namespace kvasir::gguf {
namespace {

const std::filesystem::path kData = std::filesystem::path(KVASIR_SOURCE_DIR) / "tests" / "data";

/// The text value of `key` in one line of index.jsonl. The file is ours: flat, without escapes in
/// the fields read here.
std::string field(std::string_view line, std::string_view key) {
  const std::string start = fmt::format("\"{}\": \"", key);
  const std::size_t at = line.find(start);
  if (at == std::string_view::npos) return "";
  const std::size_t begin = at + start.size();
  return std::string(line.substr(begin, line.find('"', begin) - begin));
}

TEST(Corpus, EveryParserFileIsTreatedAsItsIndexSays) {
  std::ifstream index(kData / "gguf_malformed" / "index.jsonl");
  ASSERT_TRUE(index.is_open());
  int n_files = 0;
  for (std::string line; std::getline(index, line);) {
    if (field(line, "class") != "parser") continue;
    ++n_files;
    SCOPED_TRACE(line);
    const auto path = kData / "gguf_malformed" / field(line, "file");
    const Result<File> file = File::open(Env::posix(), path.string());
    const std::string expect = field(line, "expect");
    ASSERT_TRUE(expect == "accept" || expect == "reject" || expect == "either");
    if (expect == "accept") {
      EXPECT_TRUE(file.has_value()) << file.error().message;
    } else if (expect == "reject") {
      ASSERT_FALSE(file.has_value());
      EXPECT_EQ(file.error().code, ErrorCode::kInvalidModel) << file.error().message;
    }
    if (file) {
      EXPECT_FALSE(format_summary(describe(*file)).empty());
    }
  }
  EXPECT_EQ(n_files, 44);
}

TEST(Corpus, SemanticFilesAreWellFormedGguf) {
  int n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData / "gguf_malformed")) {
    const std::string name = entry.path().filename().string();
    if (name[0] != 's' || entry.path().extension() != ".gguf") continue;
    ++n_files;
    const Result<File> file = File::open(Env::posix(), entry.path().string());
    // What is wrong with them is for the rooms above to see.
    EXPECT_TRUE(file.has_value()) << (file ? "" : file.error().message);
  }
  EXPECT_EQ(n_files, 22);
}

TEST(Corpus, EveryValidModelOpens) {
  int n_files = 0;
  for (const char* folder : {"arch_vectors", "stories260k"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kData / folder)) {
      if (entry.path().extension() != ".gguf") continue;
      ++n_files;
      const Result<File> file = File::open(Env::posix(), entry.path().string());
      ASSERT_TRUE(file.has_value()) << file.error().message;
      EXPECT_GT(file->tensors().size(), 10u) << entry.path();
      ASSERT_NE(*file->get_array("tokenizer.ggml.tokens"), nullptr) << entry.path();
      EXPECT_EQ((*file->get_array("tokenizer.ggml.tokens"))->size(), 512u) << entry.path();
    }
  }
  EXPECT_EQ(n_files, 31);
}

TEST(Corpus, OpenNamesWhatIsNotThere) {
  const Result<File> file = File::open(Env::posix(), (kData / "absent.gguf").string());
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  const Result<File> directory = File::open(Env::posix(), kData.string());
  ASSERT_FALSE(directory.has_value());
  EXPECT_EQ(directory.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace kvasir::gguf
