"""Every malformed GGUF file: a clean answer, exit code 3 where refused, bounded memory."""

import json
import subprocess
import unittest

from support import BINARY, DATA, INVALID_MODEL, OK, kvasir

FILES = [
    json.loads(line) for line in (DATA / "gguf_malformed" / "index.jsonl").read_text().splitlines()
]
TIMEOUT_S = 60


def is_sanitized():
    with open(BINARY, "rb") as file:
        return b"__asan_init" in file.read()


class Malformed(unittest.TestCase):
    def commands(self, entry, path):
        yield ("inspect", path)
        yield ("inspect", path, "--json")
        if entry["class"] == "semantic":
            yield ("run", "-m", path, "--raw", "-p", "hi", "-n", "2", "--json")
            yield ("eval", "logits", "-m", path, "--ids", "1,2,3", "--json")
            yield ("tokenize", "-m", path)

    def test_every_file(self):
        for entry in FILES:
            path = DATA / "gguf_malformed" / entry["file"]
            codes = {}
            for args in self.commands(entry, path):
                with self.subTest(file=entry["file"], command=args[0]):
                    done = kvasir(*args, stdin="hi", timeout=TIMEOUT_S)
                    codes[args[:2] if args[0] == "eval" else args[0]] = done.returncode
                    self.assertIn(done.returncode, (OK, INVALID_MODEL), done.stderr[-500:])
                    if done.returncode != OK:
                        self.assertTrue(done.stderr.startswith(b"kvasir: "), done.stderr[-500:])
            with self.subTest(file=entry["file"], desc=entry["desc"]):
                if entry["expect"] == "accept":
                    self.assertEqual(set(codes.values()), {OK}, codes)
                elif entry["expect"] == "reject":
                    # A semantic fault is allowed to be visible only to what uses that part.
                    self.assertIn(INVALID_MODEL, codes.values(), codes)
                    if entry["class"] == "semantic":
                        self.assertEqual(codes["run"], INVALID_MODEL, codes)

    def test_hostile_templates_end(self):
        for name in ("s37_template_ssti", "s38_template_unclosed", "s39_template_loop"):
            with self.subTest(file=name):
                done = kvasir(
                    "tokenize",
                    "-m",
                    DATA / "gguf_malformed" / (name + ".gguf"),
                    "--chat",
                    stdin='[{"role":"user","content":"hi"}]',
                    timeout=TIMEOUT_S,
                )
                self.assertGreaterEqual(done.returncode, 0)
                self.assertLessEqual(done.returncode, 4)

    def test_memory_is_bounded(self):
        if is_sanitized():
            print(
                "skipped: peak memory is measured on the release binary (a sanitizer adds its own)"
            )
            return
        code = (
            "import resource, subprocess, sys; "
            "subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, "
            "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        for entry in FILES:
            path = DATA / "gguf_malformed" / entry["file"]
            for args in self.commands(entry, path):
                peak = (
                    int(
                        subprocess.run(
                            ["python3", "-c", code, BINARY, *map(str, args)],
                            capture_output=True,
                            check=True,
                            timeout=TIMEOUT_S,
                        ).stdout
                    )
                    * 1024
                )
                self.assertLessEqual(peak, 4 * entry["size"] + (64 << 20), (entry["file"], args[0]))


if __name__ == "__main__":
    unittest.main()
