# Shared by the scripts of this folder: `step` runs one stage quietly, its output in a log file.
# Sourced, never run; the sourcing script has set -euo pipefail.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
log_dir=build/log

say() { printf 'kvasir: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# While a stage runs on a terminal: its newest "[12/345]" (ninja) or "12/345 Test" (ctest).
show_progress() { # LABEL LOG PID
  local progress
  while kill -0 "$3" 2>/dev/null; do
    progress=$(tail -c 4000 "$2" 2>/dev/null | grep -oE '^\[[0-9]+/[0-9]+\]|^ *[0-9]+/[0-9]+ Test' |
      tail -n 1 | tr -dc '0-9/' || true)
    printf '\r\033[K%-48s %s' "$1" "$progress" >&2
    sleep 0.5
  done
  printf '\r\033[K' >&2
}

# step LABEL LOG COMMAND...: one line when it ends, with the seconds; on failure the end of the log.
step() {
  local label="$1" log="$log_dir/$2.log" started=$SECONDS code=0
  shift 2
  mkdir -p "$log_dir"
  if [ -t 2 ] && [ "${TERM:-dumb}" != dumb ]; then
    "$@" >"$log" 2>&1 </dev/null &
    local pid=$!
    trap 'kill '"$pid"' 2>/dev/null; printf "\n" >&2; exit 130' INT TERM
    show_progress "$label" "$log" "$pid"
    wait "$pid" || code=$?
    trap - INT TERM
  else
    "$@" >"$log" 2>&1 </dev/null || code=$?
  fi
  if [ "$code" -ne 0 ]; then
    printf '%-48s FAILED (exit %s); the end of %s:\n' "$label" "$code" "$log" >&2
    tail -n "${KVASIR_LOG_LINES:-60}" "$log" >&2
    return "$code"
  fi
  printf '%-48s ok  %4s s\n' "$label" "$((SECONDS - started))" >&2
}

# Parallel jobs: one per usable core, and GB_PER_JOB of memory for each.
n_jobs() { # GB_PER_JOB
  local jobs available
  jobs=$(nproc)
  available=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo 2>/dev/null || true)
  if [ -r /sys/fs/cgroup/memory.max ] && [ "$(cat /sys/fs/cgroup/memory.max)" != max ]; then
    local limit
    limit=$(($(cat /sys/fs/cgroup/memory.max) / 1073741824))
    if [ -z "$available" ] || [ "$limit" -lt "$available" ]; then available=$limit; fi
  fi
  if [ -n "$available" ] && [ $((available / $1)) -lt "$jobs" ]; then jobs=$((available / $1)); fi
  if [ "$jobs" -lt 1 ]; then jobs=1; fi
  echo "$jobs"
}
