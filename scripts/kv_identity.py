#!/usr/bin/env python3
"""Randomized exactness of cached K and V on a real model: equal tokens in, equal tokens out.

For each KV type, prompts of random token ids; the greedy continuation of `kvasir run` must be the
same whatever the threads, pages, batch, order of heads and pools are, and whether the prompt was
computed or came from the prompt cache of an earlier process. A difference prints the two command
lines.

  scripts/kv_identity.py --model model.gguf --kv-types int8,int4,int3 --runs 60
  scripts/kv_identity.py --model model.gguf --kv-types int8/int4,int4:tail=0 --seconds 600

Exit: 0, 1 after a difference or a run that failed, 2 for wrong arguments, 130 when interrupted.
"""

import argparse
import collections
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Every dimension; the first of each is what the others are compared with.
DIMENSIONS = (
    ("-t", ("2", "1", "3")),
    ("--page-tokens", ("auto", "64", "128", "contiguous")),
    ("-b", ("512", "1", "7", "64", "100")),
    ("--kv-heads", ("split", "interleaved")),
    ("--kv-pool", ("unified", "per-layer")),
)
PAGES = {"auto": 64, "64": 64, "128": 128}  # that are kept, and their tokens at most
# Lengths around which something begins: strips, pages, tiles, segments of 256 positions.
EDGES = (16, 32, 64, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
RUN_TIMEOUT_S = 3600

Variant = collections.namedtuple("Variant", "name flags is_hit")


class Failure(Exception):
    """A run that gave no answer."""


def type_flags(text):
    """Flags of a type as comparisons name it: "int4", "int8/int4" (K/V), ":tail=0", ":sinks=64"."""
    types, *options = text.split(":")
    k, _, v = types.partition("/")
    flags = ["-k", k, "-v", v] if v else ["--kv-type", k]
    for option in options:
        name, equals, value = option.partition("=")
        if name not in ("tail", "sinks", "protect") or not equals:
            raise argparse.ArgumentTypeError(
                "got ':%s', want :tail=N, :sinks=N or :protect=N" % option)
        flags += ["--kv-" + name, value]
    return flags


def token_range(text):
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if not match or not 2 <= int(match.group(1)) <= int(match.group(2)):
        raise argparse.ArgumentTypeError("got '%s', want LEAST-MOST, 2 or more" % text)
    return int(match.group(1)), int(match.group(2))


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("got '%s', want 1 or more" % text)
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kvasir", default=os.path.join(ROOT, "build/release/bin/kvasir"),
                        help="the binary (default: that of the release build)")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--kv-types", default="int8,int8-g64,int4,int4-3,int3",
                        help="types, separated by commas; K's and V's: int8/int4; int4:tail=0")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--runs", type=count, default=60, help="runs of each type, at least")
    limit.add_argument("--seconds", type=count, help="for so long, in place of --runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=token_range, default=(2, 700), metavar="LEAST-MOST",
                        help="tokens of a prompt (default: 2-700)")
    parser.add_argument("-n", "--n-predict", type=count, default=24, help="tokens of an answer")
    arguments = parser.parse_args()
    try:
        arguments.types = {text: type_flags(text) for text in arguments.kv_types.split(",")}
    except argparse.ArgumentTypeError as error:
        parser.error("argument --kv-types: %s" % error)
    return arguments


class Checker:
    def __init__(self, arguments):
        self.arguments = arguments
        self.random = random.Random(arguments.seed)
        self.end = time.monotonic() + arguments.seconds if arguments.seconds else None
        self.n_runs = collections.Counter()
        self.n_differences = collections.Counter()
        self.n_failures = collections.Counter()
        self.n_hits = collections.Counter()
        self.n_vocab = self.read_vocab()
        n_most = arguments.tokens[1] + arguments.n_predict
        self.context = str((n_most + 63) // 64 * 64)

    def read_vocab(self):
        """Token ids there are. The model's embedding may have more rows: they are never asked."""
        command = [self.arguments.kvasir, "inspect", "--json", self.arguments.model]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Failure("%s\n%s" % (shlex.join(command), done.stderr.strip()))
        for entry in json.loads(done.stdout)["metadata"]:
            if entry["key"] == "tokenizer.ggml.tokens":
                return entry["value"]["size"]
        raise Failure("%s: no vocabulary in it" % self.arguments.model)

    def prompt(self):
        least, most = self.arguments.tokens
        near = [edge + off for edge in EDGES for off in (-1, 0, 1) if least <= edge + off <= most]
        n = self.random.randint(least, most)
        if near and self.random.random() < 0.5:
            n = self.random.choice(near)
        # The first ids are control tokens and bytes in most vocabularies: any token will do.
        return [self.random.randrange(self.n_vocab) for _ in range(n)]

    def layout(self):
        """One value of each dimension, any of them: pairs meet over many runs."""
        flags = {}
        for name, values in DIMENSIONS:
            flags[name] = self.random.choice(values)
        return flags

    def variants(self, n_tokens, directory):
        """What is compared with the plain run: layouts, and a prompt cache cold and warm."""
        for i in range(4):
            yield Variant("layout %d" % i, list(flatten(self.layout())), None)
        layout = self.layout()
        # Contiguous pages are not kept.
        layout["--page-tokens"] = self.random.choice(list(PAGES))
        cache = ["--kv-dir", directory, "--kv-load", "always"]
        yield Variant("cold prompt cache", list(flatten(layout)) + cache, False)
        # The page's tokens and the heads' order are part of what a page is; threads and batch not.
        other = self.layout()
        layout.update({"-t": other["-t"], "-b": other["-b"]})
        page = PAGES[layout["--page-tokens"]]
        expects_hit = n_tokens > page  # a whole page, and a token that is computed in any case
        yield Variant("warm prompt cache", list(flatten(layout)) + cache, expects_hit)

    def run(self, flags):
        done = subprocess.run(flags, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=RUN_TIMEOUT_S)
        if done.returncode:
            raise Failure("exit code %d: %s" % (done.returncode, done.stderr.strip()[-500:]))
        answer = json.loads(done.stdout)
        return answer["ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def command(self, kv_flags, prompt, flags):
        return [self.arguments.kvasir, "run", "-m", self.arguments.model, "--temp", "0", "--json",
                "--ignore-eos", "-n", str(self.arguments.n_predict), "-c", self.context, *kv_flags,
                *flags, "--ids", ",".join(map(str, prompt))]

    def is_over(self, kv_type):
        if self.end is not None:
            return time.monotonic() >= self.end
        return self.n_runs[kv_type] >= self.arguments.runs

    def try_run(self, kv_type, command):
        """The answer, or None after saying why there is none."""
        self.n_runs[kv_type] += 1
        try:
            return self.run(command)
        except (Failure, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            self.n_failures[kv_type] += 1
            print("FAILED %s\n  %s\n  %s" % (kv_type, error, shlex.join(command)), flush=True)
            return None

    def check_prompt(self, kv_type):
        """One prompt in all variants."""
        kv_flags = self.arguments.types[kv_type]
        prompt = self.prompt()
        plain_flags = [*flatten({name: values[0] for name, values in DIMENSIONS}),
                       "--cache-ram", "0"]
        plain = self.command(kv_flags, prompt, plain_flags)
        want = self.try_run(kv_type, plain)
        if want is None:
            return
        directory = tempfile.mkdtemp(prefix="kv-identity-")
        try:
            for variant in self.variants(len(prompt), directory):
                if self.end is not None and time.monotonic() >= self.end:
                    return
                flags = variant.flags
                if variant.is_hit is None:
                    flags = flags + ["--cache-ram", "0"]
                command = self.command(kv_flags, prompt, flags)
                got = self.try_run(kv_type, command)
                if got is None:
                    continue
                self.compare(kv_type, variant, len(prompt), (plain, want), (command, got))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def compare(self, kv_type, variant, n_tokens, plain, other):
        (plain_command, (want, _)), (command, (got, n_cached)) = plain, other
        self.n_hits[kv_type] += n_cached > 0
        what = None
        if got != want:
            pairs = enumerate(zip(got, want))
            at = next((i for i, (a, b) in pairs if a != b), min(len(got), len(want)))
            what = "the answers differ from token %d on (of %d and %d)" % (at, len(want), len(got))
        elif variant.is_hit and n_cached == 0:
            what = "nothing came from the prompt cache"
        if what is None:
            return
        self.n_differences[kv_type] += 1
        print("DIFFERENCE %s, %d prompt tokens, %s: %s\n  %s\n  %s" %
              (kv_type, n_tokens, variant.name, what, shlex.join(plain_command),
               shlex.join(command)), flush=True)

    def run_all(self):
        unfinished = list(self.arguments.types)
        while unfinished:
            for kv_type in list(unfinished):
                if self.is_over(kv_type):
                    unfinished.remove(kv_type)
                else:
                    self.check_prompt(kv_type)
        for kv_type in self.arguments.types:
            print("%-16s %4d runs, %d from the prompt cache, %d differences, %d failed" %
                  (kv_type, self.n_runs[kv_type], self.n_hits[kv_type],
                   self.n_differences[kv_type], self.n_failures[kv_type]), flush=True)
        return 1 if self.n_differences.total() + self.n_failures.total() else 0


def flatten(flags):
    for name, value in flags.items():
        yield name
        yield value


def main():
    arguments = parse_arguments()
    try:
        return Checker(arguments).run_all()
    except (Failure, OSError) as error:
        print("kv_identity: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
