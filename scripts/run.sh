#!/usr/bin/env bash
# `make run`: everything from a bare machine to a streamed answer on stdout.
# Reads KVASIR_RUN_PROMPT, KVASIR_RUN_MODEL and KVASIR_RUN_ARGS, which the Makefile sets.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

model=${KVASIR_RUN_MODEL:-}
if [ -n "$model" ] && [ ! -r "$model" ]; then die "MODEL: cannot read $model"; fi

scripts/install-deps.sh
scripts/build.sh release kvasir
if [ -z "$model" ]; then model=$(python3 scripts/get-model.py); fi
prompt=${KVASIR_RUN_PROMPT:-Hello}
read -r -a args <<<"${KVASIR_RUN_ARGS:-}" || true
printf '\n> %s\n\n' "$prompt" >&2
exec build/release/bin/kvasir run -m "$model" -p "$prompt" "${args[@]}"
