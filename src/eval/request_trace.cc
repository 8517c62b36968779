#include "eval/request_trace.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace kvasir::eval {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kLineBytesMax = std::size_t{8} << 20;
constexpr int kDepthMax = 8;
constexpr std::int64_t kTokensMax = std::numeric_limits<std::int32_t>::max();
constexpr double kMsPerSecond = 1000;

Error wrong(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

/// A value as a message shows it: short, whatever it is.
std::string shown(const Json& value) {
  if (value.is_number()) return value.dump();
  return fmt::format("{} {}", value.is_array() || value.is_object() ? "an" : "a",
                     value.type_name());
}

/// The object of one line. Errors name no line.
Result<Json> parse_object(std::string_view line) {
  if (line.size() > kLineBytesMax) {
    return wrong(
        fmt::format("too long; got {} bytes, want at most {}", line.size(), kLineBytesMax));
  }
  bool is_too_deep = false;
  const auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
    is_too_deep = is_too_deep || depth > kDepthMax;
    return !is_too_deep;
  };
  try {
    Json object = Json::parse(line, limit_depth);
    if (is_too_deep) {
      return wrong(fmt::format("JSON nested too deep; want at most {} levels", kDepthMax));
    }
    if (!object.is_object()) return wrong(fmt::format("got {}, want an object", shown(object)));
    return object;
  } catch (const Json::parse_error& error) {
    return wrong(
        fmt::format("not JSON; got a syntax error at byte {}, want an object", error.byte));
  }
}

/// A key's value. Errors: it is missing.
Result<const Json*> find(const Json& object, const char* key, const char* want) {
  const auto found = object.find(key);
  if (found != object.end()) return &*found;
  return wrong(fmt::format("{}: got none, want {}", key, want));
}

/// Puts one request after another, and remembers what the lines so far have said.
class TraceReader {
 public:
  explicit TraceReader(int page_tokens) { trace_.page_tokens = page_tokens; }

  /// Errors name no line.
  Status add(std::string_view line) {
    KVASIR_ASSIGN_OR_RETURN(const Json object, parse_object(line));
    TraceRequest request;
    KVASIR_RETURN_IF_ERROR(read_time(object, request));
    KVASIR_RETURN_IF_ERROR(read_length(object, request));
    KVASIR_RETURN_IF_ERROR(read_pages(object, request));
    trace_.n_pages += request.pages.size();
    trace_.requests.push_back(std::move(request));
    return {};
  }

  RequestTrace finish() && {
    trace_.n_distinct = before_.size();
    return std::move(trace_);
  }

 private:
  static constexpr TokenId kFirst = -1;  ///< nothing is before a first page

  Status read_time(const Json& object, TraceRequest& request) const {
    constexpr const char* kWant = "a number of 0 or more (ms)";
    KVASIR_ASSIGN_OR_RETURN(const Json* value, find(object, "timestamp", kWant));
    const double ms = value->is_number() ? value->get<double>() : -1;
    if (ms < 0 || !std::isfinite(ms)) {
      return wrong(fmt::format("timestamp: got {}, want {}", shown(*value), kWant));
    }
    request.seconds = ms / kMsPerSecond;
    const double last = trace_.requests.empty() ? 0 : trace_.requests.back().seconds;
    if (request.seconds < last) {
      return wrong(fmt::format("timestamp: got {} ms, want {} or more as on the line before",
                               value->dump(), last * kMsPerSecond));
    }
    return {};
  }

  static Status read_length(const Json& object, TraceRequest& request) {
    const std::string want = fmt::format("a whole number 1..{} (tokens)", kTokensMax);
    KVASIR_ASSIGN_OR_RETURN(const Json* value, find(object, "input_length", want.c_str()));
    const bool is_fine = value->is_number_unsigned() && value->get<std::uint64_t>() > 0 &&
                         value->get<std::uint64_t>() <= std::uint64_t{kTokensMax};
    if (!is_fine) return wrong(fmt::format("input_length: got {}, want {}", shown(*value), want));
    request.n_tokens = value->get<std::int64_t>();
    return {};
  }

  Status read_pages(const Json& object, TraceRequest& request) {
    constexpr const char* kWant = "an array of whole numbers";
    KVASIR_ASSIGN_OR_RETURN(const Json* value, find(object, "hash_ids", kWant));
    if (!value->is_array()) {
      return wrong(fmt::format("hash_ids: got {}, want {}", shown(*value), kWant));
    }
    const std::int64_t n_want = (request.n_tokens + trace_.page_tokens - 1) / trace_.page_tokens;
    if (static_cast<std::int64_t>(value->size()) != n_want) {
      return wrong(fmt::format(
          "hash_ids: got {} ids, want {}: one for each {} of the input's {} tokens begun",
          value->size(), n_want, trace_.page_tokens, request.n_tokens));
    }
    TokenId previous = kFirst;
    for (const Json& id : *value) {
      if (!id.is_number_unsigned()) {
        return wrong(fmt::format("hash_ids[{}]: got {}, want a whole number of 0 or more",
                                 request.pages.size(), shown(id)));
      }
      KVASIR_ASSIGN_OR_RETURN(previous,
                              number_of(id.get<std::uint64_t>(), previous, request.pages.size()));
      request.pages.push_back(previous);
    }
    return {};
  }

  /// The page's number. Errors: it has followed another page.
  Result<TokenId> number_of(std::uint64_t id, TokenId previous, std::size_t place) {
    const auto [entry, is_new] = numbers_.try_emplace(id, static_cast<TokenId>(before_.size()));
    if (is_new) {
      before_.push_back(previous);
      ids_.push_back(id);
    }
    const TokenId number = entry->second;
    const TokenId before = before_[static_cast<std::size_t>(number)];
    if (before == previous) return number;
    const auto name = [&](TokenId page) {
      return page == kFirst ? "nothing" : std::to_string(ids_[static_cast<std::size_t>(page)]);
    };
    return wrong(
        fmt::format("hash_ids[{}]: got {} after {}, want it after {} as where it was first", place,
                    id, name(previous), name(before)));
  }

  RequestTrace trace_;
  std::map<std::uint64_t, TokenId> numbers_;  ///< a tree: ids may have been chosen to collide
  std::vector<TokenId> before_;               ///< the page before each
  std::vector<std::uint64_t> ids_;            ///< of each number
};

}  // namespace

Result<RequestTrace> parse_trace(std::string_view text, int page_tokens, std::string_view where) {
  KVASIR_CHECK(page_tokens > 0);
  if (text.substr(0, 2) == "\x1f\x8b") {
    return wrong(fmt::format("{}: got gzip, want JSON Lines: unpack it first", where));
  }
  TraceReader reader(page_tokens);
  bool is_empty = true;
  for (std::size_t line_idx = 1; !text.empty(); ++line_idx) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (const Status added = reader.add(line); !added) {
      return wrong(fmt::format("{}, line {}: {}", where, line_idx, added.error().message));
    }
    is_empty = false;
  }
  if (is_empty) return wrong(fmt::format("{}: got no request, want one a line", where));
  return std::move(reader).finish();
}

}  // namespace kvasir::eval
