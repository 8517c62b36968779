#!/usr/bin/env bash
# `make test`: installs, builds and runs every test.
#
#   release  the whole suite, as it ships
#   dev      AddressSanitizer + UndefinedBehaviorSanitizer over the rooms that read untrusted bytes
#            or compute offsets
#   tsan     ThreadSanitizer over the thread pool
#
# The last line is ctest's closing line of the release suite.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

scripts/install-deps.sh

# Tests on the default model skip, and say so, where it cannot be had.
if model=$(python3 scripts/get-model.py); then
  export KVASIR_TEST_MODEL=$model
else
  say "going on without the default model: the tests that need it will skip"
fi

declare -A summary
# run_ctest PRESET [ctest options...]: fails with the names and outputs of the failed tests.
run_ctest() {
  local preset=$1 log="$log_dir/test-$1.log" code=0
  shift
  KVASIR_LOG_LINES=150 step "test $preset" "test-$preset" \
    ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" "$@" ||
    code=$?
  summary[$preset]=$(grep -E '^[0-9]+% tests passed' "$log" || echo "$preset: no closing line")
  if [ "$code" -ne 0 ]; then
    echo "${summary[$preset]}"
    exit "$code"
  fi
  local n_skipped
  n_skipped=$(grep -cE '\*\*\*Skipped' "$log" || true)
  if [ "$n_skipped" -gt 0 ]; then
    say "$n_skipped tests skipped; their reasons: build/$preset/Testing/Temporary/LastTest.log"
  fi
}

# The test binaries of some rooms, of those that have tests.
with_tests() {
  local room
  for room in "$@"; do
    if compgen -G "tests/$room/*_test.cc" >/dev/null; then echo "${room}_test"; fi
  done
}
# Names of the files FOLDER/*EXTENSION with SUFFIX put in the extension's place.
named_after() { # FOLDER EXTENSION SUFFIX
  local file
  for file in "$1"/*"$2"; do
    if [ -e "$file" ]; then basename "$file" "$2" | sed "s/\$/$3/"; fi
  done
}

scripts/build.sh release
# -LE slow: the aarch64 cross build under qemu takes longer than CI may; `ctest -L slow` runs it.
run_ctest release -LE slow

# -L unit: what is not built here stands in ctest as a failing test, but without a label.
mapfile -t targets < <(
  with_tests base gguf text cache attention
  named_after fuzz _fuzz.cc _fuzz_replay
  named_after examples .cpp ""
)
scripts/build.sh dev "${targets[@]}"
run_ctest dev -L unit

mapfile -t targets < <(with_tests base)
scripts/build.sh tsan "${targets[@]}"
run_ctest tsan -L unit -E '^(fuzz_replay|example)[.]'

echo "dev (ASan, UBSan): ${summary[dev]}"
echo "tsan: ${summary[tsan]}"
echo "${summary[release]}"
