// The CPU report is consistent with what dispatch does.
#include "simd/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvasir::simd {
namespace {

TEST(Cpu, ReportNamesTheCpuAndATargetThatIsCompiled) {
  const CpuReport report = cpu_report();
  EXPECT_FALSE(report.brand.empty());
  ASSERT_FALSE(report.compiled_targets.empty());
  EXPECT_NE(std::find(report.compiled_targets.begin(), report.compiled_targets.end(),
                      report.active_target),
            report.compiled_targets.end())
      << report.active_target;
  for (const std::string& cache : report.caches) {
    EXPECT_EQ(cache.front(), 'L');
    EXPECT_NE(cache.find(' '), std::string::npos) << cache;
  }
}

TEST(Cpu, TheBestTargetIsNotTakenWithoutWhatHighwayDoesNotAskFor) {
  const CpuReport report = cpu_report();
  const auto& has = report.features;
  const bool has_gfni = std::find(has.begin(), has.end(), "gfni") != has.end();
  EXPECT_TRUE(has_gfni || report.active_target != "AVX3_DL") << report.active_target;
}

}  // namespace
}  // namespace kvasir::simd
