"""Prompts that outlive their process: reuse after a restart, whatever happened to the directory."""

import os
import pathlib
import random
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import unittest

from support import BINARY, OK, STORIES, USAGE, kvasir, kvasir_json

CACHE_IO = 5
PROMPT = " ".join(["Once upon a time there was a little dog who liked to run in the park."] * 12)
PAGE = 32  # tokens; small, so that a short prompt has several pages


class PromptCache(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-kv-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.kv = self.dir / "kv"

    def run_prompt(self, prompt=PROMPT, *more, kv=None):
        flags = ["--raw", "--temp", "0", "-n", "12", "--page-tokens", str(PAGE), "--json"]
        # The model is so small that computing would be faster than loading.
        where = ["--kv-dir", str(kv or self.kv), "--kv-load", "always"]
        return kvasir_json("run", "-m", STORIES, *flags, *where, *more, "-p", prompt)

    def reused(self, answer):
        return answer["usage"]["prompt_tokens_details"]

    def files(self):
        return sorted(self.kv.glob("pages/*/*.kvp"))

    def cold(self, prompt=PROMPT, *more):
        flags = ["--raw", "--temp", "0", "-n", "12", "--page-tokens", str(PAGE), "--json"]
        return kvasir_json("run", "-m", STORIES, *flags, "--no-kv-dir", *more, "-p", prompt)["ids"]

    def test_second_process_reuses_and_answers_the_same(self):
        first = self.run_prompt()
        self.assertEqual(self.reused(first)["cached_tokens"], 0)
        second = self.run_prompt()
        n_prompt = second["usage"]["prompt_tokens"]
        self.assertEqual(self.reused(second)["disk_tokens"], (n_prompt - 1) // PAGE * PAGE)
        self.assertEqual(second["ids"], first["ids"])
        self.assertEqual(first["ids"], self.cold())

    def test_a_prompt_that_begins_alike_reuses_the_beginning(self):
        self.run_prompt()
        other = PROMPT + " But then a big cat came."
        answer = self.run_prompt(other)
        self.assertGreater(self.reused(answer)["disk_tokens"], PAGE)
        self.assertEqual(answer["ids"], self.cold(other))

    def test_what_follows_a_change_is_moved_when_asked_for(self):
        changed = "Today is a sunny day in May. " + PROMPT
        self.run_prompt()
        exact = self.run_prompt(changed, kv=self.dir / "other")
        self.assertEqual(self.reused(exact)["shifted_tokens"], 0)
        self.assertIs(self.reused(exact)["approximate"], False)
        before = set(self.files())
        moved = self.run_prompt(changed, "--reuse-shifted")
        self.assertGreater(self.reused(moved)["shifted_tokens"], PAGE)
        self.assertIs(self.reused(moved)["approximate"], True)
        # What is approximate leaves nothing behind but the exact pages before it.
        self.assertLessEqual(len(set(self.files()) - before), 1)
        self.assertEqual(self.run_prompt(changed)["ids"], exact["ids"])

    def test_eval_shifted_measures_what_that_costs(self):
        text = " ".join(f"{PROMPT} {i} days later" for i in range(4))
        run = ["eval", "shifted", "-m", STORIES, "-c", 1024, "-f", "-", "--prompt-tokens", 400]
        run += ["--scored", 4, "--cases", 1]
        report = kvasir_json(*run, "--shares", "0,100", "--json", stdin=text)
        self.assertEqual([row["share"] for row in report["settings"]], [0, 1])
        self.assertGreater(report["settings"][0]["moved"], 0.5)
        self.assertEqual(report["settings"][1]["kld_max"], 0)
        for wrong in (["--shares", "101"], ["--rules", "middle"], ["--cases", "0"]):
            self.assertEqual(kvasir(*run, *wrong, stdin=text).returncode, USAGE, wrong)

    def test_explain_says_what_is_approximate(self):
        self.run_prompt()
        run = ["run", "-m", STORIES, "--raw", "-n", "1", "--page-tokens", PAGE, "--explain"]
        run += ["--kv-dir", self.kv, "--kv-load", "always"]
        changed = "Today is a sunny day in May. " + PROMPT
        done = kvasir(*run, "--reuse-shifted", "-p", changed)
        self.assertEqual(done.returncode, OK)
        wanted = r"approximate from token \d+ on: \d+ tokens were moved"
        self.assertRegex(done.stderr.decode(), wanted)
        done = kvasir(*run, "-p", changed)
        self.assertNotIn("approximate", done.stderr.decode())

    def test_a_disk_smaller_than_a_prompt_keeps_its_beginning(self):
        self.run_prompt()
        page = self.files()[0].stat().st_size
        shutil.rmtree(self.kv)
        self.run_prompt(PROMPT, "--kv-disk", str(3 * page + page // 2))
        again = self.run_prompt(PROMPT, "--kv-disk", str(3 * page + page // 2))
        self.assertEqual(self.reused(again)["disk_tokens"], 3 * PAGE)
        self.assertEqual(again["ids"], self.cold())

    def test_explain_names_the_reason(self):
        self.run_prompt()
        for flags, reason in (
            ([], "reused"),
            (["--kv-type", "bf16"], "other_codec at token 0: what is there has another codec_k"),
            (["--cache-salt", "x"], "namespace at token 0: what is there has another salt"),
            (["--act", "f32"], "other_codec at token 0: what is there has another activations"),
        ):
            run = ["run", "-m", STORIES, "--raw", "-n", "1", "--page-tokens", PAGE, "--explain"]
            done = kvasir(*run, "--kv-dir", self.kv, *flags, "-p", PROMPT)
            self.assertEqual(done.returncode, OK)
            self.assertIn(reason, done.stderr.decode())

    def test_explain_names_another_page_size_and_another_model(self):
        self.run_prompt()
        weights = bytearray(STORIES.read_bytes())
        weights[-64] ^= 1  # of the last tensor
        other = self.dir / "other.gguf"
        other.write_bytes(weights)
        for model, page, reason in (
            (STORIES, 2 * PAGE, "other_codec at token 0: what is there has another page_tokens"),
            (other, PAGE, "other_model at token 0: what is there has another model"),
        ):
            run = ["run", "-m", model, "--raw", "-n", "1", "--page-tokens", page, "--explain"]
            done = kvasir(*run, "--kv-dir", self.kv, "-p", PROMPT)
            self.assertEqual(done.returncode, OK)
            self.assertIn("reused 0 of", done.stderr.decode())
            self.assertIn(reason, done.stderr.decode())

    def test_the_directory_is_for_its_owner_only(self):
        self.run_prompt()
        for path in [self.kv, *self.kv.rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            self.assertEqual(mode, 0o700 if path.is_dir() else 0o600, path)

    def test_damage_costs_computation_and_nothing_else(self):
        expected = self.run_prompt()["ids"]
        chance = random.Random(1)
        for _ in range(12):
            for path in chance.sample(self.files(), min(2, len(self.files()))):
                data = bytearray(path.read_bytes())
                kind = chance.randrange(3)
                if kind == 0:
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                elif kind == 1:
                    del data[chance.randrange(len(data)) :]
                else:
                    data = bytearray(chance.choice(self.files()).read_bytes())
                path.write_bytes(data)
            self.assertEqual(self.run_prompt()["ids"], expected)

    def test_verify_names_what_is_bad(self):
        self.run_prompt()
        self.assertEqual(kvasir("cache", "verify", "--kv-dir", self.kv).returncode, OK)
        path = self.files()[0]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        done = kvasir("cache", "verify", "--kv-dir", self.kv)
        self.assertEqual(done.returncode, CACHE_IO)
        self.assertIn(path.name, done.stdout.decode())

    def test_ls_rm_and_gc(self):
        self.run_prompt()
        pages = kvasir_json("cache", "ls", "--kv-dir", self.kv, "--json")["pages"]
        self.assertEqual(len(pages), len(self.files()))
        key = pages[0]["key"]
        self.assertEqual(kvasir("cache", "rm", key, "--kv-dir", self.kv).returncode, OK)
        self.assertEqual(len(self.files()), len(pages) - 1)
        self.assertEqual(kvasir("cache", "rm", "--kv-dir", self.kv).returncode, USAGE)
        self.assertEqual(kvasir("cache", "gc", "0", "--kv-dir", self.kv).returncode, OK)
        self.assertEqual(self.files(), [])

    def test_inspect_shows_the_text(self):
        self.run_prompt()
        pages = kvasir_json("cache", "ls", "--kv-dir", self.kv, "--json")["pages"]
        first = next(page for page in pages if page["first_token"] == 0)
        flags = ["--kv-dir", self.kv, "--show-text", "--json", "-m", STORIES]
        page = kvasir_json("cache", "inspect", first["key"], *flags)
        self.assertTrue(page["text"].strip().startswith("Once upon a time"), page["text"])

    def test_killed_at_any_moment(self):
        expected = self.cold()
        chance = random.Random(2)
        command = [BINARY, "run", "-m", str(STORIES), "--raw", "--temp", "0", "-n", "12"]
        command += [
            "--page-tokens",
            str(PAGE),
            "--kv-dir",
            str(self.kv),
            "-p",
            PROMPT,
            "--kv-load",
            "always",
        ]
        for _ in range(10):
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(chance.uniform(0.005, 0.15))
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.assertEqual(kvasir("cache", "verify", "--kv-dir", self.kv).returncode, OK)
        self.assertEqual(self.run_prompt()["ids"], expected)

    def test_a_directory_that_cannot_be_is_an_error_by_name_and_a_note_by_default(self):
        blocker = self.dir / "file"
        blocker.write_text("not a directory")
        run = ["run", "-m", STORIES, "--raw", "-n", "1", "-p", "Once"]
        done = kvasir(*run, "--kv-dir", blocker / "kv")
        self.assertEqual(done.returncode, CACHE_IO)
        self.assertRegex(done.stderr.decode(), re.escape("--kv-dir"))
        done = kvasir(*run, env={"XDG_CACHE_HOME": str(blocker)})
        self.assertEqual(done.returncode, OK)
        self.assertIn("not kept on the disk", done.stderr.decode())

    def test_writers_side_by_side(self):
        flags = ["--raw", "--temp", "0", "-n", "12", "--page-tokens", str(PAGE), "--json"]
        command = [
            BINARY,
            "run",
            "-m",
            str(STORIES),
            *flags,
            "--kv-dir",
            str(self.kv),
            "-p",
            PROMPT,
        ]
        processes = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            for _ in range(4)
        ]
        answers = {
            process.communicate()[0].split(b'"ids":')[1].split(b"]")[0] for process in processes
        }
        self.assertEqual(len(answers), 1)
        self.assertEqual(kvasir("cache", "verify", "--kv-dir", self.kv).returncode, OK)

    def test_nothing_is_left_when_nothing_is_wanted(self):
        for flags in (["--no-kv-dir"], ["--cache-ram", "0"], ["--kv-disk", "0"]):
            home = self.dir / "home"
            run = ["run", "-m", STORIES, "--raw", "-n", "1", "-p", PROMPT, *flags]
            self.assertEqual(kvasir(*run, env={"XDG_CACHE_HOME": str(home)}).returncode, OK)
            self.assertFalse(os.path.exists(home / "kvasir"), flags)


if __name__ == "__main__":
    unittest.main()
