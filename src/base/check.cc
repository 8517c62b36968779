#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvasir::internal {

void check_failed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "kvasir: broken invariant at %s:%d: %s\n", file, line, expression);
  std::abort();
}

}  // namespace kvasir::internal
