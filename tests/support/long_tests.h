// Counts of tests that take minutes in full: a part of them by default, all with KVASIR_LONG_TESTS.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kvasir::testing {

/// `full` where KVASIR_LONG_TESTS is set and not "0"; else `few`, with a line that says so.
inline int count_of(const char* what, int few, int full) {
  const char* text = std::getenv("KVASIR_LONG_TESTS");
  const bool is_long = text != nullptr && *text != '\0' && *text != '0';
  if (!is_long) {
    std::printf("%d of %d %s: all take long; KVASIR_LONG_TESTS=1 does them\n", few, full, what);
  }
  return is_long ? full : few;
}

}  // namespace kvasir::testing
