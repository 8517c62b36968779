// Feeds files to a fuzz target without a fuzzer, so that every compiler can replay a corpus.
//
// usage: NAME_fuzz_replay FILE_OR_DIRECTORY...   exit 0: all were read and none crashed; 2: usage,
// or something could not be read
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

bool collect(const fs::path& path, std::vector<fs::path>* files) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    files->push_back(path);
    return true;
  }
  fs::recursive_directory_iterator at(path, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (at->is_regular_file(error)) files->push_back(at->path());
  }
  if (error) std::fprintf(stderr, "%s: %s\n", path.c_str(), error.message().c_str());
  return !error;
}

bool replay(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream.is_open()) {
    std::fprintf(stderr, "%s: cannot open\n", path.c_str());
    return false;
  }
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  // A buffer of exactly the file's size: one byte too far is then seen by a sanitizer.
  const auto bytes = std::make_unique<std::uint8_t[]>(content.size());
  std::memcpy(bytes.get(), content.data(), content.size());
  std::fprintf(stderr, "%s (%zu B)\n", path.c_str(), content.size());
  (void)LLVMFuzzerTestOneInput(bytes.get(), content.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  bool all_read = argc > 1;
  for (int i = 1; i < argc; ++i) all_read = collect(argv[i], &files) && all_read;
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) all_read = replay(file) && all_read;
  std::fprintf(stderr, "replayed %zu files\n", files.size());
  return all_read && !files.empty() ? 0 : 2;
}
