// kvasir cache replay: what caches of several sizes and policies make of a request trace.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "base/env.h"
#include "base/units.h"
#include "command.h"
#include "eval/cache_replay.h"
#include "eval/replay_plot.h"

namespace kvasir::cli {
namespace {

using cache::EvictionPolicy;

struct ReplayFlags {
  std::string trace, policies = "lru,lfu,cost", capacities = "5%,10%,20%", disk = "0", plot;
  int page_tokens = 512, token_bytes = 23040;
  bool json = false;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// "5%" of the trace's distinct pages, "9000p" or "2G" as pages. Errors: kInvalidArgument.
Result<std::uint64_t> parse_pages(const char* flag, const std::string& text,
                                  const eval::RequestTrace& trace, std::uint64_t page_bytes) {
  constexpr double kPagesMax = 1e9;
  double n_pages = -1;
  if (!text.empty() && (text.back() == '%' || text.back() == 'p')) {
    const std::string number = text.substr(0, text.size() - 1);
    char* end = nullptr;
    const bool is_number = !number.empty() && std::isdigit(static_cast<unsigned char>(number[0]));
    const double value = is_number ? std::strtod(number.c_str(), &end) : -1;
    if (is_number && *end == '\0') {
      n_pages = value;
      if (text.back() == '%') n_pages *= static_cast<double>(trace.n_distinct) / 100;
      if (text.back() == '%' && value > 0) n_pages = std::max(n_pages, 1.0);  // of a short trace
    }
  } else if (const auto bytes = parse_bytes(text)) {
    n_pages = static_cast<double>(*bytes / page_bytes);
  }
  if (n_pages >= 0 && n_pages <= kPagesMax) return static_cast<std::uint64_t>(n_pages);
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("{}: got '{}', want a share of the distinct pages (5%), pages (9000p) "
                           "or bytes (2G), at most {:.0f} pages",
                           flag, text, kPagesMax)};
}

Result<EvictionPolicy> parse_policy(const std::string& name) {
  for (const EvictionPolicy policy : cache::kAllPolicies) {
    if (cache::policy_name(policy) == name) return policy;
  }
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("--policy: got '{}', want some of lru, lfu, cost", name)};
}

/// A row for each policy at each capacity, nothing replayed yet.
Result<std::vector<eval::ReplayRow>> plan(const ReplayFlags& flags,
                                          const eval::RequestTrace& trace) {
  eval::ReplayOptions options;
  options.page_bytes =
      static_cast<std::uint64_t>(flags.token_bytes) * static_cast<std::uint64_t>(flags.page_tokens);
  KVASIR_ASSIGN_OR_RETURN(options.disk_pages,
                          parse_pages("--disk", flags.disk, trace, options.page_bytes));
  std::vector<eval::ReplayRow> rows;
  for (const std::string& capacity : split(flags.capacities)) {
    KVASIR_ASSIGN_OR_RETURN(options.memory_pages,
                            parse_pages("--capacity", capacity, trace, options.page_bytes));
    if (options.memory_pages == 0) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("--capacity: got '{}', want at least a page ({}, of {} distinct)",
                               capacity, format_bytes(options.page_bytes), trace.n_distinct)};
    }
    for (const std::string& name : split(flags.policies)) {
      KVASIR_ASSIGN_OR_RETURN(options.policy, parse_policy(name));
      rows.push_back({options, {}});
    }
  }
  return rows;
}

/// Replays the rows; those that are whole when Ctrl-C comes.
std::vector<eval::ReplayRow> replay_rows(const eval::RequestTrace& trace,
                                         std::vector<eval::ReplayRow> rows) {
  ProgressBar bar("replay");
  const std::size_t n_requests = trace.requests.size();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto progress = [&](std::size_t n_done) {
      const double done = static_cast<double>(n_done) / static_cast<double>(n_requests);
      bar.update((static_cast<double>(i) + done) / static_cast<double>(rows.size()),
                 fmt::format("{}, {} pages", cache::policy_name(rows[i].options.policy),
                             rows[i].options.memory_pages));
    };
    rows[i].report = eval::replay(trace, rows[i].options, progress, &interrupted());
    if (rows[i].report.n_requests < n_requests) {
      rows.resize(i);
      break;
    }
  }
  return rows;
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

nlohmann::json row_json(const eval::RequestTrace& trace, const eval::ReplayRow& row) {
  const eval::ReplayReport& report = row.report;
  return {{"policy", cache::policy_name(row.options.policy)},
          {"capacity_pages", row.options.memory_pages},
          {"capacity_share", share(static_cast<double>(row.options.memory_pages),
                                   static_cast<double>(trace.n_distinct))},
          {"hit_rate", report.hit_rate()},
          {"pages",
           {{"memory", report.memory_pages},
            {"disk", report.disk_pages},
            {"computed", report.n_pages - report.memory_pages - report.disk_pages}}},
          {"tokens",
           {{"memory", report.memory_tokens},
            {"disk", report.disk_tokens},
            {"computed", report.n_tokens - report.memory_tokens - report.disk_tokens}}},
          {"prefill_saved", share(report.saved_seconds, report.prefill_seconds)},
          {"evicted", report.n_evicted},
          {"not_kept", report.n_unkept},
          {"disk_written", report.n_written},
          {"disk_evicted", report.n_disk_evicted},
          {"bytes_written", report.bytes_written},
          {"bytes_read", report.bytes_read}};
}

void print_json(const ReplayFlags& flags, const eval::RequestTrace& trace,
                const std::vector<eval::ReplayRow>& planned,
                const std::vector<eval::ReplayRow>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const eval::ReplayRow& row : rows) all.push_back(row_json(trace, row));
  print(dump({{"schema_version", 1},
              {"trace", flags.trace},
              {"n_requests", trace.requests.size()},
              {"seconds", trace.requests.back().seconds},
              {"page_tokens", trace.page_tokens},
              {"page_bytes", planned.front().options.page_bytes},
              {"n_pages", trace.n_pages},
              {"n_distinct_pages", trace.n_distinct},
              {"hit_rate_bound", trace.hit_rate_bound()},
              {"disk_capacity_pages", planned.front().options.disk_pages},
              {"rows", all}}) +
        "\n");
}

void print_table(const ReplayFlags& flags, const eval::RequestTrace& trace,
                 const std::vector<eval::ReplayRow>& rows) {
  print(fmt::format(
      "{}: {} requests in {:.0f} s; {} pages of {} tokens, {} of them distinct; hit "
      "rate without limit {:.2f} %\n\n",
      printable(flags.trace), trace.requests.size(), trace.requests.back().seconds, trace.n_pages,
      trace.page_tokens, trace.n_distinct, 100 * trace.hit_rate_bound()));
  print(
      "| capacity | policy | hit rate | tokens: memory | disk | computed | prefill saved | evicted "
      "| written |\n"
      "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const eval::ReplayRow& row : rows) {
    const eval::ReplayReport& report = row.report;
    print(fmt::format("| {} p ({:.3g} %) | {} | {:.2f} % | {} | {} | {} | {:.2f} % | {} | {} |\n",
                      row.options.memory_pages,
                      100 * share(static_cast<double>(row.options.memory_pages),
                                  static_cast<double>(trace.n_distinct)),
                      cache::policy_name(row.options.policy), 100 * report.hit_rate(),
                      report.memory_tokens, report.disk_tokens,
                      report.n_tokens - report.memory_tokens - report.disk_tokens,
                      100 * share(report.saved_seconds, report.prefill_seconds), report.n_evicted,
                      format_bytes(report.bytes_written)));
  }
}

Status check_above_zero(const char* flag, int value) {
  if (value > 0) return {};
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}: got {}, want 1 or more", flag, value)};
}

/// A picture replaces pictures only, and that it can be written is known before the work.
Status check_plot(const ReplayFlags& flags) {
  std::error_code error;
  if (std::filesystem::equivalent(flags.trace, flags.plot, error)) {
    return Error{ErrorCode::kInvalidArgument, flags.plot + ": --plot: got the trace itself"};
  }
  const std::filesystem::path folder = std::filesystem::path(flags.plot).parent_path();
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return {};
  return Error{ErrorCode::kNotFound, folder.string() + ": --plot: no such directory"};
}

Status replay(const ReplayFlags& flags) {
  KVASIR_RETURN_IF_ERROR(check_above_zero("--page-tokens", flags.page_tokens));
  KVASIR_RETURN_IF_ERROR(check_above_zero("--token-bytes", flags.token_bytes));
  KVASIR_ASSIGN_OR_RETURN(const std::string text, read_input(flags.trace));
  const std::string where = flags.trace == "-" ? "stdin" : flags.trace;
  if (!flags.plot.empty()) KVASIR_RETURN_IF_ERROR(check_plot(flags));
  KVASIR_ASSIGN_OR_RETURN(const eval::RequestTrace trace,
                          eval::parse_trace(text, flags.page_tokens, where));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<eval::ReplayRow> planned, plan(flags, trace));
  const std::vector<eval::ReplayRow> rows = replay_rows(trace, planned);
  if (flags.json) {
    print_json(flags, trace, planned, rows);
  } else {
    print_table(flags, trace, rows);
  }
  if (flags.plot.empty() || rows.empty()) return {};
  const std::string name = where.substr(where.find_last_of('/') + 1);
  const std::string svg = eval::plot_replays(trace, rows, "Hit rate, " + name);
  return Env::posix().write_file_atomic(
      flags.plot, {reinterpret_cast<const std::uint8_t*>(svg.data()), svg.size()});
}

}  // namespace

void add_cache_replay(CLI::App& cache, std::vector<Command>& commands) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* sub = cache.add_subcommand(
      "replay", "what caches of several sizes and policies make of a request trace");
  sub->add_option(
         "trace", flags->trace,
         "JSON Lines with timestamp (ms), input_length and hash_ids, as Mooncake's traces; "
         "- : standard input")
      ->required();
  sub->add_option("--policy", flags->policies, "which page leaves first: some of lru,lfu,cost");
  sub->add_option(
      "--capacity", flags->capacities,
      "sizes of memory: shares of the trace's distinct pages (5%), pages (9000p), bytes "
      "(2G)");
  sub->add_option("--disk", flags->disk, "size of a disk below it, likewise; 0: none");
  sub->add_option("--page-tokens", flags->page_tokens, "tokens that one hash id stands for");
  sub->add_option("--token-bytes", flags->token_bytes,
                  "K and V of a token, in bytes; 23040: SmolLM2 135M in f16");
  sub->add_flag("--json", flags->json, "one JSON object");
  sub->add_option("--plot", flags->plot, "hit rate over capacity, as an SVG file");
  sub->footer(
      "Examples:\n"
      "  kvasir cache replay mooncake_conversation.jsonl\n"
      "  kvasir cache replay trace.jsonl --capacity 1%,2%,5%,10%,20%,40% --plot hits.svg\n"
      "  kvasir cache replay trace.jsonl --policy cost --capacity 64G --disk 1024G --json\n"
      "No model runs. Requests are served one after another, each at its own time in the trace.\n"
      "Ctrl-C ends it with the rows that are done.\n");
  commands.push_back({sub, [flags] {
                        const Status status = replay(*flags);
                        return status ? done_or_interrupted() : report(status.error());
                      }});
}

}  // namespace kvasir::cli
