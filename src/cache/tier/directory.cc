#include "cache/tier/directory.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace kvasir::cache {
namespace {

constexpr std::string_view kPagesFolder = "/pages";
constexpr std::string_view kRootsFolder = "/roots";
constexpr std::string_view kBadFolder = "/bad";
constexpr std::string_view kPageSuffix = ".kvp";
constexpr std::string_view kTemporaryPrefix = ".tmp-";
/// Names that other writers with our process id, in containers of their own, may hold.
constexpr int kTemporaryNamesMax = 1000;
constexpr std::uint32_t kWritableByOthers = 022;

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

Error io_error(std::string_view path, std::string_view action, int error) {
  return Error{
      error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
      fmt::format("{}: cannot {}; {}", path, action, std::generic_category().message(error))};
}

std::string TierDirectory::page_path(const PageKey& key) const {
  const std::string hex = key.to_hex();
  return fmt::format("{}{}/{}/{}{}", path_, kPagesFolder, hex.substr(0, 2), hex.substr(2),
                     kPageSuffix);
}

std::string TierDirectory::manifest_path(const PageKey& root) const {
  return fmt::format("{}{}/{}", path_, kRootsFolder, root.to_hex());
}

Status TierDirectory::make_root() const {
  // Upwards to the first directory that is there, then down again.
  std::vector<std::string> wanted;
  for (std::string path = path_; !path.empty(); path = folder_of(path)) {
    const IoStatus made = fs_.make_directory(path);
    // Taken, or not ours to make: whether it is a directory shows below.
    if (made.error != ENOENT) break;
    wanted.push_back(path);
    if (path.find('/') == std::string::npos) break;
  }
  for (; !wanted.empty(); wanted.pop_back()) {
    const IoStatus made = fs_.make_directory(wanted.back());
    if (!made.ok() && made.error != EEXIST) {
      return io_error(wanted.back(), "make the directory", made.error);
    }
  }
  const IoResult<FileInfo> info = fs_.stat(path_);
  if (!info.ok()) return io_error(path_, "open the directory", info.error);
  if (info.value.kind != FileKind::kDirectory) {
    return io_error(path_, "open the directory", ENOTDIR);
  }
  for (const char* folder : {"", "/pages", "/bad", "/roots"}) {
    KVASIR_RETURN_IF_ERROR(check_owner(path_ + folder));
  }
  return {};
}

/// Whoever may write pages may answer prompts. A folder that is not there yet will be ours.
Status TierDirectory::check_owner(const std::string& folder) const {
  const IoResult<FileInfo> info = fs_.stat(folder);
  if (!info.ok()) return {};
  const bool is_owned = info.value.owner == fs_.user() || info.value.owner == 0;
  if (is_owned && (info.value.mode & kWritableByOthers) == 0) return {};
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{}: others may write into this directory; got owner {}, mode {:o}, "
                           "want owner {} and no write permission for group and others",
                           folder, info.value.owner, info.value.mode, fs_.user())};
}

int TierDirectory::missing() const { return fs_.stat(path_).error; }

Result<std::vector<std::string>> TierDirectory::names_in(const std::string& folder) const {
  IoResult<std::vector<std::string>> names = fs_.list(folder);
  // Nothing was put there yet, unless it is DIR that is gone.
  if (names.error == ENOENT && missing() == 0) return std::vector<std::string>();
  if (!names.ok()) return io_error(folder, "list the directory", names.error);
  return std::move(names.value);
}

Status TierDirectory::list_folder(std::string_view name, Listing& listing) const {
  const std::string folder = fmt::format("{}{}/{}", path_, kPagesFolder, name);
  KVASIR_ASSIGN_OR_RETURN(const auto files, names_in(folder));
  for (const std::string& file : files) {
    if (file.starts_with(kTemporaryPrefix)) {
      listing.temporaries.push_back(folder + "/" + file);
    } else if (file.ends_with(kPageSuffix)) {
      const auto stem = std::string_view(file).substr(0, file.size() - kPageSuffix.size());
      const auto key = PageKey::from_hex(fmt::format("{}{}", name, stem));
      if (key.has_value()) listing.pages.push_back({.key = *key, .path = folder + "/" + file});
    }
  }
  return {};
}

Result<TierDirectory::Listing> TierDirectory::list() const {
  Listing listing;
  KVASIR_ASSIGN_OR_RETURN(const auto folders, names_in(path_ + std::string(kPagesFolder)));
  for (const std::string& name : folders) {
    if (name.size() == 2 && is_hex(name)) KVASIR_RETURN_IF_ERROR(list_folder(name, listing));
  }
  const std::string roots = path_ + std::string(kRootsFolder);
  KVASIR_ASSIGN_OR_RETURN(const auto manifests, names_in(roots));
  for (const std::string& name : manifests) {
    if (name.starts_with(kTemporaryPrefix)) listing.temporaries.push_back(roots + "/" + name);
  }
  const std::string bad = path_ + std::string(kBadFolder);
  KVASIR_ASSIGN_OR_RETURN(const auto bad_files, names_in(bad));
  for (const std::string& name : bad_files) {
    if (name.ends_with(kPageSuffix)) listing.bad.push_back(bad + "/" + name);
  }
  return listing;
}

Result<std::vector<PageKey>> TierDirectory::list_roots() const {
  KVASIR_ASSIGN_OR_RETURN(auto names, names_in(path_ + std::string(kRootsFolder)));
  std::sort(names.begin(), names.end());
  std::vector<PageKey> roots;
  for (const std::string& name : names) {
    if (const auto root = PageKey::from_hex(name)) roots.push_back(*root);
  }
  return roots;
}

std::string TierDirectory::unique_suffix() {
  return fmt::format("{}-{}", ::getpid(), n_suffixes_.fetch_add(1));
}

IoStatus TierDirectory::make_folder(const std::string& folder) const {
  IoStatus made = fs_.make_directory(folder);
  if (made.error == ENOENT && folder_of(folder) != path_) {
    made = make_folder(folder_of(folder));
    if (made.ok()) made = fs_.make_directory(folder);
  }
  return made.error == EEXIST ? IoStatus{} : made;
}

Result<TierDirectory::Temporary> TierDirectory::create_temporary(const std::string& folder) {
  bool made_folder = false;
  for (int attempt = 0; attempt < kTemporaryNamesMax; ++attempt) {
    std::string path = fmt::format("{}/{}{}", folder, kTemporaryPrefix, unique_suffix());
    const IoResult<int> created = fs_.create(path);
    if (created.ok()) return Temporary{.path = std::move(path), .fd = created.value};
    if (created.error == ENOENT && !made_folder) {
      made_folder = true;
      const IoStatus made = make_folder(folder);
      if (!made.ok()) return io_error(folder, "make the directory", made.error);
    } else if (created.error != EEXIST) {
      return io_error(path, "create the file", created.error);
    }
  }
  return io_error(folder, "create a temporary file", EEXIST);
}

Status TierDirectory::write_atomically(const std::string& path,
                                       std::span<const std::span<const std::uint8_t>> parts) {
  KVASIR_ASSIGN_OR_RETURN(const Temporary temporary, create_temporary(folder_of(path)));
  const auto write_all = [&]() -> Status {
    for (std::span<const std::uint8_t> part : parts) {
      while (!part.empty()) {
        const IoResult<std::size_t> written = fs_.write(temporary.fd, part);
        if (!written.ok()) return io_error(temporary.path, "write", written.error);
        if (written.value == 0) return io_error(temporary.path, "write", ENOSPC);
        part = part.subspan(written.value);
      }
    }
    // Before the rename: after a power cut a name must not stand for bytes that never arrived.
    // Whether the name itself survives one is of no matter: a lost page is computed again.
    const IoStatus synced = fs_.sync(temporary.fd);
    return synced.ok() ? Status{} : io_error(temporary.path, "sync", synced.error);
  };
  Status status = write_all();
  fs_.close(temporary.fd);
  if (status) {
    const IoStatus renamed = fs_.rename(temporary.path, path);
    if (!renamed.ok()) status = io_error(path, "rename a temporary file to it", renamed.error);
  }
  // Best effort: what cannot be removed now is swept when it is old.
  if (!status) (void)fs_.remove(temporary.path);
  return status;
}

Result<std::string> TierDirectory::quarantine(const std::string& path, const PageKey& key) {
  const std::string folder = fmt::format("{}{}", path_, kBadFolder);
  const std::string to =
      fmt::format("{}/{}-{}{}", folder, key.to_hex(), unique_suffix(), kPageSuffix);
  const IoStatus made = make_folder(folder);
  if (!made.ok()) return io_error(folder, "make the directory", made.error);
  const IoStatus renamed = fs_.rename(path, to);
  if (!renamed.ok()) return io_error(path, "move it aside", renamed.error);
  return to;
}

}  // namespace kvasir::cache
