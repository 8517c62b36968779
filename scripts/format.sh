#!/usr/bin/env bash
# clang-format over every C++ file that git knows or would take.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

scripts/install-deps.sh clang-format git
git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' '*.cpp' |
  xargs -0 -r clang-format -i
