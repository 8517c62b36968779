// A trace of requests without their words: when each came, how long it was, which pages it is made
// of. The format is that of Mooncake's traces (JSON Lines).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace kvasir::eval {

struct TraceRequest {
  double seconds = 0;         ///< when it came, on the trace's clock
  std::int64_t n_tokens = 0;  ///< of its prompt; > 0
  /// Pages of the prompt, first page first; the last one may be filled in part. Equal numbers are
  /// equal pages after equal pages. Numbers count from 0 in the order of first appearance.
  std::vector<TokenId> pages;
};

struct RequestTrace {
  int page_tokens = 0;
  std::vector<TraceRequest> requests;  ///< seconds never fall
  std::uint64_t n_pages = 0;           ///< of all requests
  std::uint64_t n_distinct = 0;        ///< the footprint: what a cache of everything would hold

  /// The share of pages that a cache without limit finds: all but the first of each, 0..1.
  double hit_rate_bound() const {
    return n_pages == 0 ? 0 : 1 - static_cast<double>(n_distinct) / static_cast<double>(n_pages);
  }
};

/// Reads a trace: a JSON object a line, empty lines are passed over.
///
///   timestamp     ms, a number >= 0 that never falls from line to line
///   input_length  tokens of the prompt, > 0
///   hash_ids      one number for each `page_tokens` tokens begun; equal numbers are equal tokens
///                 after equal pages
///
/// Other keys have no meaning here. Requires: page_tokens > 0.
/// Errors: kInvalidArgument with `where` and the line: no JSON, a key that is missing or of another
/// kind, a time that falls, a length that does not belong to the number of ids, an id that follows
/// two different ones, no request at all.
Result<RequestTrace> parse_trace(std::string_view text, int page_tokens, std::string_view where);

}  // namespace kvasir::eval
