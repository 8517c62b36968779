// Highway's run-time part for a build with one target: that target is supported, nothing is chosen.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "hwy/highway.h"

namespace hwy {

int64_t SupportedTargets() { return HWY_TARGETS; }
void DisableTargets(int64_t) {}
void SetSupportedTargetsForTest(int64_t) {}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

void Abort(const char* file, int line, const char* format, ...) {
  std::fprintf(stderr, "%s:%d: ", file, line);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::abort();
}

}  // namespace hwy
