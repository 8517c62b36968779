// kvasir cache: what prompts have left on the disk, and how to be rid of it.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/units.h"
#include "cache/tier/disk_tier.h"
#include "command.h"
#include "engine/key_scope.h"
#include "gguf/file.h"

namespace kvasir::cli {
namespace {

using cache::DiskTier;
using cache::PageInfo;
using cache::PageKey;

struct CacheFlags {
  ModelFlags model;  ///< its tokenizer, for --show-text
  std::string kv_dir, key, size;
  bool json = false, show_text = false, all = false;
};

constexpr int kSecondsPerDay = 86400;

/// "3 d", "5 h", "12 min", "4 s".
std::string age_text(double seconds) {
  if (seconds >= kSecondsPerDay) return fmt::format("{:.0f} d", seconds / kSecondsPerDay);
  if (seconds >= 3600) return fmt::format("{:.0f} h", seconds / 3600);
  if (seconds >= 60) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.0f} s", seconds);
}

const Clock& steady_clock() {
  static const SteadyClock clock;
  return clock;
}

/// The directory as it is: nothing is evicted on opening.
Result<std::unique_ptr<DiskTier>> open_tier(const CacheFlags& flags) {
  cache::DiskTierOptions options;
  options.directory = flags.kv_dir.empty() ? default_kv_directory() : flags.kv_dir;
  options.capacity_bytes = std::uint64_t{1} << 62;
  auto tier = DiskTier::open(options, cache::FileSystem::posix(), steady_clock());
  if (tier) return tier;
  return Error{ErrorCode::kCorruption, "--kv-dir: " + tier.error().message};
}

/// Name of the model whose pages a root has, as far as the directory knows.
std::string model_name(const DiskTier& tier, const PageKey& root) {
  const auto text = tier.read_manifest(root);
  const auto manifest = text ? engine::parse_manifest(*text) : std::nullopt;
  return manifest ? manifest->model_name : "unknown model";
}

/// Pages whose key begins with `prefix`: one is wanted. Errors: kNotFound, kInvalidArgument.
Result<PageInfo> find_page(const DiskTier& tier, const std::string& prefix) {
  std::vector<PageInfo> found;
  for (const PageInfo& page : tier.list()) {
    if (page.key.to_hex().rfind(prefix, 0) == 0) found.push_back(page);
  }
  if (found.size() == 1) return found.front();
  return Error{found.empty() ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument,
               fmt::format("key: got '{}', {} pages begin so, want 1", prefix, found.size())};
}

/// The tokenizer of -m, when texts are wanted.
Result<std::optional<text::Tokenizer>> load_tokenizer(const CacheFlags& flags) {
  std::optional<text::Tokenizer> tokenizer;
  if (!flags.show_text) return tokenizer;
  KVASIR_ASSIGN_OR_RETURN(const std::string path, flags.model.path());
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(Env::posix(), path));
  KVASIR_ASSIGN_OR_RETURN(tokenizer, text::Tokenizer::load(file));
  return tokenizer;
}

std::string text_of(const text::Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  text::StreamDecoder decoder(tokenizer, text::LeadingSpace::kKeep);
  std::string text;
  for (const TokenId token : tokens) {
    text += token >= 0 && token < tokenizer.vocab_size() ? decoder.push(token) : "\xEF\xBF\xBD";
  }
  return text + decoder.finish();
}

nlohmann::json page_json(const DiskTier& tier, const PageInfo& page) {
  return {{"key", page.key.to_hex()},         {"parent", page.parent.to_hex()},
          {"root", page.root.to_hex()},       {"model", model_name(tier, page.root)},
          {"first_token", page.first_token},  {"n_tokens", page.n_tokens},
          {"bytes", page.file_bytes},         {"age_seconds", page.age_seconds},
          {"idle_seconds", page.idle_seconds}};
}

/// Sums over the pages of one root.
struct RootSum {
  std::uint64_t n_pages = 0, n_tokens = 0, n_bytes = 0;
  double idle_seconds = 0;
  int longest = 0;
};

Status list(const CacheFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const auto tier, open_tier(flags));
  const std::vector<PageInfo> pages = tier->list();
  if (flags.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const PageInfo& page : pages) rows.push_back(page_json(*tier, page));
    print(dump({{"schema_version", 1}, {"pages", rows}}) + "\n");
    return {};
  }
  std::map<std::string, RootSum> roots;
  for (const PageInfo& page : pages) {
    RootSum& sum = roots[page.root.to_hex()];
    if (sum.n_pages == 0 || page.idle_seconds < sum.idle_seconds) {
      sum.idle_seconds = page.idle_seconds;
    }
    ++sum.n_pages;
    sum.n_tokens += static_cast<std::uint64_t>(page.n_tokens);
    sum.n_bytes += page.file_bytes;
    sum.longest = std::max(sum.longest, page.first_token + page.n_tokens);
  }
  print("| scope | model | pages | tokens | longest prefix | bytes | last used |\n");
  print("| --- | --- | ---: | ---: | ---: | ---: | ---: |\n");
  for (const auto& [hex, sum] : roots) {
    print(fmt::format("| {} | {} | {} | {} | {} | {} | {} ago |\n", hex.substr(0, 12),
                      model_name(*tier, *PageKey::from_hex(hex)), sum.n_pages, sum.n_tokens,
                      sum.longest, format_bytes(sum.n_bytes), age_text(sum.idle_seconds)));
  }
  return {};
}

Status inspect(const CacheFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const auto tokenizer, load_tokenizer(flags));
  KVASIR_ASSIGN_OR_RETURN(const auto tier, open_tier(flags));
  KVASIR_ASSIGN_OR_RETURN(const PageInfo page, find_page(*tier, flags.key));
  KVASIR_ASSIGN_OR_RETURN(const cache::PageHeader header, tier->header(page.key));
  nlohmann::json json = page_json(*tier, page);
  json["description"] = header.description;
  json["tokens"] = header.tokens;
  if (tokenizer) json["text"] = text_of(*tokenizer, header.tokens);
  print((flags.json ? dump(json)
                    : json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)) +
        "\n");
  return {};
}

Status verify(const CacheFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const auto tier, open_tier(flags));
  KVASIR_ASSIGN_OR_RETURN(const cache::VerifyReport report, tier->verify());
  if (flags.json) {
    nlohmann::json bad = nlohmann::json::array();
    for (const auto& one : report.bad) bad.push_back({{"path", one.path}, {"why", one.reason}});
    print(dump({{"schema_version", 1},
                {"n_pages", report.n_pages},
                {"bytes", report.bytes},
                {"bad", bad},
                {"quarantined", report.quarantined},
                {"n_other_version", report.skipped.size()}}) +
          "\n");
  } else {
    print(fmt::format("{} pages whole, {}\n", report.n_pages, format_bytes(report.bytes)));
    for (const auto& one : report.bad) print(fmt::format("bad: {}: {}\n", one.path, one.reason));
    for (const std::string& path : report.quarantined) print(fmt::format("set aside: {}\n", path));
  }
  const std::size_t n_bad = report.bad.size() + report.quarantined.size();
  if (n_bad == 0) return {};
  return Error{ErrorCode::kCorruption,
               fmt::format("cache: {} damaged files; want none (they are never used, and `kvasir "
                           "cache gc` removes those set aside)",
                           n_bad)};
}

Status collect(const CacheFlags& flags) {
  const auto bytes = parse_bytes(flags.size);
  if (!bytes) return Error{ErrorCode::kInvalidArgument, "size: " + bytes.error().message};
  KVASIR_ASSIGN_OR_RETURN(const auto tier, open_tier(flags));
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t freed, tier->gc(*bytes));
  print(fmt::format("{} freed\n", format_bytes(freed)));
  return {};
}

Status remove(const CacheFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const auto tier, open_tier(flags));
  if (flags.all) {
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t freed, tier->gc(0));
    print(fmt::format("{} freed\n", format_bytes(freed)));
    return {};
  }
  if (flags.key.empty()) {
    return Error{ErrorCode::kInvalidArgument, "cache rm: got no key, want one, or --all"};
  }
  KVASIR_ASSIGN_OR_RETURN(const PageInfo page, find_page(*tier, flags.key));
  return tier->remove(page.key);
}

using Action = Status (*)(const CacheFlags&);

CLI::App* add_action(CLI::App& app, const char* name, const char* help, Action action,
                     const std::shared_ptr<CacheFlags>& flags, std::vector<Command>& commands) {
  CLI::App* sub = app.add_subcommand(name, help);
  sub->add_option("--kv-dir", flags->kv_dir, "default: kv in the user's cache directory");
  commands.push_back({sub, [flags, action] {
                        const Status status = action(*flags);
                        return status ? Exit::kOk : report(status.error());
                      }});
  return sub;
}

}  // namespace

void add_cache(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<CacheFlags>();
  CLI::App* sub = app.add_subcommand("cache", "what earlier prompts have left on the disk");
  sub->require_subcommand(1);
  const char* key_help = "a page's key, or how it begins";
  CLI::App* ls = add_action(*sub, "ls", "pages by model and scope", list, flags, commands);
  ls->add_flag("--json", flags->json, "every page, as JSON");
  CLI::App* one = add_action(*sub, "inspect", "one page's header", inspect, flags, commands);
  one->add_option("key", flags->key, key_help)->required();
  one->add_flag("--json", flags->json, "on one line");
  one->add_flag("--show-text", flags->show_text, "its tokens as text, by the tokenizer of -m");
  flags->model.add(*one, ModelFlags::Set::kModelOnly);
  CLI::App* check = add_action(*sub, "verify", "read every page; exit code 5 when one is damaged",
                               verify, flags, commands);
  check->add_flag("--json", flags->json, "as JSON");
  CLI::App* gc = add_action(*sub, "gc", "evict, longest unused first, until a size is left",
                            collect, flags, commands);
  gc->add_option("size", flags->size, "bytes to leave, e.g. 2G; 0: none")->required();
  CLI::App* rm = add_action(*sub, "rm", "remove a page", remove, flags, commands);
  auto* key = rm->add_option("key", flags->key, key_help);
  rm->add_flag("--all", flags->all, "every page")->excludes(key);
  add_cache_replay(*sub, commands);
  sub->footer(
      "Examples:\n"
      "  kvasir cache ls                    what is there, model by model\n"
      "  kvasir cache inspect 3fa8 --show-text\n"
      "  kvasir cache verify                is every page whole?\n"
      "  kvasir cache gc 1G                 leave 1 GiB\n"
      "  kvasir cache replay trace.jsonl    which size and policy would do? (no model runs)\n");
}

}  // namespace kvasir::cli
