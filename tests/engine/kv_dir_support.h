// A directory of pages that outlives engines, for tests that restart one or damage its files.
#pragma once

#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "engine/reuse_support.h"

namespace kvasir::engine::testing {

using Bytes = std::vector<std::uint8_t>;

inline Bytes read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::string& path, const Bytes& bytes) {
  std::filesystem::remove(path);  // ext4 flushes a file that is truncated and written anew
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

/// Removed in the end.
class KvDirectory {
 public:
  KvDirectory() {
    // mkdtemp puts something unique in the place of the six X.
    scratch_ = (std::filesystem::temp_directory_path() / "kvasir-kv-XXXXXX").string();
    EXPECT_NE(::mkdtemp(scratch_.data()), nullptr);
  }
  ~KvDirectory() {
    if (is_mounted_) ::umount2(scratch_.c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove_all(scratch_, ignored);
  }
  KvDirectory(const KvDirectory&) = delete;
  KvDirectory& operator=(const KvDirectory&) = delete;

  std::string path() const { return scratch_ + "/kv"; }

  /// Puts it on a file system of its own that has room for `size`, as in "300k". 0, or the errno:
  /// only root may, and not in every container.
  int mount_small(const std::string& size) {
    const std::string options = "size=" + size;
    if (::mount("none", scratch_.c_str(), "tmpfs", 0, options.c_str()) != 0) return errno;
    is_mounted_ = true;
    return 0;
  }
  /// Of a mounted one.
  int make_read_only() {
    const int flags = MS_REMOUNT | MS_RDONLY;
    return ::mount("none", scratch_.c_str(), "tmpfs", flags, nullptr) == 0 ? 0 : errno;
  }

  /// Regular files whose path has `part`, sorted.
  std::vector<std::string> files(const std::string& part = "") const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path())) {
      if (entry.is_regular_file() && entry.path().string().find(part) != std::string::npos) {
        found.push_back(entry.path().string());
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::vector<std::string> pages() const { return files(".kvp"); }

 private:
  std::string scratch_;
  bool is_mounted_ = false;
};

/// What is there is loaded: the models are so small that computing would be faster.
inline std::unique_ptr<Engine> load_on(const KvDirectory& directory, const std::string& file,
                                       EngineOptions options = {}) {
  options.kv_dir = directory.path();
  options.prefix_bytes = kPlenty;
  options.always_load = true;
  auto engine = load(file, options);
  EXPECT_FALSE(engine->kv_dir_error()) << engine->kv_dir_error()->message;
  return engine;
}

/// Waits until all that was published is in the directory.
inline void settle(Engine& engine) { EXPECT_TRUE(engine.cache().flush(60)); }

}  // namespace kvasir::engine::testing
