#include "simd/cpu.h"

#include "simd/targets.h"

// after the target choice
#include <hwy/highway.h>

#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

namespace kvasir::simd {
namespace {

constexpr std::array<std::string_view, 12> kFeatures = {
    "avx2",        "fma",         "f16c",     "avx_vnni", "avx512f", "avx512bw",
    "avx512_vnni", "avx512_bf16", "amx_int8", "asimd",    "asimddp", "i8mm"};

std::vector<std::string> target_names(std::int64_t targets) {
  std::vector<std::string> names;
  while (targets != 0) {  // lower bits are better targets
    const std::int64_t lowest = targets & -targets;
    names.emplace_back(hwy::TargetName(lowest));
    targets ^= lowest;
  }
  return names;
}

/// The value of "key : value"; empty when the line has another key.
std::string value_after(const std::string& line, std::string_view key) {
  if (line.compare(0, key.size(), key) != 0) return {};
  const std::size_t colon = line.find(": ");
  return colon == std::string::npos ? std::string() : line.substr(colon + 2);
}

}  // namespace

CpuReport cpu_report() {
  CpuReport report;
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (report.brand.empty()) report.brand = value_after(line, "model name");
    std::string flags = value_after(line, "flags");
    if (flags.empty()) flags = value_after(line, "Features");
    if (!flags.empty()) {
      std::istringstream words(flags);
      std::string word;
      while (words >> word) {
        for (const std::string_view feature : kFeatures) {
          if (word == feature) report.features.push_back(word);
        }
      }
      break;  // one CPU speaks for all
    }
  }
  if (report.brand.empty()) report.brand = "unknown CPU";
  report.compiled_targets = target_names(HWY_TARGETS);
  const auto usable = target_names(HWY_TARGETS & hwy::SupportedTargets());
  report.active_target = usable.empty() ? "none" : usable.front();
  return report;
}

}  // namespace kvasir::simd
