"""K and V that are not finite: refused, counted, and said so."""

import pathlib
import shutil
import struct
import tempfile
import unittest

from support import DATA, INVALID_MODEL, kvasir, kvasir_json

LLAMA = DATA / "arch_vectors" / "llama_untied_gqa.gguf"
BAD = 500  # the token that is embedded as NaN


class Faults(unittest.TestCase):
    def setUp(self):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-faults-"))
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        self.model = directory / "model.gguf"
        content = bytearray(LLAMA.read_bytes())
        tensors = {t["name"]: t for t in kvasir_json("inspect", "--json", LLAMA)["tensors"]}
        embedding = tensors["token_embd.weight"]
        row_bytes = 4 * embedding["shape"][0]
        struct.pack_into("<f", content, embedding["offset"] + BAD * row_bytes, float("nan"))
        self.model.write_bytes(content)

    def run_ids(self, ids, *more):
        flags = ("--temp", 0, "-n", 3, "--cache-ram", 0, *more)
        return kvasir("run", "-m", self.model, "--ids", ",".join(map(str, ids)), *flags)

    def test_none_are_counted_where_all_is_well(self):
        got = kvasir_json("run", "-m", self.model, "--ids", "1,2,3", "-n", 3, "--json")
        self.assertEqual(got["faults"], {"poisoned_tokens": 0, "refused_steps": 0})
        self.assertNotIn(b"not finite", self.run_ids([1, 2, 3]).stderr)

    def test_a_prompt_is_refused_with_how_many_tokens(self):
        for kv_type in ("f16", "int8", "int8-g64", "int4"):
            done = self.run_ids([*range(20, 90), BAD, 7, 8], "--kv-type", kv_type)
            self.assertEqual(done.returncode, INVALID_MODEL, done.stderr)
            self.assertIn(b"in 1 of 1 sequences (K or V of 3 tokens are not)", done.stderr)

    def test_an_answer_that_runs_into_it_is_counted_in_its_json(self):
        # Nothing but the bad token is likely; the step after it is refused.
        more = ("--json", "-l", "%d+1000000" % BAD)
        flags = ("--temp", 0, "-n", 3, "--cache-ram", 0, *more)
        done = kvasir("run", "-m", self.model, "--ids", "1,2,3", *flags)
        self.assertEqual(done.returncode, INVALID_MODEL, done.stderr)
        self.assertIn(b'"faults":{"poisoned_tokens":1,"refused_steps":1}', done.stdout)
        self.assertIn(b'"finish_reason":"error"', done.stdout)


if __name__ == "__main__":
    unittest.main()
