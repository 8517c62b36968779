#include "eval/pareto_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "eval/svg.h"

namespace kvasir::eval {

namespace {

constexpr double kWidth = 860, kHeight = 540;
constexpr double kLeft = 80, kRight = 830, kTop = 60, kBottom = 470;
constexpr double kRadius = 4.5;
constexpr double kLetterWidth = 6.6, kLabelHeight = 13;  // of 11 px, generously
constexpr const char* kFrontColor = "#1f6feb";
constexpr const char* kOtherColor = "#b3402e";

struct Box {
  double left, top, right, bottom;

  bool overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
  bool is_in_frame() const {
    return left >= kLeft && right <= kRight && top >= kTop && bottom <= kBottom;
  }
};

struct Label {
  double x, y;  ///< of the text's anchor, on its base line
  const char* anchor;
  bool is_far;  ///< a line leads to the point
  Box box;
};

Label label_at(double x, double y, const char* anchor, double width, bool is_far) {
  const double left = *anchor == 's' ? x : *anchor == 'e' ? x - width : x - width / 2;
  return {x, y, anchor, is_far, {left, y - kLabelHeight + 3, left + width, y + 3}};
}

/// Where a label of this width may stand, the best first.
std::vector<Label> places(double x, double y, double width) {
  std::vector<Label> all = {
      label_at(x + 8, y + 4, "start", width, false), label_at(x - 8, y + 4, "end", width, false),
      label_at(x, y - 9, "middle", width, false), label_at(x, y + 17, "middle", width, false)};
  for (int ring = 1; ring <= 12; ++ring) {
    for (const double side : {-1.0, 1.0}) {
      const double dx = 8 + 3 * ring, to = y + 4 + side * 13 * ring;
      all.push_back(label_at(x + dx, to, "start", width, true));
      all.push_back(label_at(x - dx, to, "end", width, true));
    }
  }
  return all;
}

std::string label_text(const ParetoRow& row) {
  if (row.rates.median <= 0) return row.name;
  return fmt::format("{}, {:.1f} t/s", row.name, row.rates.median);
}

class Plot {
 public:
  explicit Plot(std::span<const ParetoRow> rows) : rows_(rows) {
    double least = 0, most = 0, widest = 0;
    for (const ParetoRow& row : rows) {
      const double kld = row.quality.kld_mean;
      widest = std::max(widest, row.percent_of_f16());
      if (!(kld > 0)) continue;
      least = least > 0 ? std::min(least, kld) : kld;
      most = std::max(most, kld);
    }
    x_step_ = widest > 130 ? 20 : 10;
    x_end_ = std::max(1.0, std::ceil(widest * 1.02 / x_step_)) * x_step_;
    if (most <= 0) least = most = 1e-6;
    // The axis itself is where 0 stands, so that no point may lie on it.
    low_ = static_cast<int>(std::floor(std::log10(least) - 0.1));
    high_ = std::max(low_ + 1, static_cast<int>(std::ceil(std::log10(most) + 0.05)));
    for (const ParetoRow& row : rows) {
      const double x = x_of(row), y = y_of(row);
      taken_.push_back({x - kRadius, y - kRadius, x + kRadius, y + kRadius});
    }
  }

  std::string draw(std::string_view title) {
    std::string svg = svg_begin(kWidth, kHeight);
    svg += text_at(kLeft, 26, "start", kInkColor, title);
    svg += text_at(kLeft, 46, "start", kFrontColor,
                   "on the front: no other type has fewer bytes and less KLD");
    svg += axes() + front();
    for (const ParetoRow& row : rows_) svg += point(row);
    // White around letters: lines below them do not touch them.
    svg +=
        "<g class=\"labels\" font-size=\"11\" stroke=\"white\" stroke-width=\"3\" "
        "paint-order=\"stroke\">\n";
    std::string leaders;
    for (const ParetoRow& row : rows_) svg += label(row, leaders);
    return svg + "</g>\n" + leaders + "</svg>\n";
  }

 private:
  double x_of(const ParetoRow& row) const { return x_of(row.percent_of_f16()); }
  double x_of(double percent) const { return kLeft + percent / x_end_ * (kRight - kLeft); }
  double y_of(const ParetoRow& row) const {
    const double kld = row.quality.kld_mean;
    return kld > 0 ? y_of(std::log10(kld)) : kBottom;
  }
  double y_of(double exponent) const {
    return kBottom - (exponent - low_) / (high_ - low_) * (kBottom - kTop);
  }

  std::string axes() const {
    const std::string grid = fmt::format("stroke=\"{}\"", kGridColor);
    std::string svg;
    for (int exponent = low_; exponent <= high_; ++exponent) {
      const double y = y_of(static_cast<double>(exponent));
      svg += line_from(kLeft, y, kRight, y, grid);
      svg += text_at(kLeft - 8, y + 4, "end", kInkColor, fmt::format("1e{}", exponent));
    }
    for (double percent = 0; percent <= x_end_; percent += x_step_) {
      const double x = x_of(percent);
      svg += line_from(x, kTop, x, kBottom, grid);
      svg += text_at(x, kBottom + 20, "middle", kInkColor, fmt::format("{:.0f} %", percent));
    }
    svg += text_at((kLeft + kRight) / 2, kBottom + 44, "middle", kInkColor,
                   "bytes of K and V, all in, of f16's");
    const double middle = (kTop + kBottom) / 2;
    return svg + fmt::format("<g transform=\"rotate(-90 20 {:.1f})\">\n", middle) +
           text_at(20, middle, "middle", kInkColor, "mean KLD to f32, nats a token") + "</g>\n";
  }

  std::string front() const {
    std::vector<const ParetoRow*> front;
    for (const ParetoRow& row : rows_) {
      if (row.is_on_front) front.push_back(&row);
    }
    std::sort(front.begin(), front.end(),
              [](const ParetoRow* a, const ParetoRow* b) { return a->bits < b->bits; });
    std::string points;
    for (const ParetoRow* row : front)
      points += fmt::format("{:.1f},{:.1f} ", x_of(*row), y_of(*row));
    return fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-dasharray=\"5 4\"/>\n", points,
        kFrontColor);
  }

  std::string point(const ParetoRow& row) const {
    return fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{}: KLD {:.3g}, {:.1f} %"
        "</title></circle>\n",
        x_of(row), y_of(row), kRadius, row.is_on_front ? kFrontColor : kOtherColor,
        escaped(row.name), row.quality.kld_mean, row.percent_of_f16());
  }

  /// The first place that overlaps nothing; without one, the first in the frame.
  std::string label(const ParetoRow& row, std::string& leaders) {
    const double x = x_of(row), y = y_of(row);
    const std::string text = label_text(row);
    const std::vector<Label> all = places(x, y, kLetterWidth * static_cast<double>(text.size()));
    std::optional<Label> chosen, in_frame;
    for (const Label& place : all) {
      if (!place.box.is_in_frame()) continue;
      if (!in_frame) in_frame = place;
      if (std::none_of(taken_.begin(), taken_.end(),
                       [&](const Box& box) { return box.overlaps(place.box); })) {
        chosen = place;
        break;
      }
    }
    const Label& place = chosen ? *chosen : in_frame ? *in_frame : all.front();
    taken_.push_back(place.box);
    if (place.is_far) {
      leaders += line_from(x, y, place.x, place.y - 4,
                           fmt::format("stroke=\"{}\" stroke-width=\"0.7\"", kInkColor));
    }
    return text_at(place.x, place.y, place.anchor, kInkColor, text);
  }

  const std::span<const ParetoRow> rows_;
  std::vector<Box> taken_;  ///< by points and labels
  double x_step_ = 10, x_end_ = 100;
  int low_ = -6, high_ = 0;  ///< exponents of the y axis
};

/// Where a type's name is llama.cpp's, a column has ours.
bool has_resolved(std::span<const ParetoRow> rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const ParetoRow& row) { return !row.resolved.empty(); });
}

std::vector<std::string> columns_of(std::span<const ParetoRow> rows) {
  std::vector<std::string> columns = {"KV type",    "bits",     "% f16",  "KLD mean",
                                      "+-",         "KLD 99 %", "dPPL %", "same top %",
                                      "t/s median", "min",      "max",    "front"};
  if (has_resolved(rows)) columns.insert(columns.begin() + 1, "stored as");
  return columns;
}

std::vector<std::string> cells_of(const ParetoRow& row, bool is_resolved) {
  const KldFigures& quality = row.quality;
  const auto rate = [&](double value) {
    return row.rates.median > 0 ? fmt::format("{:.2f}", value) : std::string("-");
  };
  const auto kld = [](double value) {
    return value == 0 ? std::string("0") : fmt::format("{:.3g}", value);
  };
  std::vector<std::string> cells = {row.name,
                                    fmt::format("{:.3f}", row.bits),
                                    fmt::format("{:.2f}", row.percent_of_f16()),
                                    kld(quality.kld_mean),
                                    kld(quality.kld_error),
                                    kld(quality.kld_99),
                                    fmt::format("{:.3f}", 100 * quality.excess),
                                    fmt::format("{:.2f}", 100 * quality.same_top),
                                    rate(row.rates.median),
                                    rate(row.rates.min),
                                    rate(row.rates.max),
                                    row.is_on_front ? "yes" : ""};
  if (is_resolved) {
    cells.insert(cells.begin() + 1, row.resolved.empty() ? row.name : row.resolved);
  }
  return cells;
}

constexpr const char* kStyle =
    "body{font-family:sans-serif;color:#24292f;max-width:60em;margin:2em auto;padding:0 1em}\n"
    "table{border-collapse:collapse;margin:1em 0}\n"
    "td,th{border-bottom:1px solid #d0d7de;padding:.25em .6em;text-align:right}\n"
    "td:first-child,th:first-child,.settings td{text-align:left}\n"
    "svg{max-width:100%;height:auto}\n";

constexpr const char* kNotes =
    "<p>Bits and bytes are all in: pages in use at a chunk's end, with metadata and padding, and "
    "their tables. KLD is the divergence, in nats, of next-token distributions from those over f32 "
    "K and V, on the same text and weights; its error takes tokens as independent. dPPL is the "
    "change of perplexity. Speed is that of one sequence; every round times each type "
    "once, after a round that does not count. The front is that of bytes and mean KLD.</p>\n";

}  // namespace

std::string pareto_table(std::span<const ParetoRow> rows) {
  const bool is_resolved = has_resolved(rows);
  const std::vector<std::string> columns = columns_of(rows);
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text = fmt::format("{:<16}", cells[0]);
    for (std::size_t i = 1; i < columns.size(); ++i) {
      if (i == 1 && is_resolved) {
        text += fmt::format(" {:<16}", cells[i]);
        continue;
      }
      const std::size_t width = std::max<std::size_t>(columns[i].size() + 2, 9);
      text += fmt::format("{:>{}}", cells[i], width);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string table = line(columns);
  for (const ParetoRow& row : rows) table += line(cells_of(row, is_resolved));
  return table;
}

std::string pareto_plot(std::span<const ParetoRow> rows, std::string_view title) {
  KVASIR_CHECK(!rows.empty());
  return Plot(rows).draw(title);
}

std::string pareto_page(std::span<const ParetoRow> rows, const ReportSettings& settings,
                        std::string_view title) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n"
      "<style>\n{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      escaped(title), kStyle);
  page += pareto_plot(rows, title) + "<table>\n<tr>";
  for (const std::string& name : columns_of(rows)) {
    page += fmt::format("<th>{}</th>", escaped(name));
  }
  page += "</tr>\n";
  for (const ParetoRow& row : rows) {
    page += "<tr>";
    for (const std::string& cell : cells_of(row, has_resolved(rows))) {
      page += fmt::format("<td>{}</td>", escaped(cell));
    }
    page += "</tr>\n";
  }
  page += "</table>\n" + std::string(kNotes) +
          "<h2>How it was taken</h2>\n<table class=\"settings\">\n";
  for (const auto& [name, value] : settings) {
    page += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escaped(name), escaped(value));
  }
  return page + "</table>\n</body>\n</html>\n";
}

}  // namespace kvasir::eval
