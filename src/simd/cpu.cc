#include "simd/cpu.h"

#include "simd/targets.h"

// after the target choice
#include <hwy/highway.h>

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

namespace kvasir::simd {
namespace {

constexpr std::array<std::string_view, 13> kFeatures = {
    "avx2",        "fma",  "f16c",     "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
    "avx512_bf16", "gfni", "amx_int8", "asimd",    "asimddp", "i8mm"};

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

/// First line of a file; empty when there is none.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> cache_sizes() {
  std::vector<std::string> caches;
  for (int i = 0;; ++i) {
    const std::string index = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const std::string size = first_line(index + "size");
    if (size.empty()) return caches;
    const std::string type = first_line(index + "type");
    if (type == "Instruction") continue;
    caches.push_back("L" + first_line(index + "level") + (type == "Data" ? "d " : " ") + size);
  }
}

/// Bit `bit` of CPUID leaf 7, subleaf 1, EAX.
bool has_feature_7_1([[maybe_unused]] int bit) {
#if HWY_ARCH_X86
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> bit & 1) != 0;
#else
  return false;
#endif
}

/// Highway takes AVX3_DL for supported without a look at GFNI, which its kernels use. Every CPU
/// that has the rest has it, but a hypervisor may hide it.
[[maybe_unused]] const bool kIsGfniChecked = [] {
#if HWY_ARCH_X86
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_gfni = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 8 & 1) != 0;
  if (!has_gfni) hwy::DisableTargets(HWY_AVX3_DL);
#endif
  return true;
}();

bool& avx_vnni_choice() {
  static bool use = has_feature_7_1(4);
  return use;
}

bool& avx512_bf16_choice() {
  static bool use = has_feature_7_1(5);
  return use;
}

}  // namespace

bool use_avx_vnni() { return avx_vnni_choice(); }

bool use_avx512_bf16() { return avx512_bf16_choice(); }

void set_avx_vnni_for_test(bool use) { avx_vnni_choice() = use; }
void set_avx512_bf16_for_test(bool use) { avx512_bf16_choice() = use; }

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
  report.caches = cache_sizes();
  report.compiled_targets = target_names(HWY_TARGETS);
  const auto usable = target_names(HWY_TARGETS & hwy::SupportedTargets());
  report.active_target = usable.empty() ? "none" : usable.front();
  return report;
}

}  // namespace kvasir::simd
