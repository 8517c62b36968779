// Where a disk tier's files lie, and how one gets there whole; internal.
//
//   DIR/pages/ab/cdef....kvp   a page; the folder is the first byte of its key, the name the others
//   DIR/pages/ab/.tmp-PID-N    being written; also in DIR/roots
//   DIR/roots/HEX              a root's manifest: the caller's text
//   DIR/bad/HEX-PID-N.kvp      was no page file, or is damaged
//
// DIR itself is made once, by make_root: a directory that vanishes later may be a file system that
// is no longer mounted, and its mount point is not for us to fill.
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cache/prefix/page_key.h"
#include "cache/tier/file_system.h"

namespace kvasir::cache {

/// "cannot ACTION; REASON"; kNotFound for ENOENT, else kIo.
Error io_error(std::string_view path, std::string_view action, int error);

class TierDirectory {
 public:
  struct PageFile {
    PageKey key;  ///< by its name
    std::string path;
  };
  struct Listing {
    std::vector<PageFile> pages;
    std::vector<std::string> bad;          ///< paths
    std::vector<std::string> temporaries;  ///< paths
  };

  TierDirectory(std::string path, FileSystem& fs) : path_(std::move(path)), fs_(fs) {}

  const std::string& path() const { return path_; }
  std::string page_path(const PageKey& key) const;
  std::string manifest_path(const PageKey& root) const;

  /// Makes DIR and the directories above it where they are missing.
  /// Errors: kIo, kNotFound; kInvalidArgument when DIR is somebody else's and others may write in
  /// it: what they put there would be read as pages.
  Status make_root() const;
  /// 0 when DIR is there, else the errno of looking.
  int missing() const;

  /// All files with a name of ours but manifests; others are passed over.
  /// Errors: kIo; kNotFound without DIR.
  Result<Listing> list() const;
  /// Roots with a manifest, sorted. Errors: as list.
  Result<std::vector<PageKey>> list_roots() const;

  /// Puts `parts`, one after the other, at `path`: temporary name, sync, rename. Makes the folders
  /// between DIR and `path`. Errors: kIo, kNotFound; nothing is left of the attempt then, if the
  /// file system lets it be removed.
  Status write_atomically(const std::string& path,
                          std::span<const std::span<const std::uint8_t>> parts);

  /// Moves a file with `key`'s name out of the way; the new path. Errors: kIo, kNotFound.
  Result<std::string> quarantine(const std::string& path, const PageKey& key);

 private:
  Status check_owner(const std::string& folder) const;
  struct Temporary {
    std::string path;
    int fd = -1;
  };
  Result<Temporary> create_temporary(const std::string& folder);
  IoStatus make_folder(const std::string& folder) const;
  Status list_folder(std::string_view name, Listing& listing) const;
  Result<std::vector<std::string>> names_in(const std::string& folder) const;
  std::string unique_suffix();

  const std::string path_;
  FileSystem& fs_;
  std::atomic<std::uint64_t> n_suffixes_{0};
};

}  // namespace kvasir::cache
