// Traces: what a line means, and what is said of a line that means nothing.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "eval/request_trace.h"

namespace kvasir::eval {
namespace {

using Pages = std::vector<TokenId>;

std::string error_of(const std::string& text) {
  const auto trace = parse_trace(text, 10, "t.jsonl");
  if (trace) return "no error";
  EXPECT_EQ(trace.error().code, ErrorCode::kInvalidArgument);
  return trace.error().message;
}

TEST(RequestTrace, NumbersPagesInOrderAndCountsTheDistinctOnes) {
  const auto trace = parse_trace(
      R"({"timestamp": 500, "input_length": 21, "output_length": 3, "hash_ids": [7, 9000000000,8]})"
      "\n\r\n"
      R"({"hash_ids": [7, 5], "timestamp": 1500.5, "input_length": 20, "more": {"x": [1]}})"
      "\n"
      R"({"timestamp": 1500.5, "input_length": 1, "hash_ids": [7]})",
      10, "t");
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), 3u);
  EXPECT_EQ(trace->requests[0].pages, (Pages{0, 1, 2}));
  EXPECT_EQ(trace->requests[1].pages, (Pages{0, 3}));
  EXPECT_EQ(trace->requests[2].pages, Pages{0});
  EXPECT_EQ(trace->requests[0].n_tokens, 21);
  EXPECT_DOUBLE_EQ(trace->requests[1].seconds, 1.5005);
  EXPECT_EQ(trace->page_tokens, 10);
  EXPECT_EQ(trace->n_pages, 6u);
  EXPECT_EQ(trace->n_distinct, 4u);
  EXPECT_DOUBLE_EQ(trace->hit_rate_bound(), 2.0 / 6);
}

TEST(RequestTrace, AMalformedLineIsNamedWithWhatIsWrong) {
  const std::string good = R"({"timestamp": 5, "input_length": 20, "hash_ids": [1, 2]})"
                           "\n\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"rubbish", "not JSON; got a syntax error at byte 1, want an object"},
      {R"({"timestamp": 5)", "not JSON; got a syntax error at byte 16, want an object"},
      {"[1]", "got an array, want an object"},
      {std::string(100, '[') + std::string(100, ']'),
       "JSON nested too deep; want at most 8 levels"},
      {R"({"input_length": 5, "hash_ids": [1]})",
       "timestamp: got none, want a number of 0 or more (ms)"},
      {R"({"timestamp": "5", "input_length": 5, "hash_ids": [1]})",
       "timestamp: got a string, want a number of 0 or more (ms)"},
      {R"({"timestamp": -1, "input_length": 5, "hash_ids": [1]})",
       "timestamp: got -1, want a number of 0 or more (ms)"},
      {R"({"timestamp": 4, "input_length": 5, "hash_ids": [1]})",
       "timestamp: got 4 ms, want 5 or more as on the line before"},
      {R"({"timestamp": 5, "hash_ids": [1]})",
       "input_length: got none, want a whole number 1..2147483647 (tokens)"},
      {R"({"timestamp": 5, "input_length": 0, "hash_ids": []})",
       "input_length: got 0, want a whole number 1..2147483647 (tokens)"},
      {R"({"timestamp": 5, "input_length": 2147483648, "hash_ids": [1]})",
       "input_length: got 2147483648, want a whole number 1..2147483647 (tokens)"},
      {R"({"timestamp": 5, "input_length": 1.5, "hash_ids": [1]})",
       "input_length: got 1.5, want a whole number 1..2147483647 (tokens)"},
      {R"({"timestamp": 5, "input_length": 5})",
       "hash_ids: got none, want an array of whole numbers"},
      {R"({"timestamp": 5, "input_length": 5, "hash_ids": 1})",
       "hash_ids: got 1, want an array of whole numbers"},
      {R"({"timestamp": 5, "input_length": 21, "hash_ids": [1, 2]})",
       "hash_ids: got 2 ids, want 3: one for each 10 of the input's 21 tokens begun"},
      {R"({"timestamp": 5, "input_length": 20, "hash_ids": [1, "2"]})",
       "hash_ids[1]: got a string, want a whole number of 0 or more"},
      {R"({"timestamp": 5, "input_length": 20, "hash_ids": [1, -2]})",
       "hash_ids[1]: got -2, want a whole number of 0 or more"},
      {R"({"timestamp": 5, "input_length": 20, "hash_ids": [3, 2]})",
       "hash_ids[1]: got 2 after 3, want it after 1 as where it was first"},
      {R"({"timestamp": 5, "input_length": 5, "hash_ids": [2]})",
       "hash_ids[0]: got 2 after nothing, want it after 1 as where it was first"},
      {R"({"timestamp": 5, "input_length": 20, "hash_ids": [1, 1]})",
       "hash_ids[1]: got 1 after 1, want it after nothing as where it was first"},
  };
  for (const auto& [line, want] : cases) {
    EXPECT_EQ(error_of(good + line + "\n" + good), "t.jsonl, line 3: " + want) << line;
  }
}

TEST(RequestTrace, AFileThatIsNoTraceSaysSo) {
  EXPECT_EQ(error_of(""), "t.jsonl: got no request, want one a line");
  EXPECT_EQ(error_of("\n \n"), "t.jsonl: got no request, want one a line");
  EXPECT_EQ(error_of("\x1f\x8b\x08..."), "t.jsonl: got gzip, want JSON Lines: unpack it first");
  EXPECT_EQ(error_of(std::string((8 << 20) + 1, 'x')),
            "t.jsonl, line 1: too long; got 8388609 bytes, want at most 8388608");
}

}  // namespace
}  // namespace kvasir::eval
