#!/bin/sh
# Cross-compiles the kernel rooms for aarch64 and runs their tests under qemu, twice: for the oldest
# 64-bit Arm, and for those with the int8 dot product. Exit 77: skipped, with the reason printed.
#
#   tests/arm/run.sh BUILD_DIRECTORY
set -eu
source_dir=$(cd "$(dirname "$0")" && pwd)
build_dir=${1:?"usage: run.sh BUILD_DIRECTORY"}

need() {
  if ! command -v "$1" >/dev/null; then
    echo "arm_kernels skipped: no $1 here (Debian package $2)"
    exit 77
  fi
}
need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
need qemu-aarch64-static qemu-user-static
need ninja ninja-build
if [ ! -d /usr/src/googletest/googletest ]; then
  echo "arm_kernels skipped: no sources in /usr/src/googletest (Debian package googletest)"
  exit 77
fi
crypto=/usr/lib/aarch64-linux-gnu/libcrypto.a
if [ ! -f "$crypto" ]; then
  echo "arm_kernels skipped: no $crypto (Debian package libssl-dev:arm64, after"
  echo "dpkg --add-architecture arm64)"
  exit 77
fi

# Header-only libraries by name: the rest of the host's include directory must stay out of sight.
mkdir -p "$build_dir/include"
for library in hwy fmt nlohmann; do
  ln -sfn "/usr/include/$library" "$build_dir/include/$library"
done
ln -sfn /usr/include/xxhash.h "$build_dir/include/xxhash.h"
mkdir -p "$build_dir/include/openssl"  # the same for all machines but for what is in the second
for header in /usr/include/openssl/*.h /usr/include/aarch64-linux-gnu/openssl/*.h; do
  ln -sfn "$header" "$build_dir/include/openssl/"
done

run() {  # NAME MARCH TESTS ROOM...
  name=$1 march=$2 tests=$3
  shift 3
  cmake -G Ninja -S "$source_dir/cross" -B "$build_dir/$name" -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
    -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG -march=$march" \
    "-DKVASIR_HEADER_LIBRARIES=$build_dir/include" "-DKVASIR_CRYPTO=$crypto" \
    "-DKVASIR_ARM_ROOMS=$(echo "$*" | tr ' ' ';')" \
    >"$build_dir/$name.log"
  if ! ninja -C "$build_dir/$name" >"$build_dir/$name.log" 2>&1; then
    tail -n 40 "$build_dir/$name.log"
    exit 1
  fi
  for room in "$@"; do
    echo "== $name: $room"
    # What a test says in passing goes to the log; failures are printed. Death tests start the test
    # again, which the host cannot do with a foreign binary.
    if ! qemu-aarch64-static -cpu max "$build_dir/$name/${room}_test" --gtest_brief=1 \
        "--gtest_filter=$tests-*Death*" >"$build_dir/$name.$room.log" 2>&1; then
      cat "$build_dir/$name.$room.log"
      exit 1
    fi
    tail -n 2 "$build_dir/$name.$room.log"
  done
}

run neon armv8-a '*' base simd gguf cache attention model
run dotprod armv8.2-a+dotprod 'Dot.*:Matmul.*:Activations.*' simd model
