// Invariant checks: a broken invariant is a bug of ours and aborts; it is never reachable from
// input.
#pragma once

namespace kvasir::internal {
[[noreturn]] void check_failed(const char* file, int line, const char* expression);
}  // namespace kvasir::internal

// On in every build: control plane (pool, tables, tree).
#define KVASIR_CHECK(condition) \
  ((condition) ? (void)0 : ::kvasir::internal::check_failed(__FILE__, __LINE__, #condition))

// On in debug builds only: inside kernels.
#ifdef NDEBUG
#define KVASIR_DCHECK(condition) ((void)0)
#else
#define KVASIR_DCHECK(condition) KVASIR_CHECK(condition)
#endif
