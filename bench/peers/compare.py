#!/usr/bin/env python3
"""Kvasir and its peers on the same file, process by process in turn, and the ratios with spread.

  compare.py --model M --scripts DIR --peer llama.cpp=f16:on --peer ik=f16 --peer openvino=default
             [--python PY] [--kvasir build/release/bin/kvasir] [--threads 2] [--rounds 5]
             [--prompts 512,8000] [--prompt-at 7680] [--depths 0,4096,8000] [--generate 64]
             [--sequences 8,32] [--prefix 1024] [--json OUT]

A peer is NAME=CONFIG: the name says which script of DIR measures it, CONFIG is that script's own
(KV type and options). PY is a Python with the peers' packages: llama-cpp-python and
ik-llama-cpp-python built natively (the library of the latter in IK_LLAMA_CPP_LIB_PATH),
openvino-genai. Each round runs, for each kind of row, one Kvasir process and then one of each peer,
so that drift of the machine meets all of them; a ratio is that of one round. An empty list
leaves its rows out: --depths ''.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

# Name -> script, subcommands and flags that only this one has.
PEERS = {
    "llama.cpp": {
        "script": "peer_llamacpp.py",
        "commands": {"prefill": "bench-prefill", "decode": "bench-decode", "parallel": "parallel"},
        "flags": {"parallel": ["--unified", "true"]},
    },
    "ik": {
        "script": "peer_ik.py",
        "commands": {"prefill": "prefill", "decode": "decode", "parallel": "parallel"},
        "flags": {"all": ["--lib", "native"]},
    },
    "openvino": {
        "script": "peer_openvino.py",
        "commands": {"prefill": "prefill", "decode": "decode", "parallel": "parallel"},
        "flags": {"all": ["--toks", "unused"]},
    },
}


def counts(text):
    """ "512,2048" -> [512, 2048]; "" -> []."""
    return [int(part) for part in text.split(",") if part]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        print(f"{command[0]}: exit {done.returncode}: {done.stderr[-300:]}", file=sys.stderr)
        return ""
    return done.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Kvasir:
    name = "Kvasir"

    def __init__(self, args):
        self.args = args
        self.cpu = ""

    def bench(self, flags):
        args = self.args
        common = ["-m", args.model, "-t", str(args.threads), "-r", str(args.repetitions)]
        text = run([args.kvasir, "bench", *common, "--kv-type", args.kv_type, *flags, "--json"])
        if not text:
            sys.exit("Kvasir failed: nothing to compare")
        rates = {}
        for row in json.loads(text):
            self.cpu = row["cpu_info"]
            if row["n_prompt"]:
                key = ("prefill", row["n_prompt"], row["n_depth"])
            elif row["n_sequences"] > 1:
                key = ("parallel", row["n_sequences"], row["n_depth"])
            else:
                key = ("decode", row["n_gen"], row["n_depth"])
            rates[key] = row["median_ts"]
        return rates

    def prefill(self, sizes, depth):
        sizes = ",".join(map(str, sizes))
        return self.bench(["-p", sizes, "-n", "0", "-d", str(depth)])

    def decode(self, depths):
        generate = str(self.args.generate)
        return self.bench(["-p", "0", "-n", generate, "-d", ",".join(map(str, depths))])

    def parallel(self, sequences, prefix):
        flags = ["-p", "0", "-n", str(self.args.generate), "-d", str(prefix)]
        return self.bench([*flags, "--batch", ",".join(map(str, sequences))])


class Peer:
    def __init__(self, args, spec):
        self.args = args
        self.kind, _, self.config = spec.partition("=")
        if self.kind not in PEERS or not self.config:
            sys.exit(f"--peer: got '{spec}', want NAME=CONFIG, NAME one of {', '.join(PEERS)}")
        self.name = f"{self.kind} {self.config}"

    def rows(self, command, flags):
        args, peer = self.args, PEERS[self.kind]
        script = os.path.join(args.scripts, peer["script"])
        more = peer["flags"].get("all", []) + peer["flags"].get(command, [])
        common = ["--model", args.model, "--configs", self.config, "--threads", str(args.threads)]
        common += ["--reps", str(args.repetitions)]
        rows = json_lines(
            run([args.python, script, peer["commands"][command], *common, *more, *flags])
        )
        for row in rows:
            if "error" in row:
                print(f"{self.name}: {command}: {str(row)[:300]}", file=sys.stderr)
        return [row for row in rows if "error" not in row]

    def prefill(self, sizes, depth):
        flags = ["--sizes", ",".join(map(str, sizes))]
        if depth:
            flags += ["--at-depth", str(depth)]
        rows = self.rows("prefill", flags)
        return {("prefill", row["n"], depth): row["tok_s"]["median"] for row in rows}

    def decode(self, depths):
        generate = self.args.generate
        flags = ["--depths", ",".join(map(str, depths)), "--gen", str(generate)]
        if self.kind == "llama.cpp":  # its own choice has no room for its warm-up
            flags += ["--n-ctx", str(max(depths) + generate + 128)]
        rows = self.rows("decode", flags)
        return {("decode", generate, row["depth"]): row["tok_s"]["median"] for row in rows}

    def parallel(self, sequences, prefix):
        flags = ["--seqs", ",".join(map(str, sequences)), "--prefix", str(prefix)]
        rows = self.rows("parallel", [*flags, "--gen", str(self.args.generate)])
        return {("parallel", row["seqs"], prefix): row["agg_tok_s"]["median"] for row in rows}


def measure(args, engines, rates):
    """One round: every kind of row on every engine in turn."""
    steps = []
    if args.prompts:
        steps.append(lambda engine: engine.prefill(args.prompts, 0))
    if args.prompts and args.prompt_at:
        steps.append(lambda engine: engine.prefill(args.prompts[:1], args.prompt_at))
    if args.generate and args.depths:
        steps.append(lambda engine: engine.decode(args.depths))
    if args.generate and args.sequences:
        steps.append(lambda engine: engine.parallel(args.sequences, args.prefix))
    for step in steps:
        for engine in engines:
            for row, rate in step(engine).items():
                rates[engine.name].setdefault(row, []).append(rate)


def row_name(row):
    kind, n, depth = row
    if kind == "parallel":
        return f"{n} sequences on a shared prefix of {depth}"
    return f"{kind} {n} at depth {depth}"


def ratio_text(ours, theirs):
    ratios = sorted(a / b for a, b in zip(ours, theirs))
    return f"{ratios[0]:.2f} .. **{statistics.median(ratios):.2f}** .. {ratios[-1]:.2f}"


def print_table(engines, rates):
    ours, peers = rates[engines[0].name], engines[1:]
    heads = "".join(f" {peer.name} | ratio |" for peer in peers)
    print(f"| row | Kvasir, tokens/s |{heads}\n| --- | ---: |" + " ---: | ---: |" * len(peers))
    for row in ours:
        line = f"| {row_name(row)} | {statistics.median(ours[row]):.1f} |"
        for peer in peers:
            theirs = rates[peer.name].get(row)
            if theirs is None or len(theirs) != len(ours[row]):
                line += " - | - |"
                continue
            line += f" {statistics.median(theirs):.1f} | {ratio_text(ours[row], theirs)} |"
        print(line)


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--scripts", required=True, help="directory of the peers' scripts")
    parser.add_argument("--peer", action="append", required=True, help="NAME=CONFIG; repeat")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--kvasir", default="build/release/bin/kvasir")
    parser.add_argument("--prompts", type=counts, default=[512])
    parser.add_argument("--prompt-at", type=int, default=0, help="depth of the first prompt")
    parser.add_argument("--depths", type=counts, default=[0, 4096])
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--sequences", type=counts, default=[])
    parser.add_argument("--prefix", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-type", default="f16", help="Kvasir's")
    parser.add_argument("--repetitions", type=int, default=3, help="within a process")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each")
    parser.add_argument("--json", help="write every figure to this file")
    return parser.parse_args()


def main():
    args = parse_args()
    engines = [Kvasir(args)] + [Peer(args, spec) for spec in args.peer]
    rates = {engine.name: {} for engine in engines}
    for _ in range(args.rounds):
        measure(args, engines, rates)
    print(
        f"{engines[0].cpu}, {args.threads} threads, Kvasir with {args.kv_type} KV, "
        f"{args.rounds} rounds of {args.repetitions}, {os.path.basename(args.model)}\n"
    )
    print_table(engines, rates)
    if args.json:
        figures = {
            name: {row_name(row): values for row, values in rows.items()}
            for name, rows in rates.items()
        }
        with open(args.json, "w", encoding="ascii") as file:
            json.dump({"cpu": engines[0].cpu, "threads": args.threads, "rates": figures}, file)


if __name__ == "__main__":
    main()
