"""Kills, damage, full disks and many writers: the answer is the one without a cache, and `cache
verify` says which files are bad."""

import concurrent.futures
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from support import BINARY, OK, STORIES, kvasir, kvasir_json

CACHE_IO = 5
PAGE = 16  # tokens; small, so that a short prompt has several pages
OLD_SECONDS = 7200  # a temporary file that is older has no writer any more
FLAGS = ["-m", str(STORIES), "--raw", "--temp", "0", "-n", "8", "--page-tokens", str(PAGE)]
FLAGS += ["--json"]
SUBJECTS = ["dog", "cat", "bird", "girl", "boy", "fish", "tree", "king"]
PLACES = ["park", "house", "forest", "sea"]


def count_of(what, few, full):
    """`full` where KVASIR_LONG_TESTS is set; else `few`, and a line that says so."""
    if os.environ.get("KVASIR_LONG_TESTS", "0") not in ("", "0"):
        return full
    print(f"{few} of {full} {what}: all take long; KVASIR_LONG_TESTS=1 does them", flush=True)
    return few


def prompt_of(i):
    """32 prompts; each begins like three others."""
    subject, place = SUBJECTS[i % 8], PLACES[i // 8 % 4]
    start = f"Once upon a time there was a little {subject} who liked to run every day. " * 3
    return start + f"One day it went to the {place} to play with a friend. " * (1 + i % 3)


class Faults(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-kv-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.kv = self.dir / "kv"
        self.oracle = {}

    def cold(self, prompt):
        if prompt not in self.oracle:
            answer = kvasir_json("run", *FLAGS, "--no-kv-dir", "-p", prompt)
            self.oracle[prompt] = answer["ids"]
        return self.oracle[prompt]

    def command(self, prompt, *more):
        # The model is so small that computing would be faster than loading.
        where = ["--kv-dir", str(self.kv), "--kv-load", "always"]
        return ["run", *FLAGS, *where, *more, "-p", prompt]

    def expect_answer(self, prompt, *more):
        answer = kvasir_json(*self.command(prompt, *more))
        self.assertEqual(answer["ids"], self.cold(prompt))
        return answer["usage"]["prompt_tokens_details"]

    def pages(self):
        return sorted(self.kv.glob("pages/*/*.kvp"))

    def temporaries(self):
        return list(self.kv.rglob(".tmp-*"))

    def verify(self):
        return kvasir("cache", "verify", "--kv-dir", self.kv)

    def mount(self, size):
        """A file system of its own for the directory; skips where that is not allowed."""
        how = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(self.dir)]
        try:
            done = subprocess.run(how, capture_output=True)
        except OSError as error:
            self.skipTest(f"cannot mount a small file system: {error}")
        if done.returncode != 0:
            self.skipTest(f"cannot mount a small file system: {done.stderr.decode().strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(self.dir)])

    def test_killed_at_random_moments(self):
        n_loops = count_of("kills", 20, 200)
        chance = random.Random(2)
        n_killed = n_left = 0
        start = time.monotonic()
        self.expect_answer(prompt_of(0))  # two runs: a good half of the kills are in time
        longest = (time.monotonic() - start) / 2
        for i in range(n_loops):
            prompt = f"{i} " + prompt_of(i % 32)  # pages of its own: every loop writes
            process = subprocess.Popen(
                [BINARY, *self.command(prompt)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(chance.uniform(0.0, longest))
            process.send_signal(signal.SIGKILL)
            code = process.wait()
            self.assertIn(code, (OK, -signal.SIGKILL))
            n_killed += code != OK
            done = self.verify() if self.kv.exists() else None
            if done:
                self.assertEqual(done.returncode, OK, done.stdout.decode())
            n_left = max(n_left, len(self.temporaries()))
            if i % 5 == 0:
                self.expect_answer(prompt)
        self.assertGreater(n_killed, n_loops // 4, "the kills came too late to show anything")
        n_pages = len(self.pages())
        self.assertGreater(n_pages, 0)
        for path in self.temporaries():
            os.utime(path, times=(time.time() - OLD_SECONDS,) * 2)
        self.expect_answer(prompt_of(0))
        self.assertEqual(self.temporaries(), [])
        print(f"{n_loops} loops, {n_killed} killed, {n_pages} pages, {n_left} temporaries swept")

    def test_damage_is_named_and_changes_no_answer(self):
        prompt = prompt_of(2)
        self.expect_answer(prompt)
        good = {path: path.read_bytes() for path in self.pages()}
        self.assertGreater(len(good), 3)
        paths = sorted(good)
        chance = random.Random(1)

        def expect_named(bad):
            done = self.verify()
            self.assertEqual(done.returncode, CACHE_IO)
            for path in bad:  # in its place, or set aside under the whole key
                key = path.parent.name + path.stem
                said = done.stdout.decode()
                self.assertTrue(str(path) in said or f"bad/{key}" in said, (path, said))
            self.expect_answer(prompt)
            shutil.rmtree(self.kv / "bad", ignore_errors=True)
            for path, data in good.items():
                path.write_bytes(data)
            self.assertEqual(self.verify().returncode, OK)

        def put(path, data):
            path.write_bytes(data)
            expect_named([path])

        sizes = range(0, len(good[paths[0]]), 512)
        for size in chance.sample(sizes, count_of("places to cut a file at", 4, len(sizes))):
            put(paths[0], good[paths[0]][:size])
        for _ in range(count_of("flipped bits", 10, 1000)):
            path = chance.choice(paths)
            data = bytearray(good[path])
            bit = chance.randrange(8 * len(data))
            if bit // 8 == 8:  # another version's file is no damage
                continue
            data[bit // 8] ^= 1 << bit % 8
            put(path, bytes(data))
        a, b = paths[0], paths[1]
        a.write_bytes(good[b])
        b.write_bytes(good[a])
        expect_named([a, b])

    def test_a_full_disk(self):
        self.mount("300k")
        for i in range(8):
            self.expect_answer(prompt_of(i))
        self.assertLess(shutil.disk_usage(self.dir).free, 32 << 10, "it was not full")
        self.assertEqual(self.temporaries(), [])
        self.assertEqual(self.verify().returncode, OK)
        details = self.expect_answer(prompt_of(0))
        self.assertGreater(details["disk_tokens"], 0)

    def test_a_read_only_directory(self):
        self.mount("4m")
        self.expect_answer(prompt_of(0))
        n_pages = len(self.pages())
        subprocess.run(["mount", "-o", "remount,ro", str(self.dir)], check=True)
        self.assertGreater(self.expect_answer(prompt_of(0))["disk_tokens"], 0)
        self.expect_answer(prompt_of(1))
        self.assertEqual(self.verify().returncode, OK)
        self.assertEqual(len(self.pages()), n_pages)

    def write_side_by_side(self, n_prompts, *more):
        """4 writers, each with all prompts in the same order; every answer is the oracle's."""
        prompts = [prompt_of(i) for i in range(n_prompts)]
        for prompt in prompts:
            self.cold(prompt)

        def write_all(_):
            for prompt in prompts:
                self.expect_answer(prompt, *more)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(write_all, range(4)))
        self.assertEqual(self.temporaries(), [])
        self.assertEqual(self.verify().returncode, OK)

    def test_four_writers_of_equal_prompts(self):
        n_prompts = count_of("prompts of each of 4 writers", 8, 32)
        self.write_side_by_side(n_prompts)
        names = [path.name for path in self.pages()]
        n_bytes = sum(path.stat().st_size for path in self.pages())
        # One writer alone leaves the same files.
        self.kv = self.dir / "alone"
        for i in range(n_prompts):
            self.expect_answer(prompt_of(i))
        self.assertEqual(names, [path.name for path in self.pages()])
        # And in a directory that is too small for them the cap holds.
        self.kv = self.dir / "small"
        cap = n_bytes // 3
        self.write_side_by_side(n_prompts, "--kv-disk", str(cap))
        self.expect_answer(prompt_of(0), "--kv-disk", str(cap))  # looks at what others wrote last
        kept = sum(path.stat().st_size for path in self.pages())
        self.assertLessEqual(kept, cap)
        self.assertGreater(kept, 0)
        print(f"{n_prompts} prompts: {len(names)} pages, {n_bytes} B; of a cap of {cap} B {kept} B")


if __name__ == "__main__":
    unittest.main()
