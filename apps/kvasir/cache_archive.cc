// kvasir cache export and import: pages in one file, from machine to machine.
#include "cache/tier/archive.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>

#include "base/units.h"
#include "cache/tier/atomic_file.h"
#include "cache_pages.h"

namespace kvasir::cli {
namespace {

using cache::ArchiveFault;
using cache::AtomicFile;
using cache::DiskTier;
using cache::PageInfo;
using cache::PageKey;

constexpr const char* kStandardStream = "-";
constexpr int kPollMilliseconds = 100;

Error usage(std::string message) { return Error{ErrorCode::kInvalidArgument, std::move(message)}; }

nlohmann::json faults_json(const std::vector<ArchiveFault>& faults) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ArchiveFault& one : faults) {
    rows.push_back({{"key", one.key.to_hex()}, {"why", one.reason}});
  }
  return rows;
}

std::string faults_text(const std::vector<ArchiveFault>& faults) {
  std::string text;
  for (const ArchiveFault& one : faults) {
    text += fmt::format("bad: {}: {}\n", one.key.to_hex(), printable(one.reason));
  }
  return text;
}

/// Digits of the pages and roots that an export takes: what KEY... and --model-name name.
class Selection {
 public:
  Selection(const CacheFlags& flags, const std::vector<PageInfo>& pages, Manifests& manifests)
      : flags_(flags), pages_(pages), manifests_(manifests) {
    for (const PageInfo& page : pages) by_key_.emplace(page.key.to_hex(), &page);
  }

  /// Errors: kNotFound, kInvalidArgument: a key that names nothing, or more than one thing.
  Result<std::vector<PageInfo>> select() {
    for (const std::string& key : flags_.keys) KVASIR_RETURN_IF_ERROR(add(key));
    std::vector<PageInfo> selected;
    for (const PageInfo& page : pages_) {
      const bool is_named = flags_.keys.empty() || roots_.contains(page.root.to_hex()) ||
                            keys_.contains(page.key.to_hex());
      const bool is_of_model =
          flags_.model_name.empty() || manifests_.model_name(page.root) == flags_.model_name;
      if (is_named && is_of_model) selected.push_back(page);
    }
    if (!selected.empty()) return selected;
    return Error{ErrorCode::kNotFound,
                 "cache export: no such pages; want some that `kvasir cache "
                 "ls` shows"};
  }

 private:
  Status add(const std::string& prefix) {
    std::set<std::string> roots, keys;
    for (const PageInfo& page : pages_) {
      if (const auto hex = page.root.to_hex(); hex.starts_with(prefix)) roots.insert(hex);
      if (const auto hex = page.key.to_hex(); hex.starts_with(prefix)) keys.insert(hex);
    }
    if (roots.size() + keys.size() != 1) {
      return Error{
          roots.empty() && keys.empty() ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument,
          fmt::format("key: got '{}', {} scopes and {} pages begin so, want 1", prefix,
                      roots.size(), keys.size())};
    }
    roots_.merge(roots);
    // A page is of no use without the ones before it.
    if (!keys.empty()) add_with_parents(*keys.begin());
    return {};
  }

  void add_with_parents(std::string key) {
    while (keys_.insert(key).second) {
      const auto at = by_key_.find(key);
      if (at == by_key_.end()) return;
      key = at->second->parent.to_hex();
    }
  }

  const CacheFlags& flags_;
  const std::vector<PageInfo>& pages_;
  Manifests& manifests_;
  std::map<std::string, const PageInfo*> by_key_;
  std::set<std::string> roots_, keys_;
};

Result<cache::ExportReport> write_archive(const DiskTier& tier, std::span<const PageInfo> pages,
                                          const cache::ArchiveSink& sink) {
  std::uint64_t total = 0;
  for (const PageInfo& page : pages) total += page.file_bytes;
  ProgressBar bar("export");
  const auto progress = [&](std::uint64_t bytes) {
    const double share = static_cast<double>(bytes) / static_cast<double>(std::max(total, bytes));
    bar.update(share, format_bytes(bytes));
    return !interrupted().load();
  };
  return cache::export_pages(tier, cache::FileSystem::posix(), pages, sink, progress);
}

Result<cache::ExportReport> write_to_file(const CacheFlags& flags, const DiskTier& tier,
                                          std::span<const PageInfo> pages) {
  const auto existing =
      flags.force ? AtomicFile::Existing::kReplace : AtomicFile::Existing::kRefuse;
  const auto explain = [&](const Error& error) {
    const bool may_force = !flags.force && error.code == ErrorCode::kInvalidArgument;
    return Error{error.code, error.message + (may_force ? " (--force)" : "")};
  };
  auto file = AtomicFile::create(cache::FileSystem::posix(), flags.file, existing);
  if (!file) return explain(file.error());
  const auto sink = [&](std::span<const std::uint8_t> bytes) { return file->write(bytes); };
  KVASIR_ASSIGN_OR_RETURN(const cache::ExportReport report, write_archive(tier, pages, sink));
  if (const Status named = file->commit(); !named) return explain(named.error());
  return report;
}

Result<cache::ExportReport> write_to_stdout(const DiskTier& tier, std::span<const PageInfo> pages) {
  if (::isatty(STDOUT_FILENO) != 0) {
    return usage("cache export: standard output is a terminal; want a file or a pipe");
  }
  return write_archive(tier, pages, [](std::span<const std::uint8_t> bytes) {
    print({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return Status{};
  });
}

/// Reads a file or standard input; Ctrl-C ends the wait for a pipe.
class InputFile {
 public:
  static Result<InputFile> open(const std::string& path) {
    if (path == kStandardStream) return InputFile(STDIN_FILENO, "stdin");
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) return InputFile(fd, path);
    return Error{errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                 fmt::format("{}: cannot open; {}", path, std::generic_category().message(errno))};
  }
  ~InputFile() {
    if (fd_ > STDERR_FILENO) ::close(fd_);
  }
  InputFile(InputFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)), name_(other.name_) {}
  InputFile& operator=(InputFile&&) = delete;

  /// 0 where it is not known.
  std::uint64_t bytes() const {
    struct stat info {};
    return ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode)
               ? static_cast<std::uint64_t>(info.st_size)
               : 0;
  }

  /// As cache::ArchiveSource.
  Result<std::size_t> read(std::span<std::uint8_t> out) const {
    std::size_t n_done = 0;
    while (n_done < out.size()) {
      if (interrupted().load()) return Error{ErrorCode::kCancelled, name_ + ": interrupted"};
      if (!is_readable_within(fd_, kPollMilliseconds)) continue;
      const ssize_t n = ::read(fd_, out.data() + n_done, out.size() - n_done);
      if (n == 0) break;
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        return Error{ErrorCode::kIo, fmt::format("{}: cannot read; {}", name_,
                                                 std::generic_category().message(errno))};
      }
      n_done += static_cast<std::size_t>(n);
    }
    return n_done;
  }

 private:
  InputFile(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  int fd_;
  std::string name_;
};

/// A root is the hash of what its manifest says: nobody else's manifest passes.
bool is_manifest_of(const PageKey& root, std::string_view text) {
  const auto manifest = engine::parse_manifest(text);
  return manifest && cache::root_key(manifest->scope) == root;
}

void print_import(const cache::ImportReport& report, bool json) {
  if (json) {
    print(dump({{"schema_version", 1},
                {"n_new", report.n_new},
                {"new_bytes", report.new_bytes},
                {"n_known", report.n_known},
                {"n_bad", report.n_bad},
                {"n_other_version", report.n_other_version},
                {"n_no_room", report.n_no_room},
                {"n_manifests", report.n_manifests},
                {"bad", faults_json(report.bad)},
                {"is_whole", !report.error.has_value()}}) +
          "\n");
    return;
  }
  print(fmt::format("{} new pages ({}), {} known, {} bad, {} of another version, {} without room\n",
                    report.n_new, format_bytes(report.new_bytes), report.n_known, report.n_bad,
                    report.n_other_version, report.n_no_room));
  print(faults_text(report.bad));
}

}  // namespace

Status export_cache(const CacheFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const auto tier, open_tier(flags));
  const std::vector<PageInfo> all = pages_in_order(*tier);
  Manifests manifests(*tier);
  KVASIR_ASSIGN_OR_RETURN(const std::vector<PageInfo> pages,
                          Selection(flags, all, manifests).select());
  const bool to_stdout = flags.file == kStandardStream;
  KVASIR_ASSIGN_OR_RETURN(
      const cache::ExportReport report,
      to_stdout ? write_to_stdout(*tier, pages) : write_to_file(flags, *tier, pages));
  const nlohmann::json json = {{"schema_version", 1},
                               {"n_pages", report.n_pages},
                               {"n_manifests", report.n_manifests},
                               {"bytes", report.bytes},
                               {"n_vanished", report.n_vanished},
                               {"n_other_version", report.n_other_version},
                               {"n_bad", report.n_bad},
                               {"bad", faults_json(report.bad)}};
  const std::string text =
      fmt::format("{} pages, {}\n", report.n_pages, format_bytes(report.bytes)) +
      faults_text(report.bad);
  const std::string said = flags.json ? dump(json) + "\n" : text;
  if (to_stdout) {
    write_stderr(said);  // standard output is the archive
  } else {
    print(said);
  }
  if (report.n_bad == 0) return {};
  return Error{ErrorCode::kCorruption,
               fmt::format("cache: {} damaged pages were left out; want none", report.n_bad)};
}

Status import_cache(const CacheFlags& flags) {
  const auto capacity = parse_bytes(flags.kv_disk);
  if (!capacity) return usage("--kv-disk: " + capacity.error().message);
  KVASIR_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(flags.file));
  KVASIR_ASSIGN_OR_RETURN(const auto tier, open_tier(flags));
  const std::uint64_t total = file.bytes();
  ProgressBar bar("import");
  const auto progress = [&](std::uint64_t bytes) {
    const double share = total > 0 ? static_cast<double>(bytes) / static_cast<double>(total) : 0;
    bar.update(share, format_bytes(bytes));
    return !interrupted().load();
  };
  const auto source = [&](std::span<std::uint8_t> out) { return file.read(out); };
  const cache::ImportReport report = cache::import_pages(
      *tier, cache::FileSystem::posix(), {*capacity, is_manifest_of}, source, progress);
  print_import(report, flags.json);
  if (report.error) {
    const bool is_cancelled = report.error->code == ErrorCode::kCancelled;
    return Error{is_cancelled ? ErrorCode::kCancelled : ErrorCode::kCorruption,
                 fmt::format("{}: {}", flags.file, report.error->message)};
  }
  if (report.n_bad > 0) {
    return Error{
        ErrorCode::kCorruption,
        fmt::format("{}: {} damaged pages were left out; want none", flags.file, report.n_bad)};
  }
  if (report.n_no_room == 0) return {};
  return Error{ErrorCode::kExhausted,
               fmt::format("--kv-disk: no room for {} pages; got {} for all, want more, or `kvasir "
                           "cache gc` first",
                           report.n_no_room, format_bytes(*capacity))};
}

}  // namespace kvasir::cli
