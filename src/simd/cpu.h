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

/// Whether the AVX2 kernels multiply bytes with AVX-VNNI's `vpdpbusd`: where the CPU has it. It is
/// no target of Highway's, so the kernels ask here; nor is the next.
bool use_avx_vnni();
/// Whether the AVX-512 kernels multiply bf16 pairs with AVX512_BF16's `vdpbf16ps`.
bool use_avx512_bf16();

/// Override the CPU's answer, for tests that compare both ways. Not while kernels run.
void set_avx_vnni_for_test(bool use);
void set_avx512_bf16_for_test(bool use);

}  // namespace kvasir::simd
