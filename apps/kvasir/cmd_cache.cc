// kvasir cache: what prompts have left on the disk, and how to be rid of it.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/units.h"
#include "cache/codec/row_codec.h"
#include "cache_pages.h"
#include "command.h"
#include "engine/key_scope.h"
#include "gguf/file.h"

namespace kvasir::cli {
namespace {

using cache::DiskTier;
using cache::PageInfo;
using cache::PageKey;

constexpr int kSecondsPerDay = 86400;
constexpr std::size_t kKeyDigitsShown = 12;
constexpr std::size_t kTextBytesShown = 60;

/// "3 d", "5 h", "12 min", "4 s".
std::string age_text(double seconds) {
  if (seconds >= kSecondsPerDay) return fmt::format("{:.0f} d", seconds / kSecondsPerDay);
  if (seconds >= 3600) return fmt::format("{:.0f} h", seconds / 3600);
  if (seconds >= 60) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.0f} s", seconds);
}

/// The tokenizer of -m, when texts are wanted, for pages of the models that have it.
class PageTexts {
 public:
  static Result<PageTexts> load(const CacheFlags& flags) {
    PageTexts texts;
    if (!flags.show_text) return texts;
    KVASIR_ASSIGN_OR_RETURN(const std::string path, flags.model.path());
    KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(Env::posix(), path));
    KVASIR_ASSIGN_OR_RETURN(texts.tokenizer_, text::Tokenizer::load(file));
    texts.fingerprint_ = engine::fingerprint_tokenizer(file);
    return texts;
  }

  bool are_wanted() const { return tokenizer_.has_value(); }

  /// Absent for pages of another tokenizer, whose ids mean something else here.
  std::optional<std::string> of(const std::vector<TokenId>& tokens,
                                const std::optional<engine::Manifest>& manifest) const {
    if (!manifest || manifest->scope.tokenizer != fingerprint_) return std::nullopt;
    text::StreamDecoder decoder(*tokenizer_, text::LeadingSpace::kKeep);
    std::string text;
    for (const TokenId token : tokens) {
      text += token >= 0 && token < tokenizer_->vocab_size() ? decoder.push(token) : "\xEF\xBF\xBD";
    }
    return text + decoder.finish();
  }

 private:
  std::optional<text::Tokenizer> tokenizer_;
  cache::Fingerprint fingerprint_{};
};

template <class T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

std::string or_dash(const std::optional<std::uint64_t>& count) {
  return count ? std::to_string(*count) : "-";
}

nlohmann::json page_json(const DiskTier& tier, Manifests& manifests, const PageInfo& page) {
  return {{"key", page.key.to_hex()},        {"parent", page.parent.to_hex()},
          {"root", page.root.to_hex()},      {"model", manifests.model_name(page.root)},
          {"first_token", page.first_token}, {"n_tokens", page.n_tokens},
          {"bytes", page.file_bytes},        {"hits", or_null(tier.total_hits(page.key))},
          {"age_seconds", page.age_seconds}, {"idle_seconds", page.idle_seconds}};
}

/// Absent when the page has vanished, is damaged, or is of another tokenizer.
std::optional<std::string> text_of(DiskTier& tier, Manifests& manifests, const PageTexts& texts,
                                   const PageInfo& page) {
  const auto header = tier.header(page.key);
  return header ? texts.of(header->tokens, manifests.of(page.root)) : std::nullopt;
}

/// Sums over the pages of one root.
struct RootSum {
  std::uint64_t n_pages = 0, n_tokens = 0, n_bytes = 0;
  std::optional<std::uint64_t> n_hits;  ///< absent where none are counted
  double age_seconds = 0, idle_seconds = 0;
  int longest = 0;

  void add(const PageInfo& page, const std::optional<std::uint64_t>& hits) {
    age_seconds = n_pages == 0 ? page.age_seconds : std::max(age_seconds, page.age_seconds);
    idle_seconds = n_pages == 0 ? page.idle_seconds : std::min(idle_seconds, page.idle_seconds);
    ++n_pages;
    n_tokens += static_cast<std::uint64_t>(page.n_tokens);
    n_bytes += page.file_bytes;
    if (hits) n_hits = n_hits.value_or(0) + *hits;
    longest = std::max(longest, page.first_token + page.n_tokens);
  }
};

void print_scopes(const DiskTier& tier, Manifests& manifests, const std::vector<PageInfo>& pages) {
  std::map<std::string, RootSum> roots;
  for (const PageInfo& page : pages) {
    roots[page.root.to_hex()].add(page, tier.total_hits(page.key));
  }
  print(
      "| scope | model | K, V | pages | tokens | longest prefix | bytes | hits | oldest | last "
      "used |\n");
  print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const auto& [hex, sum] : roots) {
    const PageKey root = *PageKey::from_hex(hex);
    const auto& manifest = manifests.of(root);
    const std::string codecs =
        manifest ? fmt::format("{}, {}", cache::codec_name(manifest->scope.codec_k),
                               cache::codec_name(manifest->scope.codec_v))
                 : "-";
    print(fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} ago |\n",
                      hex.substr(0, kKeyDigitsShown), manifests.model_name(root), codecs,
                      sum.n_pages, sum.n_tokens, sum.longest, format_bytes(sum.n_bytes),
                      or_dash(sum.n_hits), age_text(sum.age_seconds), age_text(sum.idle_seconds)));
  }
}

void print_pages(DiskTier& tier, Manifests& manifests, const std::vector<PageInfo>& pages,
                 const PageTexts& texts) {
  print(fmt::format("| key | scope | model | tokens | bytes | hits | age | last used |{}\n",
                    texts.are_wanted() ? " text |" : ""));
  print(fmt::format("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |{}\n",
                    texts.are_wanted() ? " --- |" : ""));
  for (const PageInfo& page : pages) {
    std::string line = fmt::format(
        "| {} | {} | {} | {}..{} | {} | {} | {} | {} ago |",
        page.key.to_hex().substr(0, kKeyDigitsShown), page.root.to_hex().substr(0, kKeyDigitsShown),
        manifests.model_name(page.root), page.first_token, page.first_token + page.n_tokens - 1,
        format_bytes(page.file_bytes), or_dash(tier.total_hits(page.key)),
        age_text(page.age_seconds), age_text(page.idle_seconds));
    if (texts.are_wanted()) {
      const auto text = text_of(tier, manifests, texts, page);
      line += fmt::format(" {} |",
                          text ? dump(head_of(*text, kTextBytesShown)) : "of another tokenizer");
    }
    print(line + "\n");
  }
}

Status list(const CacheFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const PageTexts texts, PageTexts::load(flags));
  KVASIR_ASSIGN_OR_RETURN(const auto tier, open_tier(flags));
  const std::vector<PageInfo> pages = pages_in_order(*tier);
  Manifests manifests(*tier);
  if (!flags.json) {
    if (flags.pages || flags.show_text) {
      print_pages(*tier, manifests, pages, texts);
    } else {
      print_scopes(*tier, manifests, pages);
    }
    return {};
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const PageInfo& page : pages) {
    rows.push_back(page_json(*tier, manifests, page));
    if (texts.are_wanted()) {
      rows.back()["text"] = or_null(text_of(*tier, manifests, texts, page));
    }
  }
  print(dump({{"schema_version", 1}, {"pages", rows}}) + "\n");
  return {};
}

Status inspect(const CacheFlags& flags) {
  KVASIR_ASSIGN_OR_RETURN(const PageTexts texts, PageTexts::load(flags));
  KVASIR_ASSIGN_OR_RETURN(const auto tier, open_tier(flags));
  KVASIR_ASSIGN_OR_RETURN(const PageInfo page, find_page(*tier, flags.key));
  KVASIR_ASSIGN_OR_RETURN(const cache::PageHeader header, tier->header(page.key));
  Manifests manifests(*tier);
  nlohmann::json json = page_json(*tier, manifests, page);
  json["description"] = header.description;
  json["tokens"] = header.tokens;
  if (texts.are_wanted()) json["text"] = or_null(texts.of(header.tokens, manifests.of(page.root)));
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

void add_archive_actions(CLI::App& app, const std::shared_ptr<CacheFlags>& flags,
                         std::vector<Command>& commands) {
  CLI::App* out = add_action(app, "export", "pages into one file", export_cache, flags, commands);
  out->add_option("file", flags->file, "a new file; - : standard output")->required();
  out->add_option("key", flags->keys,
                  "a scope, or a page and those before it, or how its key begins; none: all");
  out->add_option("--model-name", flags->model_name,
                  "of this model, as `kvasir cache ls` names it");
  out->add_flag("--force", flags->force, "replace the file");
  out->add_flag("--json", flags->json, "what was written, as JSON");
  CLI::App* in = add_action(app, "import", "pages of such a file; each is checked first",
                            import_cache, flags, commands);
  in->add_option("file", flags->file, "from `kvasir cache export`; - : standard input")->required();
  in->add_option("--kv-disk", flags->kv_disk,
                 "the most that all pages may take; what does not fit is left out");
  in->add_flag("--json", flags->json, "what became of the pages, as JSON");
  in->footer(
      "Import only what you would run: pages are what a model has read, and whoever made the file\n"
      "chose them. Checksums find damage, not forgery.\n");
}

}  // namespace

void add_cache(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<CacheFlags>();
  CLI::App* sub = app.add_subcommand("cache", "what earlier prompts have left on the disk");
  sub->require_subcommand(1);
  const char* key_help = "a page's key, or how it begins";
  const char* text_help = "tokens as text, by the tokenizer of -m";
  CLI::App* ls = add_action(*sub, "ls", "pages by model and scope", list, flags, commands);
  ls->add_flag("--json", flags->json, "every page, as JSON");
  ls->add_flag("--pages", flags->pages, "every page, with its key");
  ls->add_flag("--show-text", flags->show_text, std::string(text_help) + "; every page");
  flags->model.add(*ls, ModelFlags::Set::kModelOnly);
  ls->footer(
      "hits: how often a page was loaded, by any process, as an attribute of its file counts it\n"
      "(user.kvasir.hits; not exact when several load it at once); -: the file system keeps "
      "none.\n");
  CLI::App* one = add_action(*sub, "inspect", "one page's header", inspect, flags, commands);
  one->add_option("key", flags->key, key_help)->required();
  one->add_flag("--json", flags->json, "on one line");
  one->add_flag("--show-text", flags->show_text, std::string("its ") + text_help);
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
  add_archive_actions(*sub, flags, commands);
  add_cache_replay(*sub, commands);
  sub->footer(
      "Examples:\n"
      "  kvasir cache ls                    what is there, model by model\n"
      "  kvasir cache inspect 3fa8 --show-text\n"
      "  kvasir cache verify                is every page whole?\n"
      "  kvasir cache gc 1G                 leave 1 GiB\n"
      "  kvasir cache export pages.kva      all of them, to take to another machine\n"
      "  kvasir cache import pages.kva      where they are loaded as if computed there\n"
      "  kvasir cache replay trace.jsonl    which size and policy would do? (no model runs)\n");
}

}  // namespace kvasir::cli
