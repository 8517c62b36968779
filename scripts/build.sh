#!/usr/bin/env bash
# Configures and builds a preset of CMakePresets.json in build/PRESET.
# Usage: scripts/build.sh PRESET [target...]
set -euo pipefail
source "$(dirname "$0")/lib.sh"

preset=${1:?want a preset of CMakePresets.json}
shift
dir=build/$preset

# A checkout that was moved or copied: CMake refuses to reuse its cache.
if [ -f "$dir/CMakeCache.txt" ] &&
  ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$dir/CMakeCache.txt"; then
  say "$dir was made for another folder: starting it anew"
  rm -rf "$dir"
fi

# One cache for every preset and every checkout: paths count from the checkout's root.
launcher=$(command -v ccache || true)
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
step "configure $preset" "configure-$preset" \
  cmake --preset "$preset" "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher"

gb_per_job=1
case $preset in dev | tsan) gb_per_job=2 ;; esac
targets=()
for target in "$@"; do targets+=(--target "$target"); done
step "build $preset${*:+ ($*)}" "build-$preset" \
  cmake --build "$dir" -j "$(n_jobs $gb_per_job)" "${targets[@]}"
