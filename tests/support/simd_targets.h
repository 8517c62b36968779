// Runs a test body once per SIMD target that is compiled in and that this CPU supports.
#pragma once

#include <cstdint>
#include <string>

#include "simd/cpu.h"
#include "simd/targets.h"

#include "hwy/highway.h"

namespace kvasir {

/// Calls `body(target_name)` with the run-time dispatch forced to each target in turn, best first;
/// with and without the instructions that are no target of Highway's, where the CPU has them.
template <class Body>
void for_each_target(Body&& body) {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
  body(hwy::TargetName(HWY_TARGETS));  // one target, compiled statically: nothing to dispatch
#else
  // `set_use`: turns the kernels' use of `extension` on and off.
  const auto with_and_without = [&](const std::string& name, const char* extension, bool has,
                                    void (*set_use)(bool)) {
    if (has) {
      body((name + " with " + extension).c_str());
      set_use(false);
    }
    body(name.c_str());
    if (has) set_use(true);
  };
  const std::int64_t supported = hwy::SupportedTargets();
  for (std::int64_t rest = supported & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & -rest;
    const char* name = hwy::TargetName(target);
    hwy::SetSupportedTargetsForTest(target);
    if (target == HWY_AVX2) {
      with_and_without(name, "AVX-VNNI", simd::use_avx_vnni(), simd::set_avx_vnni_for_test);
    } else if (target == HWY_AVX3) {
      with_and_without(name, "BF16", simd::use_avx512_bf16(), simd::set_avx512_bf16_for_test);
    } else {
      body(name);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
#endif
}

}  // namespace kvasir
