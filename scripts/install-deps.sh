#!/usr/bin/env bash
# Installs the Debian packages that building needs, those that are missing only. When none is, it
# touches nothing and needs neither root nor a network.
# Usage: scripts/install-deps.sh [more packages...]
set -euo pipefail
source "$(dirname "$0")/lib.sh"

packages=(
  make g++ cmake ninja-build pkgconf                     # build
  libhwy-dev libfmt-dev libcli11-dev nlohmann-json3-dev  # libraries
  libutf8proc-dev libedit-dev libssl-dev libxxhash-dev
  libgtest-dev                                           # tests
  python3 python3-pip ca-certificates                    # the default model; lint
  "$@"
)

if ! command -v dpkg-query >/dev/null; then
  say "not a Debian system: make sure that these are installed: ${packages[*]}"
  exit 0
fi

# A package may be there for another machine as well, or only for it (tests/arm).
installed="($(dpkg --print-architecture)|all) installed"
missing=()
for package in "${packages[@]}"; do
  # Another Python may come first in the path, with a pip of its own.
  if [ "$package" = python3-pip ] && python3 -c 'import pip' 2>/dev/null; then continue; fi
  states=$(dpkg-query -W -f '${Architecture} ${db:Status-Status}\n' "$package" 2>/dev/null || true)
  if ! grep -Eqx "$installed" <<<"$states"; then missing+=("$package"); fi
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "these packages are missing, and installing them takes root or \
sudo, neither of which is at hand; as root, run: apt-get install -y ${missing[*]}"
  as_root=(sudo)
  # Ask for the password here, where the prompt is seen, not inside a step.
  sudo -v || die "sudo refused; as root, run: apt-get install -y ${missing[*]}"
fi

apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q
  -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3)
say "installing ${missing[*]}"
step "package lists" apt-update "${apt[@]}" update
step "packages (${#missing[@]})" apt-install \
  "${apt[@]}" install --no-install-recommends "${missing[@]}"
