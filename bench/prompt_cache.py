#!/usr/bin/env python3
"""What the prompt cache gives and costs, process by process in turn.

  prompt_cache.py restart  --text FILE [--tokens 4096]   a second process against a cold one
  prompt_cache.py overhead --text FILE [--tokens 8000] [--generate 64]
                           keys and tree, and the disk tier, against neither
  prompt_cache.py slow     --text FILE --bytes-per-second 5000000 [--device 254:0]
                           a slow disk against computing; needs root, cgroup v1's blkio

FILE is any text long enough for the tokens. All say milliseconds of the prompt as `kvasir run
--json` counts them, and of the whole process.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLKIO = pathlib.Path("/sys/fs/cgroup/blkio/kvasir-slow")


class Runner:
    def __init__(self, options):
        self.binary = options.kvasir
        text = pathlib.Path(options.text).read_bytes()[: options.tokens * 8]
        ids = subprocess.run(
            [self.binary, "tokenize"], input=text, stdout=subprocess.PIPE, check=True
        )
        tokens = json.loads(ids.stdout)[: options.tokens]
        if len(tokens) < options.tokens:
            raise SystemExit(f"{options.text}: got {len(tokens)} tokens, want {options.tokens}")
        self.ids = ",".join(map(str, tokens))
        self.generate = str(options.generate)

    def run(self, *flags, before=None):
        """The answer, its prompt's milliseconds, and those of the process."""
        how = ["--temp", "0", "--ignore-eos", "-n", self.generate, "-c", "8192", "--json"]
        start = time.perf_counter()
        done = subprocess.run(
            [self.binary, "run", "--ids", self.ids, *how, *flags],
            stdout=subprocess.PIPE,
            check=True,
            preexec_fn=before,
        )
        wall = (time.perf_counter() - start) * 1e3
        answer = json.loads(done.stdout)
        return answer, answer["timings"]["prompt_ms"], wall


def restart(runner, options, kv):
    for _ in range(options.rounds):
        shutil.rmtree(kv, ignore_errors=True)
        cold, cold_ms, cold_wall = runner.run("--kv-dir", kv)
        warm, warm_ms, warm_wall = runner.run("--kv-dir", kv)
        assert warm["ids"] == cold["ids"]
        reused = warm["usage"]["prompt_tokens_details"]["disk_tokens"]
        print(
            f"cold {cold_ms:.1f} ms (process {cold_wall:.0f}), second process {warm_ms:.1f} ms"
            f" ({warm_wall:.0f}), {reused} tokens from the disk:"
            f" {cold_ms / warm_ms:.1f}x ({cold_wall / warm_wall:.1f}x)"
        )


def overhead(runner, options, kv):
    ways = {
        "neither": ["--cache-ram", "0", "--no-kv-dir"],
        "keys and tree": ["--no-kv-dir"],
        "and disk": ["--kv-dir", kv],
    }
    rows = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, flags in ways.items():
            shutil.rmtree(kv, ignore_errors=True)
            answer, prompt_ms, _ = runner.run(*flags)
            rows[name].append((prompt_ms, answer["timings"]["predicted_per_second"]))
    for name, row in rows.items():
        prompts = statistics.median(a[0] / b[0] for a, b in zip(row, rows["neither"]))
        # One generated token has no speed.
        decodes = statistics.median(
            a[1] / b[1] if b[1] else 1 for a, b in zip(row, rows["neither"])
        )
        print(
            f"{name}: prompt {[round(a[0]) for a in row]} ms, median ratio {prompts:.3f};"
            f" decode {[round(a[1], 1) for a in row]} tokens/s, median ratio {decodes:.3f}"
        )


def forget(directory):
    """Drops the files of `directory` from the system's page cache."""
    os.sync()
    for path in pathlib.Path(directory).rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def slow(runner, options, kv):
    BLKIO.mkdir(exist_ok=True)
    limit = f"{options.device} {options.bytes_per_second}\n"
    (BLKIO / "blkio.throttle.read_bps_device").write_text(limit)
    runner.run("--kv-dir", kv)
    for _ in range(options.rounds):
        computed, computed_ms, computed_wall = runner.run("--no-kv-dir")
        forget(kv)
        join = lambda: (BLKIO / "cgroup.procs").write_text(str(os.getpid()))
        throttled, slow_ms, slow_wall = runner.run("--kv-dir", kv, before=join)
        assert throttled["ids"] == computed["ids"]
        details = throttled["usage"]["prompt_tokens_details"]
        print(
            f"computed {computed_ms:.0f} ms (process {computed_wall:.0f}), slow directory"
            f" {slow_ms:.0f} ({slow_wall:.0f}): {slow_ms / computed_ms:.3f}"
            f" ({slow_wall / computed_wall:.3f}), {details['match_end']}"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["restart", "overhead", "slow"])
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--generate", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kvasir", default=str(ROOT / "build/release/bin/kvasir"))
    parser.add_argument("--bytes-per-second", type=int, default=5_000_000)
    parser.add_argument("--device", default="254:0", help="major:minor of the disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvasir-bench-") as scratch:
        runner = Runner(options)
        {"restart": restart, "overhead": overhead, "slow": slow}[options.what](
            runner, options, f"{scratch}/kv"
        )


if __name__ == "__main__":
    main()
