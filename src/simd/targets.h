// Which SIMD targets are compiled: the one place where they are chosen. Include before any hwy
// header.
//
//   x86-64   AVX3_DL (AVX-512 with VNNI, VBMI and GFNI), AVX3 (AVX-512), AVX2 (with FMA and F16C),
//            SCALAR
//   aarch64  NEON
//
// SSSE3 and SSE4 are left out: they have no FMA, so they could not give the same bits as the
// others, and the CPUs that stop there are older than 2013. SCALAR is the fallback of every x86-64;
// it calls std::fma where the others use the instruction and gives the same bits, slowly. SVE is
// left out because kernels hold vectors in arrays, which sizeless types do not allow.
#pragma once

#define HWY_WANT_AVX3_DL 1
#ifdef KVASIR_FEW_TARGETS
// Sanitized builds: instrumenting fully unrolled kernels is slow, and two targets see every line.
#define HWY_DISABLED_TARGETS \
  (HWY_AVX3 | HWY_AVX3_DL | HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#else
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
