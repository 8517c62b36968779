// Types of K and V by bytes, quality and speed: the front, the table, the plot and the page.
#include "eval/pareto.h"

#include <gtest/gtest.h>

#include <array>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "eval/pareto_report.h"
#include "eval/svg.h"

namespace kvasir::eval {
namespace {

ParetoRow row_of(const std::string& name, double percent, double kld, double rate) {
  ParetoRow row;
  row.name = name;
  row.bits = 16 * percent / 100;
  row.quality.kld_mean = kld;
  row.rates = {0.9 * rate, rate, 1.1 * rate};
  return row;
}

/// Figures like those of the default list.
std::vector<ParetoRow> rows() {
  std::vector<ParetoRow> all = {
      row_of("f16", 100.2, 1.1e-6, 30.1),   row_of("bf16", 100.2, 7e-5, 33.2),
      row_of("int8", 51.8, 1.0e-4, 41),     row_of("int8-g64", 53.3, 1.4e-4, 40.2),
      row_of("int4", 30.8, 2.9e-3, 44.7),   row_of("int4:tail=0", 29.1, 3.4e-3, 44.9),
      row_of("int4-3", 27.7, 4.8e-3, 44.1), row_of("int4-3:tail=0", 26.0, 5.5e-3, 44.4),
      row_of("int3", 24.4, 1.9e-2, 43.8)};
  all[0].is_on_front = all[2].is_on_front = true;
  return all;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// What stands between `begin` and `end`, wherever they do.
std::vector<std::string> between(const std::string& text, const std::string& begin,
                                 const std::string& end) {
  std::vector<std::string> all;
  for (std::size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const std::size_t first = at + begin.size();
    all.push_back(text.substr(first, text.find(end, first) - first));
  }
  return all;
}

/// Left, top, right and bottom of every label, letters taken as 6 wide and 9 high.
std::vector<std::array<double, 4>> labels_of(const std::string& svg) {
  const std::string labels = between(svg, "<g class=\"labels\"", "</g>").at(0);
  std::vector<std::array<double, 4>> boxes;
  for (const std::string& label : between(labels, "<text", "</text>")) {
    const double x = std::stod(between(label, " x=\"", "\"").at(0));
    const double y = std::stod(between(label, " y=\"", "\"").at(0));
    const std::string anchor = between(label, "text-anchor=\"", "\"").at(0);
    const double width = 6.0 * static_cast<double>(label.size() - label.find('>') - 1);
    const double left = anchor == "start" ? x : anchor == "end" ? x - width : x - width / 2;
    boxes.push_back({left, y - 9, left + width, y});
  }
  return boxes;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

TEST(ParetoRows, AreOnTheFrontUnlessAnotherHasLessOfOneAndNoMoreOfBoth) {
  const std::vector<KvFormat> formats = {{"a", {}}, {"b", {}}, {"c", {}}, {"d", {}}};
  KldReport report;
  report.n_values = 8;
  report.all.resize(4);
  const std::pair<std::uint64_t, double> figures[] = {{16, 1e-6}, {16, 1e-5}, {8, 1e-3}, {9, 1e-3}};
  for (std::size_t i = 0; i < 4; ++i) {
    report.all[i].bytes = figures[i].first;
    report.all[i].kld_mean = figures[i].second;
  }
  std::vector<ThroughputRow> speeds(4, ThroughputRow{0, 10, 100, 1, {2, 1, 4}, {}});
  const auto rows = pareto_rows(report, formats, speeds);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_TRUE(rows[0].is_on_front && rows[2].is_on_front);
  EXPECT_FALSE(rows[1].is_on_front || rows[3].is_on_front);
  EXPECT_EQ(rows[0].percent_of_f16(), 100);
  EXPECT_EQ(rows[2].name, "c");
  EXPECT_EQ(rows[0].rates.min, 2.5);
  EXPECT_EQ(rows[0].rates.median, 5);
  EXPECT_EQ(rows[0].rates.max, 10);
  EXPECT_EQ(pareto_rows(report, formats, {})[0].rates.max, 0);
}

/// Where a name was llama.cpp's, a column says what of ours it is; the label stays.
TEST(ParetoTable, HasAColumnOfOurNamesWhereTheyDiffer) {
  std::vector<KvFormat> formats = {{"q4_0", {}, "int4"}, {"f16", {}}};
  KldReport report;
  report.n_values = 8;
  report.all.resize(2);
  auto rows = pareto_rows(report, formats, {});
  const std::string table = pareto_table(rows);
  const auto second_line = table.find('\n') + 1;
  EXPECT_EQ(words_of(table.substr(second_line))[0], "q4_0");
  EXPECT_EQ(words_of(table.substr(second_line))[1], "int4");
  EXPECT_NE(table.find("stored as"), std::string::npos);
  const std::string page = pareto_page(rows, {}, "title");
  EXPECT_NE(page.find("<td>q4_0</td><td>int4</td>"), std::string::npos);
  EXPECT_NE(page.find("<td>f16</td><td>f16</td>"), std::string::npos);
  EXPECT_NE(page.find("<th>KV type</th><th>stored as</th><th>bits</th>"), std::string::npos);

  formats[0].resolved.clear();
  rows = pareto_rows(report, formats, {});
  EXPECT_EQ(pareto_table(rows).find("stored as"), std::string::npos);
  EXPECT_EQ(pareto_page(rows, {}, "title").find("stored as"), std::string::npos);
}

TEST(ParetoTable, HasALineForEachTypeAndADashWithoutASpeed) {
  auto all = rows();
  all[1].rates = {};
  const std::string table = pareto_table(all);
  EXPECT_EQ(count(table, "\n"), 1 + all.size());
  EXPECT_EQ(table.substr(0, 7), "KV type");
  const auto lines = between(table, "\n", "\n");
  EXPECT_EQ(words_of(lines.at(0)),
            (std::vector<std::string>{"f16", "16.032", "100.20", "1.1e-06", "0", "0", "0.000",
                                      "0.00", "30.10", "27.09", "33.11", "yes"}));
  const auto words = words_of(lines.at(1));
  EXPECT_EQ(words.front(), "bf16");
  EXPECT_EQ(std::vector<std::string>(words.end() - 3, words.end()),
            (std::vector<std::string>{"-", "-", "-"}));
}

TEST(ParetoPlot, KeepsLabelsApartAndEverythingInsideTheCanvas) {
  auto without_speed = rows();
  for (ParetoRow& row : without_speed) row.rates = {};
  auto with_base = rows();
  with_base.push_back(row_of("f32", 200.3, 0, 20));
  for (const auto& all : {rows(), without_speed, with_base}) {
    const std::string svg = pareto_plot(all, "a title");
    EXPECT_EQ(count(svg, "<circle"), all.size());
    const auto labels = labels_of(svg);
    ASSERT_EQ(labels.size(), all.size());
    for (std::size_t i = 0; i < labels.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        EXPECT_FALSE(labels[i][0] < labels[j][2] && labels[j][0] < labels[i][2] &&
                     labels[i][1] < labels[j][3] && labels[j][1] < labels[i][3])
            << all[i].name << " on " << all[j].name;
      }
      EXPECT_GE(labels[i][0], 80);
      EXPECT_LE(labels[i][2], 830);
    }
    for (const char* const name : {"x", "x1", "x2", "cx", "y", "y1", "y2", "cy"}) {
      const bool is_x = std::string_view(name).find('x') != std::string_view::npos;
      for (const std::string& value : between(svg, std::string(" ") + name + "=\"", "\"")) {
        EXPECT_GE(std::stod(value), 0) << name;
        EXPECT_LE(std::stod(value), is_x ? 860 : 540) << name;
      }
    }
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
  EXPECT_EQ(count(pareto_plot(std::vector{row_of("f32", 200, 0, 0)}, ""), "<circle"), 1u);
}

TEST(ParetoPage, EscapesEveryTextAndLoadsNothing) {
  auto all = rows();
  all[0].name = "<script>&\"'";
  const std::string page =
      pareto_page(all, {{"model", "<img src=x>"}, {"\x01name\xff", "\xc3\xa9"}}, "</title><b>");
  for (const char* const raw : {"<script", "<img", "<b>", "</title><b>", "\x01", "\xff"}) {
    EXPECT_EQ(page.find(raw), std::string::npos) << raw;
  }
  EXPECT_NE(page.find("<td>&lt;script&gt;&amp;&quot;&#39;</td>"), std::string::npos);
  EXPECT_NE(page.find("<td>&lt;img src=x&gt;</td>"), std::string::npos);
  EXPECT_NE(page.find("<td>name?</td><td>\xc3\xa9</td>"), std::string::npos);
  EXPECT_EQ(count(page, "<svg"), 1u);
  for (const char* const loads : {"\" src=", "href=", "url(", "@import", "<link", "<script"}) {
    EXPECT_EQ(page.find(loads), std::string::npos) << loads;
  }
}

TEST(FormatSpeeds, TimeEveryTypeOnceARoundAndStopAfterWholeRounds) {
  engine::EngineOptions options;
  options.model_path = KVASIR_SOURCE_DIR "/tests/data/stories260k/stories260K.gguf";
  options.n_threads = 1;
  auto engine = engine::Engine::load(Env::posix(), options);
  ASSERT_TRUE(engine) << engine.error().message;
  const std::vector<KvFormat> formats = {{"f16", {cache::CodecId::kF16, cache::CodecId::kF16}},
                                         {"f32", {cache::CodecId::kF32, cache::CodecId::kF32}}};
  const SpeedOptions wanted{40, 4, 3};
  std::vector<int> steps;
  const auto speeds =
      format_speeds(**engine, formats, wanted, [&](int done, int) { steps.push_back(done); });
  ASSERT_TRUE(speeds) << speeds.error().message;
  EXPECT_EQ(steps.size(), 2u * (1 + 1 + 3));
  for (const ThroughputRow& row : *speeds) {
    EXPECT_EQ(row.seconds.size(), 3u);
    EXPECT_EQ(row.test_name(), "tg4 @ d40");
    EXPECT_GT(rates_of(row).min, 0);
  }
  const auto prompts = format_speeds(**engine, formats, {0, 4, 2, 24});
  ASSERT_TRUE(prompts) << prompts.error().message;
  for (const ThroughputRow& row : *prompts) {
    EXPECT_EQ(row.seconds.size(), 2u);
    EXPECT_EQ(row.test_name(), "pp24");
  }
  std::atomic<bool> stop{false};
  const auto some = format_speeds(
      **engine, formats, wanted, [&](int done, int) { stop = done == 7; }, &stop);
  ASSERT_TRUE(some);
  for (const ThroughputRow& row : *some) EXPECT_EQ(row.seconds.size(), 1u);
  EXPECT_EQ(format_speeds(**engine, formats, wanted, {}, &stop).error().code,
            ErrorCode::kCancelled);
  EXPECT_EQ(format_speeds(**engine, formats, {100000, 4, 3}).error().code, ErrorCode::kExhausted);
}

}  // namespace
}  // namespace kvasir::eval
