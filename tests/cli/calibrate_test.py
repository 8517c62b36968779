"""`kvasir calibrate kv` and what its file changes, on a tiny model with heads of 64."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from support import BINARY, DATA, ERROR, INTERRUPTED, INVALID_MODEL, OK, STORIES, USAGE
from support import kvasir, kvasir_json

TINY = DATA / "arch_vectors" / "llama_9q3kv_hd64.gguf"
TEXT = "Once upon a time there was a little girl named Lily. She liked to play. " * 60


class Calibrate(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.model = pathlib.Path(directory.name) / "tiny.gguf"
        shutil.copyfile(TINY, self.model)
        self.beside = self.model.with_name("tiny.gguf.kv")
        self.calibrate = ("calibrate", "kv", "-m", self.model, "-f", "-", "-c", 256)

    def bits_of_value(self, kv_type):
        """All in, at 512 tokens."""
        got = kvasir_json(
            "eval", "kld", "-m", self.model, "-f", "-", "-c", 512, "--chunks", 1,
            "--kv-type", kv_type, "--json", stdin=TEXT,
        )
        return got["rows"][0]["bits_per_value"]

    def test_the_file_beside_the_model_serves_from_then_on(self):
        uniform = self.bits_of_value("int4")
        got = kvasir_json(*self.calibrate, "--json", stdin=TEXT)
        self.assertEqual(got["file"], str(self.beside))
        self.assertEqual(sorted(got["damage_k"]), ["3", "4", "5"])
        self.assertEqual(got["measured"], {"k": [3, 4], "v": [3]})
        for name, mean in (("int4", 4.25), ("int3", 3), ("int4-3", None)):
            plan = got["plans"][name]
            bits = plan["k"] + plan["v"]
            self.assertEqual(len(bits), 4)
            self.assertAlmostEqual(plan["mean_bits"], sum(bits) / 4)
            if mean:
                self.assertEqual(plan["mean_bits"], mean)
        lines = self.beside.read_text().splitlines()
        self.assertEqual(lines[0], "kvasir-kv 2")
        plan = got["plans"]["int4"]
        words = ["plan", "int4", "k", *plan["k"], "v", *plan["v"]]
        self.assertIn(" ".join(map(str, words)), lines)
        self.assertGreater(self.bits_of_value("int4"), uniform + 0.15)
        run = ("run", "-m", self.model, "--raw", "-p", "Once", "-n", 4, "--kv-type", "int4")
        self.assertEqual(kvasir(*run, "--kv-protect", 2).returncode, OK)
        refused = kvasir(*run, "--kv-protect", 3)
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("--kv-protect: got 3, want 0 to 2", refused.stderr.decode())

    def test_the_table_has_a_row_for_each_layer(self):
        other = self.model.with_name("other.kv")
        done = kvasir(*self.calibrate, "-o", other, "--chunks", 1, stdin=TEXT)
        self.assertEqual(done.returncode, OK, done.stderr)
        lines = done.stdout.decode().splitlines()
        head = next(line for line in lines if line.split()[:1] == ["layer"])
        self.assertEqual(head.split()[-3:], ["int3", "int4", "int4-3"])
        rows = lines[lines.index(head) + 1:][:2]
        self.assertEqual([row.split()[0] for row in rows], ["0", "1"])
        self.assertTrue(other.exists())
        self.assertFalse(self.beside.exists())
        self.assertIn("once it is at", done.stderr.decode())

    def test_another_models_or_a_broken_file_is_refused_by_name_and_can_be_made_anew(self):
        kvasir_json(*self.calibrate, "--chunks", 1, "--json", stdin=TEXT)
        text = self.beside.read_text()
        digit = "0" if text[18] != "0" else "1"
        run = ("run", "-m", self.model, "--raw", "-p", "Once", "-n", 4)
        for wrong in (text[:18] + digit + text[19:], text.replace("plan", "plans"), "\0"):
            self.beside.write_text(wrong)
            refused = kvasir(*run, "--kv-type", "int4")
            self.assertEqual(refused.returncode, USAGE)
            self.assertIn(f"{self.beside}: ", refused.stderr.decode())
            self.assertIn("kvasir calibrate kv", refused.stderr.decode())
            self.assertEqual(kvasir(*run, "--kv-type", "f16").returncode, OK)
        kvasir_json(*self.calibrate, "--chunks", 1, "--json", stdin=TEXT)
        self.assertEqual(self.beside.read_text(), text)
        self.assertEqual(kvasir(*run, "--kv-type", "int4").returncode, OK)

    def test_what_is_no_regular_file_is_refused_and_not_waited_for(self):
        run = ("run", "-m", self.model, "--raw", "-p", "Once", "-n", 1)
        text = self.model.with_name("text")
        text.write_text(TEXT)
        kld = ("eval", "kld", "-m", self.model, "-f", text, "-c", 256, "--kv-type", "int4")
        makers = {
            "a named pipe": lambda: os.mkfifo(self.beside),
            "a directory": lambda: self.beside.mkdir(),
            "a device": lambda: self.beside.symlink_to("/dev/zero"),
        }
        for what, make in makers.items():
            make()
            for command in ((*run, "--kv-type", "int4"), kld):
                refused = kvasir(*command, timeout=60)
                self.assertEqual(refused.returncode, ERROR, (what, refused.stderr))
                self.assertIn(
                    f"{self.beside}: cannot read; got {what}", refused.stderr.decode())
            self.assertEqual(kvasir(*run, "--kv-type", "int8").returncode, OK)
            self.beside.rmdir() if what == "a directory" else self.beside.unlink()
        # Nor is what a comparison would resume from.
        os.mkfifo(self.beside)
        refused = kvasir(*kld[:-1], "int8", "--resume", self.beside, timeout=60)
        self.assertEqual(refused.returncode, ERROR, refused.stderr)
        self.assertIn("got a named pipe, want a regular file", refused.stderr.decode())

    def test_what_cannot_be_is_refused_and_nothing_is_written(self):
        rows = (
            (USAGE, (*self.calibrate, "--chunks", 0), "--chunks: got 0"),
            (USAGE, self.calibrate[:-1] + (100,), "--ctx-size: got 100, want 256 to 512"),
            (USAGE, self.calibrate[:4], "--file"),
            (USAGE, (*self.calibrate, "--act", "int8"), "--act"),
            (ERROR, (*self.calibrate, "-o", self.model.parent / "no" / "x.kv"), "--output"),
            (ERROR, (*self.calibrate, "-o", self.model.parent), "which is a directory"),
            (INVALID_MODEL, ("calibrate", "kv", "-m", STORIES, "-f", "-", "-c", 256,
                             "-o", self.model.with_name("stories.kv")), "head size; got 8"),
        )
        for code, args, says in rows:
            refused = kvasir(*args, stdin=TEXT)
            self.assertEqual(refused.returncode, code, (args, refused.stderr))
            self.assertIn(says, refused.stderr.decode())
        short = kvasir(*self.calibrate, stdin="too short")
        self.assertEqual(short.returncode, USAGE)
        self.assertEqual(list(self.model.parent.iterdir()), [self.model])

    def test_help_says_how_long_a_chunk_may_be(self):
        done = kvasir("calibrate", "kv", "--help")
        self.assertIn(
            "256 or more; 0: 2048", " ".join(done.stdout.decode().split()))

    def test_after_ctrl_c_nothing_is_written(self):
        text = self.model.with_name("text")
        text.write_text(TEXT * 300)
        args = (*self.calibrate[:4], "-f", text, "-c", 512, "--chunks", 100000)
        process = subprocess.Popen(
            [BINARY, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        time.sleep(1)
        self.assertIsNone(process.poll(), "it was done before")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertEqual(out, b"")
        self.assertFalse(self.beside.exists())


if __name__ == "__main__":
    unittest.main()
