// Runs a test body once per SIMD target that is compiled in and that this CPU supports.
#pragma once

#include <cstdint>

#include "simd/cpu.h"
#include "simd/targets.h"

#include "hwy/highway.h"

namespace kvasir {

/// Calls `body(target_name)` with the run-time dispatch forced to each target in turn, best first;
/// AVX2 on a CPU with AVX-VNNI with it and without.
template <class Body>
void for_each_target(Body&& body) {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
  body(hwy::TargetName(HWY_TARGETS));  // one target, compiled statically: nothing to dispatch
#else
  const std::int64_t supported = hwy::SupportedTargets();
  for (std::int64_t rest = supported & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & -rest;
    hwy::SetSupportedTargetsForTest(target);
    if (target == HWY_AVX2 && simd::use_avx_vnni()) {
      body("AVX2 with AVX-VNNI");
      simd::set_avx_vnni_for_test(false);
      body(hwy::TargetName(target));
      simd::set_avx_vnni_for_test(true);
      continue;
    }
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
#endif
}

}  // namespace kvasir
