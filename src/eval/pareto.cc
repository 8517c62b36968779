#include "eval/pareto.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "base/check.h"

namespace kvasir::eval {

namespace {

bool beats(const ParetoRow& a, const ParetoRow& b) {
  const double a_kld = a.quality.kld_mean, b_kld = b.quality.kld_mean;
  return a.bits <= b.bits && a_kld <= b_kld && (a.bits < b.bits || a_kld < b_kld);
}

}  // namespace

RateRange rates_of(const ThroughputRow& row) {
  if (row.seconds.empty()) return {};
  const auto [least, most] = std::minmax_element(row.seconds.begin(), row.seconds.end());
  return {row.n_tokens() / *most, row.median_rate(), row.n_tokens() / *least};
}

std::vector<ParetoRow> pareto_rows(const KldReport& report, std::span<const KvFormat> formats,
                                   std::span<const ThroughputRow> speeds) {
  KVASIR_CHECK(report.all.size() == formats.size());
  KVASIR_CHECK(speeds.empty() || speeds.size() == formats.size());
  std::vector<ParetoRow> rows;
  for (std::size_t i = 0; i < formats.size(); ++i) {
    ParetoRow row{formats[i].name, report.all[i],      report.bits_per_value(report.all[i]), {},
                  false,           formats[i].resolved};
    if (!speeds.empty()) row.rates = rates_of(speeds[i]);
    rows.push_back(std::move(row));
  }
  for (ParetoRow& row : rows) {
    row.is_on_front = std::none_of(rows.begin(), rows.end(),
                                   [&](const ParetoRow& other) { return beats(other, row); });
  }
  return rows;
}

Result<std::vector<ThroughputRow>> format_speeds(engine::Engine& engine,
                                                 std::span<const KvFormat> formats,
                                                 const SpeedOptions& options,
                                                 const std::function<void(int, int)>& progress,
                                                 const std::atomic<bool>* stop) {
  std::vector<std::unique_ptr<cache::KvCache>> caches;
  std::vector<cache::KvCache*> pointers;
  for (const KvFormat& format : formats) {
    auto cache = engine.make_cache(format.choice);
    if (!cache) {
      return Error{cache.error().code, fmt::format("{}: {}", format.name, cache.error().message)};
    }
    caches.push_back(std::move(*cache));
    pointers.push_back(caches.back().get());
  }
  return speed_rounds(engine, pointers, options, progress, stop);
}

}  // namespace kvasir::eval
