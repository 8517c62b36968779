#include "eval/replay_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "eval/svg.h"

namespace kvasir::eval {

namespace {

constexpr double kWidth = 760, kHeight = 440;
constexpr double kLeft = 70, kRight = 730, kTop = 70, kBottom = 380;
constexpr double kMargin = 24;  ///< between the frame and the first and last capacity

const char* color_of(cache::EvictionPolicy policy) {
  switch (policy) {
    case cache::EvictionPolicy::kLru:
      return "#1f6feb";
    case cache::EvictionPolicy::kLfu:
      return "#b3402e";
    case cache::EvictionPolicy::kCost:
      return "#1a7f5a";
  }
  KVASIR_CHECK(!"a policy of this enum");
  return kInkColor;
}

class Plot {
 public:
  Plot(const RequestTrace& trace, std::span<const ReplayRow> rows) : trace_(trace), rows_(rows) {
    for (const ReplayRow& row : rows) {
      capacities_.push_back(row.options.memory_pages);
      const auto policy = row.options.policy;
      if (std::find(policies_.begin(), policies_.end(), policy) == policies_.end()) {
        policies_.push_back(policy);
      }
    }
    std::sort(capacities_.begin(), capacities_.end());
    capacities_.erase(std::unique(capacities_.begin(), capacities_.end()), capacities_.end());
    top_rate_ = std::ceil(std::max(trace.hit_rate_bound(), 0.01) * 20 + 0.5) / 20;
  }

  std::string draw(std::string_view title) const {
    std::string svg = svg_begin(kWidth, kHeight);
    svg += text_at(kLeft, 24, "start", kInkColor, title) + axes() + bound();
    double legend_x = kLeft;
    for (const auto policy : policies_) {
      svg += curve(policy);
      svg += text_at(legend_x, 48, "start", color_of(policy), cache::policy_name(policy));
      legend_x += 60;
    }
    return svg + "</svg>\n";
  }

 private:
  double x_of(std::uint64_t capacity) const {
    const double low = std::log(static_cast<double>(capacities_.front()));
    const double span = std::log(static_cast<double>(capacities_.back())) - low;
    const double share = span > 0 ? (std::log(static_cast<double>(capacity)) - low) / span : 0.5;
    return kLeft + kMargin + share * (kRight - kLeft - 2 * kMargin);
  }
  double y_of(double rate) const { return kBottom - rate / top_rate_ * (kBottom - kTop); }

  std::string axes() const {
    std::string svg;
    const double step = top_rate_ > 0.4 ? 0.1 : 0.05;
    for (int i = 0; i * step < top_rate_ + step / 2; ++i) {
      const double y = y_of(i * step);
      svg += line_from(kLeft, y, kRight, y, fmt::format("stroke=\"{}\"", kGridColor));
      svg += text_at(kLeft - 8, y + 4, "end", kInkColor, fmt::format("{:.0f} %", 100 * i * step));
    }
    double free_from = 0;  // where no name of a capacity stands yet
    for (const std::uint64_t capacity : capacities_) {
      const double share = static_cast<double>(capacity) / static_cast<double>(trace_.n_distinct);
      const double x = x_of(capacity);
      svg += line_from(x, kBottom, x, kBottom + 5, fmt::format("stroke=\"{}\"", kInkColor));
      if (x < free_from) continue;
      svg += text_at(x, kBottom + 20, "middle", kInkColor, fmt::format("{:.3g} %", 100 * share));
      free_from = x + 48;
    }
    return svg + text_at((kLeft + kRight) / 2, kBottom + 42, "middle", kInkColor,
                         fmt::format("memory, of the {} distinct pages", trace_.n_distinct));
  }

  std::string bound() const {
    const double y = y_of(trace_.hit_rate_bound());
    const std::string style = fmt::format("stroke=\"{}\" stroke-dasharray=\"6 4\"", kInkColor);
    return line_from(kLeft, y, kRight, y, style) +
           text_at(kRight, y - 6, "end", kInkColor,
                   fmt::format("without limit: {:.1f} %", 100 * trace_.hit_rate_bound()));
  }

  std::string curve(cache::EvictionPolicy policy) const {
    std::vector<const ReplayRow*> rows;
    for (const ReplayRow& row : rows_) {
      if (row.options.policy == policy) rows.push_back(&row);
    }
    std::stable_sort(rows.begin(), rows.end(), [](const ReplayRow* a, const ReplayRow* b) {
      return a->options.memory_pages < b->options.memory_pages;
    });
    std::string points, circles;
    for (const ReplayRow* row : rows) {
      const double x = x_of(row->options.memory_pages), y = y_of(row->report.hit_rate());
      points += fmt::format("{:.1f},{:.1f} ", x, y);
      circles += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}, {} pages: {:.2f} %"
          "</title></circle>\n",
          x, y, color_of(policy), cache::policy_name(policy), row->options.memory_pages,
          100 * row->report.hit_rate());
    }
    return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                       points, color_of(policy)) +
           circles;
  }

  const RequestTrace& trace_;
  const std::span<const ReplayRow> rows_;
  std::vector<std::uint64_t> capacities_;  ///< ascending
  std::vector<cache::EvictionPolicy> policies_;
  double top_rate_ = 1;  ///< of the y axis
};

}  // namespace

std::string plot_replays(const RequestTrace& trace, std::span<const ReplayRow> rows,
                         std::string_view title) {
  KVASIR_CHECK(!rows.empty());
  return Plot(trace, rows).draw(title);
}

}  // namespace kvasir::eval
