// Replays of tiny traces, counted by hand, and the trace that the policies are judged by.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/env.h"
#include "eval/cache_replay.h"
#include "eval/replay_plot.h"
#include "support/shared_data.h"

namespace kvasir::eval {
namespace {

using cache::EvictionPolicy;

/// A request a second; pages of ten tokens, the last one half full.
RequestTrace trace_of(const std::vector<std::vector<int>>& requests) {
  std::string text;
  double ms = 0;
  for (const auto& pages : requests) {
    std::string ids;
    for (const int page : pages) ids += (ids.empty() ? "" : ",") + std::to_string(page);
    text += "{\"timestamp\":" + std::to_string(ms) +
            ",\"input_length\":" + std::to_string(10 * pages.size() - 5) + ",\"hash_ids\":[" + ids +
            "]}\n";
    ms += 1000;
  }
  auto trace = parse_trace(text, 10, "test");
  EXPECT_TRUE(trace) << trace.error().message;
  return *std::move(trace);
}

/// A B C, then A B D, then A B C again.
RequestTrace fork_trace() { return trace_of({{1, 2, 3}, {1, 2, 4}, {1, 2, 3}}); }

ReplayReport run(const RequestTrace& trace, std::uint64_t memory, std::uint64_t disk = 0,
                 EvictionPolicy policy = EvictionPolicy::kLru) {
  return replay(trace, {.policy = policy,
                        .memory_pages = memory,
                        .disk_pages = disk,
                        .page_bytes = 1000,
                        .cost = {.token_seconds = 1, .token_seconds_per_position = 0}});
}

TEST(CacheReplay, RoomForAllFindsWhatTheTraceAllows) {
  const RequestTrace trace = fork_trace();
  for (const EvictionPolicy policy : cache::kAllPolicies) {
    const ReplayReport report = run(trace, 4, 0, policy);
    EXPECT_EQ(report.n_requests, 3u);
    EXPECT_EQ(report.n_pages, 9u);
    EXPECT_EQ(report.memory_pages, 5u);  // A B, then A B C
    EXPECT_EQ(report.disk_pages, 0u);
    EXPECT_EQ(report.n_tokens, 75);
    EXPECT_EQ(report.memory_tokens, 20 + 24) << "the last token is computed";
    EXPECT_EQ(report.prefill_seconds, 75);
    EXPECT_EQ(report.saved_seconds, 44);
    EXPECT_EQ(report.n_evicted + report.n_unkept + report.n_written, 0u);
    EXPECT_DOUBLE_EQ(report.hit_rate(), trace.hit_rate_bound());
  }
}

TEST(CacheReplay, WhatIsInUseStaysAndTheRestMakesRoom) {
  const ReplayReport report = run(fork_trace(), 3);
  EXPECT_EQ(report.memory_pages, 4u);  // A B each time: D drove out C, then C drove out D
  EXPECT_EQ(report.n_evicted, 2u);
  EXPECT_EQ(report.n_unkept, 0u);
}

TEST(CacheReplay, ARequestThatIsTooLongKeepsItsBeginning) {
  const ReplayReport report = run(fork_trace(), 2);
  EXPECT_EQ(report.memory_pages, 4u);  // A B
  EXPECT_EQ(report.n_evicted, 0u) << "what runs is locked";
  EXPECT_EQ(report.n_unkept, 3u);  // C, D, C
  const ReplayReport one = run(fork_trace(), 1);
  EXPECT_EQ(one.memory_pages, 2u);
  EXPECT_EQ(one.n_unkept, 6u);
}

TEST(CacheReplay, TheDiskBringsBackWhatMemoryLost) {
  const ReplayReport report = run(fork_trace(), 3, 4);
  EXPECT_EQ(report.memory_pages, 4u);
  EXPECT_EQ(report.disk_pages, 1u);  // C
  EXPECT_EQ(report.memory_tokens, 20 + 20);
  EXPECT_EQ(report.disk_tokens, 4) << "of the five tokens of C the last is computed";
  EXPECT_EQ(report.n_written, 4u);
  EXPECT_EQ(report.bytes_written, 4000u);
  EXPECT_EQ(report.bytes_read, 1000u);
  EXPECT_EQ(report.n_disk_evicted, 0u);
  EXPECT_EQ(report.n_evicted, 2u);  // C for D, D for C
  EXPECT_EQ(report.saved_seconds, 44);
}

TEST(CacheReplay, AFullDiskLetsGoOfEndsFirst) {
  const ReplayReport report = run(fork_trace(), 3, 3);
  EXPECT_EQ(report.disk_pages, 0u);  // D took the place of C, then C that of D
  EXPECT_EQ(report.n_disk_evicted, 2u);
  EXPECT_EQ(report.n_written, 5u);
  EXPECT_EQ(report.bytes_read, 0u);
  // Room for one page: B does not drive out A, which it follows; C does, then D, then C again.
  EXPECT_EQ(run(fork_trace(), 3, 1).n_written, 4u);
}

TEST(CacheReplay, ThePolicyDecidesWhoLeaves) {
  // Two pages fit. The last request wants 1, which was used twice, and longer ago than 2.
  const RequestTrace trace = trace_of({{1}, {1}, {2}, {3}, {1}});
  EXPECT_EQ(run(trace, 2, 0, EvictionPolicy::kLru).memory_pages, 1u);
  EXPECT_EQ(run(trace, 2, 0, EvictionPolicy::kLfu).memory_pages, 2u);
}

TEST(CacheReplay, StopsWhenItIsToldAndSaysHowFarItCame) {
  std::vector<std::vector<int>> requests;
  for (int i = 0; i < 200; ++i) requests.push_back({i});
  const RequestTrace trace = trace_of(requests);
  std::atomic<bool> stop{false};
  std::vector<std::size_t> seen;
  const auto progress = [&](std::size_t n_done) {
    seen.push_back(n_done);
    stop = n_done >= 128;
  };
  EXPECT_EQ(replay(trace, {.memory_pages = 5}, progress, &stop).n_requests, 128u);
  EXPECT_EQ(seen, (std::vector<std::size_t>{64, 128}));
}

TEST(CacheReplay, APrefillCostsMoreTheMoreItSees) {
  const PrefillCost cost{.token_seconds = 1, .token_seconds_per_position = 1};
  EXPECT_EQ(cost.seconds(0, 3), 3 + 0 + 1 + 2);
  EXPECT_EQ(cost.seconds(2, 4), 2 + 2 + 3);
  EXPECT_EQ(cost.seconds(4, 4), 0);
}

TEST(ReplayPlot, HasALineForEachPolicyBelowTheBound) {
  const RequestTrace trace = fork_trace();
  std::vector<ReplayRow> rows;
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kCost}) {
    for (const std::uint64_t memory : {4u, 1u}) {
      const ReplayOptions options{.policy = policy, .memory_pages = memory};
      rows.push_back({options, replay(trace, options)});
    }
  }
  const std::string svg = plot_replays(trace, rows, "a <b> & c\x01");
  const auto count = [&](const std::string& what) {
    std::size_t n = 0;
    for (auto at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0u);
  EXPECT_EQ(count("<polyline"), 2u);
  EXPECT_EQ(count("<circle"), 4u);
  EXPECT_EQ(count("a &lt;b&gt; &amp; c<"), 1u);
  EXPECT_EQ(count("without limit: 55.6 %"), 1u);
  EXPECT_EQ(count("lru, 4 pages: 55.56 %"), 1u);
  EXPECT_EQ(count("cost, 1 pages: 22.22 %"), 1u);
  EXPECT_EQ(count("href"), 0u) << "nothing from elsewhere";
  const std::string one = plot_replays(trace, {rows.data(), 1}, "");  // no span of capacities
  EXPECT_EQ(one.find("nan"), std::string::npos);
}

/// Hit rates of `policy` at 5, 10 and 20 % of the distinct pages.
std::vector<double> hit_rates(const RequestTrace& trace, EvictionPolicy policy) {
  std::vector<double> rates;
  for (const std::uint64_t share : {5u, 10u, 20u}) {
    rates.push_back(replay(trace, {.policy = policy,
                                   .memory_pages = trace.n_distinct * share / 100,
                                   .page_bytes = 23040 * 512})
                        .hit_rate());
  }
  return rates;
}

TEST(CacheReplay, OfMooncakesConversationsCostFindsNoLessThanLru) {
  const std::string path = testing::shared_data("traces/mooncake_conversation.jsonl").string();
  const auto text = Env::posix().read_file(path, std::uint64_t{64} << 20);
  if (!text) GTEST_SKIP() << "no trace in KVASIR_TEST_DATA nor beside the checkout: " << path;
  const auto trace = parse_trace(*text, 512, path);
  ASSERT_TRUE(trace) << trace.error().message;
  // Counted from the file by a script of ten lines.
  EXPECT_EQ(trace->requests.size(), 12031u);
  EXPECT_EQ(trace->n_pages, 288500u);
  EXPECT_EQ(trace->n_distinct, 182790u);
  EXPECT_EQ(replay(*trace, {.memory_pages = trace->n_distinct}).memory_pages, 288500u - 182790u);
  const auto lru = hit_rates(*trace, EvictionPolicy::kLru);
  const auto cost = hit_rates(*trace, EvictionPolicy::kCost);
  for (std::size_t i = 0; i < lru.size(); ++i) {
    EXPECT_GE(cost[i], lru[i]) << i;
    EXPECT_LE(cost[i], trace->hit_rate_bound()) << i;
  }
}

}  // namespace
}  // namespace kvasir::eval
