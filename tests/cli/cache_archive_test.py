"""kvasir cache ls, export and import: pages as people see them and take them elsewhere."""

import json
import os
import pathlib
import random
import shutil
import stat
import tempfile
import unittest

from support import (
    BINARY,
    DOES_NOT_FIT,
    ERROR,
    OK,
    STORIES,
    USAGE,
    fork_at_terminal,
    kvasir,
    kvasir_json,
)

CACHE_IO = 5
PROMPT = " ".join(["Once upon a time there was a little dog who liked to run in the park."] * 8)
OTHER = " ".join(["Lily went to the beach with her mom and saw a big fish in the water."] * 8)
PAGE = 32


class CacheArchive(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-archive-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.kv = self.dir / "kv"
        self.there = self.dir / "there"
        self.archive = self.dir / "pages.kva"

    def run_prompt(self, prompt=PROMPT, kv=None, *more):
        flags = ["--raw", "--temp", "0", "-n", "4", "--page-tokens", PAGE, "--json"]
        where = ["--kv-dir", kv or self.kv, "--kv-load", "always"]
        return kvasir_json("run", "-m", STORIES, *flags, *where, *more, "-p", prompt)

    def ls(self, kv=None, *more):
        return kvasir_json("cache", "ls", "--kv-dir", kv or self.kv, "--json", *more)["pages"]

    def export(self, *args):
        return kvasir("cache", "export", "--kv-dir", self.kv, *args)

    def import_json(self, *args, **kwargs):
        done = kvasir("cache", "import", "--kv-dir", self.there, "--json", *args, **kwargs)
        return done.returncode, json.loads(done.stdout)

    def files(self, directory):
        return {
            path.relative_to(directory): path.read_bytes()
            for path in directory.rglob("*")
            if path.is_file()
        }

    def test_what_was_exported_is_reused_elsewhere(self):
        here = self.run_prompt()
        n_pages = len(self.ls())
        written = json.loads(self.export(self.archive, "--json").stdout)
        self.assertEqual((written["n_pages"], written["n_manifests"]), (n_pages, 1))
        self.assertEqual(written["bytes"], self.archive.stat().st_size)
        self.assertEqual(stat.S_IMODE(self.archive.stat().st_mode), 0o600)
        code, got = self.import_json(self.archive)
        self.assertEqual((code, got["n_new"], got["is_whole"]), (OK, n_pages, True))
        there = self.run_prompt(kv=self.there)
        details = there["usage"]["prompt_tokens_details"]
        self.assertEqual(details["disk_tokens"], n_pages * PAGE)
        self.assertEqual(there["ids"], here["ids"])
        self.assertEqual(
            [(page["key"], page["model"], page["bytes"]) for page in self.ls()],
            [(page["key"], page["model"], page["bytes"]) for page in self.ls(self.there)],
        )
        self.assertEqual(self.import_json(self.archive)[1]["n_known"], n_pages)

    def test_through_a_pipe(self):
        self.run_prompt()
        done = self.export("-")
        self.assertEqual(done.returncode, OK)
        self.assertIn(b"pages", done.stderr)
        code, got = self.import_json("-", stdin=done.stdout)
        self.assertEqual((code, got["n_new"]), (OK, len(self.ls())))

    def test_no_archive_on_a_terminal(self):
        self.run_prompt()
        pid, fd = fork_at_terminal()
        if pid == 0:
            os.execv(BINARY, [BINARY, "cache", "export", "-", "--kv-dir", str(self.kv)])
        out = b""
        while True:
            try:
                piece = os.read(fd, 4096)
            except OSError:
                break
            if not piece:
                break
            out += piece
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), USAGE)
        os.close(fd)
        self.assertIn(b"terminal", out)

    def test_a_page_comes_with_the_ones_before_it(self):
        self.run_prompt()
        self.run_prompt(OTHER)
        pages = self.ls()
        last = max(pages, key=lambda page: page["first_token"])
        self.assertEqual(self.export(self.archive, last["key"]).returncode, OK)
        self.import_json(self.archive)
        chain = self.ls(self.there)
        self.assertEqual(len(chain), last["first_token"] // PAGE + 1)
        self.assertLess(len(chain), len(pages))
        parents = {page["key"]: page["parent"] for page in chain}
        key = last["key"]
        for _ in chain:
            key = parents[key]
        self.assertEqual(key, last["root"])

    def test_a_scope_and_a_model_select(self):
        self.run_prompt()
        self.run_prompt(PROMPT, None, "--cache-salt", "x")
        roots = sorted({page["root"] for page in self.ls()})
        self.assertEqual(len(roots), 2)
        self.assertEqual(self.export(self.archive, roots[0][:16]).returncode, OK)
        self.import_json(self.archive)
        self.assertEqual({page["root"] for page in self.ls(self.there)}, {roots[0]})
        name = self.ls()[0]["model"]
        done = self.export(self.archive, "--force", "--model-name", name, "--json")
        self.assertEqual(json.loads(done.stdout)["n_pages"], len(self.ls()))
        for args, code in (
            (["--model-name", "nobody's"], ERROR),
            (["zz"], ERROR),
            ([""], USAGE),
        ):
            done = self.export(self.dir / "none", *args)
            self.assertEqual(done.returncode, code, args)
            self.assertFalse((self.dir / "none").exists())

    def test_nothing_is_replaced_without_force(self):
        self.run_prompt()
        self.archive.write_text("mine")
        done = self.export(self.archive)
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"--force", done.stderr)
        self.assertEqual(self.archive.read_text(), "mine")
        self.assertEqual(self.export(self.archive, "--force").returncode, OK)
        self.assertTrue(self.archive.read_bytes().startswith(b"KVSRARCH"))
        self.assertEqual(self.export(self.dir, "--force").returncode, USAGE)
        self.assertEqual(self.export("/dev/null", "--force").returncode, USAGE)
        self.assertEqual(self.export(self.dir / "no" / "such").returncode, ERROR)
        self.assertEqual(sorted(p.name for p in self.dir.iterdir()), ["kv", "pages.kva"])

    def test_the_capacity_holds(self):
        self.run_prompt()
        self.export(self.archive)
        pages = self.ls()
        room = pages[0]["bytes"] * 3
        code, got = self.import_json(self.archive, "--kv-disk", room)
        self.assertEqual(code, DOES_NOT_FIT)
        self.assertEqual((got["n_new"], got["n_no_room"]), (3, len(pages) - 3))
        self.assertEqual(got["n_manifests"], 0)
        n_bytes = sum(len(data) for data in self.files(self.there).values())
        self.assertLessEqual(n_bytes, room)
        self.assertEqual(
            kvasir("cache", "import", self.archive, "--kv-disk", "many").returncode, USAGE
        )

    def test_damage_is_counted_and_never_reused(self):
        answer = self.run_prompt()["ids"]
        self.export(self.archive)
        data = self.archive.read_bytes()
        chance = random.Random(3)
        for _ in range(20):
            damaged = bytearray(data)
            kind = chance.randrange(3)
            if kind == 0:
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            elif kind == 1:
                del damaged[chance.randrange(len(damaged)) :]
            else:
                at = chance.randrange(len(damaged))
                damaged[at : at + 64] = chance.randbytes(64)
            self.archive.write_bytes(damaged)
            shutil.rmtree(self.there, ignore_errors=True)
            code, got = self.import_json(self.archive)
            self.assertTrue(code == CACHE_IO or got["n_other_version"] == 1, got)
            verify = kvasir("cache", "verify", "--kv-dir", self.there)
            self.assertEqual(verify.returncode, OK, verify.stdout)
            self.assertEqual(self.run_prompt(kv=self.there)["ids"], answer)

    def test_what_is_no_archive_is_refused(self):
        for content in (b"", b"hello", b"\0" * 4096, STORIES.read_bytes()[:5000]):
            self.archive.write_bytes(content)
            done = kvasir("cache", "import", self.archive, "--kv-dir", self.there)
            self.assertEqual(done.returncode, CACHE_IO)
            self.assertIn(b"archive", done.stderr)
        done = kvasir("cache", "import", self.dir / "missing", "--kv-dir", self.there)
        self.assertEqual(done.returncode, ERROR)
        self.assertEqual(kvasir("cache", "import", self.dir).returncode, CACHE_IO)

    def test_a_model_name_of_a_forger_does_not_arrive(self):
        self.run_prompt()
        (manifest,) = (self.kv / "roots").iterdir()
        manifest.write_text(manifest.read_text().replace("page_tokens 32", "page_tokens 64"))
        self.export(self.archive)
        self.assertEqual(self.import_json(self.archive)[1]["n_manifests"], 0)
        self.assertEqual(self.ls(self.there)[0]["model"], "unknown model")

    def test_ls_shows_text_and_counts_hits(self):
        self.run_prompt()
        table = kvasir("cache", "ls", "--kv-dir", self.kv, "--show-text", "-m", STORIES)
        self.assertIn(b"Once upon a time", table.stdout)
        first = next(page for page in self.ls(None, "--show-text", "-m", STORIES))
        self.assertEqual(first["first_token"], 0)
        self.assertTrue(first["text"].strip().startswith("Once upon a time"))
        if first["hits"] is None:
            self.skipTest("no user attributes on this file system: hits are not counted")
        self.assertEqual(first["hits"], 0)
        for n in (1, 2):
            self.run_prompt()
            self.assertEqual([page["hits"] for page in self.ls()], [n] * len(self.ls()))

    def test_ls_shows_no_text_of_another_tokenizer(self):
        self.run_prompt()
        other = self.dir / "other.gguf"
        data = STORIES.read_bytes()
        at = data.index(b"tokenizer.ggml.bos_token_id") + len(b"tokenizer.ggml.bos_token_id") + 4
        other.write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])
        texts = {page["text"] for page in self.ls(None, "--show-text", "-m", other)}
        self.assertEqual(texts, {None})

    def test_ls_lists_scopes_and_pages(self):
        self.run_prompt()
        scopes = kvasir("cache", "ls", "--kv-dir", self.kv).stdout.decode().splitlines()
        self.assertEqual(len(scopes), 3)
        self.assertIn("f16, f16", scopes[2])
        pages = kvasir("cache", "ls", "--pages", "--kv-dir", self.kv).stdout.decode().splitlines()
        self.assertEqual(len(pages), 2 + len(self.ls()))
        self.assertIn(f"| 0..{PAGE - 1} |", pages[2])


if __name__ == "__main__":
    unittest.main()
