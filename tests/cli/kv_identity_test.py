"""scripts/kv_identity.py: finds nothing where there is nothing, and a difference where there is."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from support import BINARY, DATA, ROOT, STORIES, USAGE

SCRIPT = ROOT / "scripts" / "kv_identity.py"
GEMMA = DATA / "arch_vectors" / "gemma3.gguf"  # windows and heads of 32

# Answers another first token for three threads, or nothing from the prompt cache, or fails.
FAULTY = """#!{python}
import json, subprocess, sys
args = sys.argv[1:]
kind, done = {kind!r}, subprocess.run([{binary!r}, *args], capture_output=True, text=True)
if done.returncode == 0 and args[0] == "run":
    answer = json.loads(done.stdout)
    if kind == "thread" and args[args.index("-t") + 1] == "3":
        answer["ids"][0] += 1
    if kind == "cold":
        answer["usage"]["prompt_tokens_details"]["cached_tokens"] = 0
    if kind == "failing" and "interleaved" in args:
        sys.exit("nothing doing")
    done.stdout = json.dumps(answer)
print(done.stdout)
sys.exit(done.returncode)
"""


class KvIdentity(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = pathlib.Path(directory.name)

    def check(self, *args, kvasir=BINARY, model=GEMMA):
        flags = ("--kvasir", kvasir, "--model", model, "-n", 6, "--tokens", "130-200", *args)
        # Its scratch is gone in the end.
        env = dict(os.environ, TMPDIR=str(self.dir / "scratch"))
        (self.dir / "scratch").mkdir(exist_ok=True)
        done = subprocess.run([sys.executable, "-B", SCRIPT, *map(str, flags)],
                              capture_output=True, text=True, timeout=600, env=env)
        self.assertEqual(os.listdir(self.dir / "scratch"), [])
        return done

    def faulty(self, kind):
        path = self.dir / kind
        path.write_text(FAULTY.format(python=sys.executable, kind=kind, binary=BINARY))
        path.chmod(0o755)
        return path

    def test_equal_answers_pass(self):
        done = self.check("--kv-types", "int4,int8/int4:tail=0,f16", "--runs", 8)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        lines = done.stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["int4", "int8/int4:tail=0", "f16"])
        for line in lines:
            self.assertRegex(line, " 14 runs, 2 from the prompt cache, 0 differences, 0 failed$")

    def test_a_difference_prints_both_commands(self):
        done = self.check("--kv-types", "int4", "--runs", 14, kvasir=self.faulty("thread"))
        self.assertEqual(done.returncode, 1, done.stdout)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], "^DIFFERENCE int4, [0-9]+ prompt tokens, .*: the answers differ "
                                   r"from token 0 on \(of 6 and 6\)$")
        plain, other = (shlex.split(line) for line in lines[1:3])
        for command, n_threads in ((plain, "2"), (other, "3")):
            self.assertEqual(command[command.index("-t") + 1], n_threads)
            self.assertEqual(command[:2], [str(self.dir / "thread"), "run"])
        self.assertEqual(plain[-1], other[-1])

    def test_a_prompt_cache_that_gives_nothing_and_a_run_that_fails_are_found(self):
        done = self.check("--kv-types", "int8", "--runs", 7, kvasir=self.faulty("cold"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("warm prompt cache: nothing came from the prompt cache", done.stdout)
        done = self.check("--kv-types", "int8", "--runs", 14, kvasir=self.faulty("failing"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("FAILED int8\n  exit code 1: nothing doing\n", done.stdout)

    def test_the_same_seed_asks_the_same(self):
        def without_directories(text):
            return re.sub(r"kv-identity-\w+", "", text)

        first, again, other = (
            self.check("--kv-types", "int8", "--runs", 7, "--seed", seed,
                       kvasir=self.faulty("thread")).stdout
            for seed in (3, 3, 4)
        )
        self.assertIn("DIFFERENCE", first)
        self.assertEqual(without_directories(first), without_directories(again))
        self.assertNotEqual(without_directories(first), without_directories(other))

    def test_wrong_arguments_are_usage_errors(self):
        for args, says in (
            (("--kv-types", "int4:head=1"), "got ':head=1'"),
            (("--tokens", "9-3"), "got '9-3'"),
            (("--runs", "0"), "got '0'"),
            (("--runs", "1", "--seconds", "1"), "not allowed with"),
        ):
            done = self.check(*args)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            self.assertIn(says, done.stderr)
        done = self.check("--kv-types", "int8", "--runs", 1, model=STORIES.with_name("none.gguf"))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("none.gguf", done.stderr)


if __name__ == "__main__":
    unittest.main()
