#!/usr/bin/env bash
# The checks of tests/lint without a build: layers, docs, hygiene, and the checks' own self-test.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

command -v python3 >/dev/null || scripts/install-deps.sh
code=0
for check in self_test check_layers check_docs check_hygiene; do
  python3 -B "tools/lint/$check.py" || code=1
done
exit $code
