#!/usr/bin/env python3
"""Kvasir and llama.cpp on the same file, process by process in turn, and the ratio with its spread.

  compare.py --model M --peer-script PEER.py --peer-python PY
             [--kvasir build/release/bin/kvasir] [--prompt 512] [--generate 64]
             [--depths 0,4096] [--threads 2] [--rounds 5] [--json OUT]

PEER.py is the measuring script for llama-cpp-python (subcommands bench-prefill and bench-decode,
one JSON line per figure); PY a Python that has the package, built natively. Each round runs one
Kvasir
process and one peer process per kind of row, so drift of the machine meets both.
"""

import argparse
import json
import statistics
import subprocess


def run_json_lines(command):
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def kvasir_rates(args):
    command = [
        args.kvasir,
        "bench",
        "-m",
        args.model,
        "-t",
        str(args.threads),
        "-p",
        str(args.prompt),
        "-n",
        str(args.generate),
        "-d",
        args.depths,
        "-r",
        str(args.repetitions),
        "-o",
        "json",
        "--kv-type",
        args.kv_type,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    rates, cpu = {}, ""
    for row in json.loads(done.stdout):
        kind = "prefill" if row["n_prompt"] else "decode"
        rates[kind, row["n_depth"]] = row["median_ts"]
        cpu = row["cpu_info"]
    return rates, cpu


def peer_rates(args):
    common = [
        "--model",
        args.model,
        "--configs",
        f"{args.kv_type}:on",
        "--threads",
        str(args.threads),
        "--reps",
        str(args.repetitions),
    ]
    peer = [args.peer_python, args.peer_script]
    depths = [int(depth) for depth in args.depths.split(",")]
    rates = {}
    for row in run_json_lines(
        [*peer, "bench-decode", *common, "--depths", args.depths, "--gen", str(args.generate)]
    ):
        rates["decode", row["depth"]] = row["tok_s"]["median"]
    for depth in depths:
        at = ["--at-depth", str(depth)] if depth else []
        for row in run_json_lines(
            [*peer, "bench-prefill", *common, "--sizes", str(args.prompt), *at]
        ):
            rates["prefill", depth] = row["tok_s"]["median"]
    return rates


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer-script", required=True)
    parser.add_argument("--peer-python", default="python3")
    parser.add_argument("--kvasir", default="build/release/bin/kvasir")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--depths", default="0,4096")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--repetitions", type=int, default=3, help="within a process")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each")
    parser.add_argument("--json", help="write every figure to this file")
    args = parser.parse_args()

    ours, theirs, cpu = {}, {}, ""
    for _ in range(args.rounds):
        rates, cpu = kvasir_rates(args)
        for row, rate in rates.items():
            ours.setdefault(row, []).append(rate)
        for row, rate in peer_rates(args).items():
            theirs.setdefault(row, []).append(rate)

    print(
        f"{cpu}, {args.threads} threads, {args.kv_type} KV, "
        f"{args.rounds} rounds of {args.repetitions}, "
        f"{args.model.rsplit('/', 1)[-1]}\n"
    )
    print("| row | Kvasir tokens/s | llama.cpp tokens/s | ratio (min .. median .. max of rounds) |")
    print("| --- | ---: | ---: | ---: |")
    figures = []
    for row in sorted(ours, key=lambda r: (r[0] != "prefill", r[1])):
        ratios = sorted(a / b for a, b in zip(ours[row], theirs[row]))
        mine, peer = statistics.median(ours[row]), statistics.median(theirs[row])
        size = args.prompt if row[0] == "prefill" else args.generate
        print(
            f"| {row[0]} {size} at depth {row[1]} | {mine:.1f} | {peer:.1f} | "
            f"{ratios[0]:.2f} .. **{statistics.median(ratios):.2f}** .. {ratios[-1]:.2f} |"
        )
        figures.append(
            {
                "kind": row[0],
                "depth": row[1],
                "kvasir": ours[row],
                "llama.cpp": theirs[row],
                "ratios": ratios,
            }
        )
    if args.json:
        with open(args.json, "w", encoding="ascii") as file:
            json.dump({"cpu": cpu, "threads": args.threads, "rows": figures}, file, indent=1)


if __name__ == "__main__":
    main()
