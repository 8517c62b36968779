// What CPU this is and which SIMD code runs on it, for people (`kvasir doctor`, benchmarks).
#pragma once

#include <string>
#include <vector>

namespace kvasir::simd {

struct CpuReport {
  std::string brand;                          ///< "AMD EPYC 7763 64-Core Processor"
  std::vector<std::string> caches;            ///< of one core: "L1d 32K", "L2 512K", "L3 32768K"
  std::vector<std::string> features;          ///< of those the kernels can use: "avx2", "f16c", ...
  std::string active_target;                  ///< what dispatch chooses: "AVX3_DL", "AVX2", "NEON"
  std::vector<std::string> compiled_targets;  ///< best first
};

/// Reads /proc/cpuinfo and /sys, and asks Highway. What the system does not tell stays empty.
CpuReport cpu_report();

}  // namespace kvasir::simd
