"""Real models against llama.cpp's own answers (tests/data/llama_cpp_reference, its README).

KVASIR_TEST_MODEL  SmolLM2-135M-Instruct Q4_1 (`make test` sets it)
KVASIR_TEST_GEMMA  Gemma-3-270M Q4_K_M
KVASIR_TEST_DATA   folder with wikitext2/wiki.test.raw, a text of others
A reference whose model or text is not here is skipped, with the reason.
"""

import json
import math
import os
import pathlib
import statistics
import unittest

from support import DATA, ROOT, kvasir_json

REFERENCES = DATA / "llama_cpp_reference"
TEXTS = pathlib.Path(os.environ.get("KVASIR_TEST_DATA", ROOT.parent / "shared" / "data"))
WIKI = TEXTS / "wikitext2" / "wiki.test.raw"
FLOAT = ("--act", "f32")


def of_file(name):
    return json.loads((REFERENCES / name).read_text())


class Reference:
    """`variable` names the model; `file_name` what the references call it."""

    @classmethod
    def setUpClass(cls):
        cls.path = os.environ.get(cls.variable, "")
        if not cls.path:
            raise unittest.SkipTest(f"{cls.variable} does not name {cls.file_name}")

    def check_greedy(self, reference_name, *flags):
        """Equal ids up to the first step that the reference itself decides by less than its gap."""
        reference = of_file(reference_name)
        n_compared = 0
        for prompt in reference["prompts"]:
            n_steps = prompt["steps_before_gap_below_recommended"]
            if n_steps == 0:
                continue
            ids = ",".join(map(str, prompt["ids"]))
            options = ("--ids", ids, "-n", n_steps, "--temp", 0, "--ignore-eos", "--json")
            got = kvasir_json("run", "-m", self.path, "--kv-type", "f32", *options, *flags)
            with self.subTest(prompt=prompt["name"], steps=n_steps):
                self.assertEqual(got["ids"], prompt["out"][:n_steps])
            n_compared += n_steps
        self.assertGreater(n_compared, 0)

    def test_greedy_with_float_activations(self):
        self.check_greedy(f"greedy_{self.short_name}_f32w.json", *FLOAT)

    def test_greedy_with_integer_activations(self):
        self.check_greedy(f"greedy_{self.short_name}.json")

    def check_perplexity(self, n_ctx, n_chunks, dequantized, tolerance, *flags):
        """`dequantized`: compare with the reference of float activations."""
        if not WIKI.exists():
            self.skipTest(f"no {WIKI.name} in KVASIR_TEST_DATA nor beside the checkout")
        tag = "dequantised-f32-weights" if dequantized else ""
        run = next(
            run
            for run in of_file("perplexity.json")["runs"]
            if run["model"] == self.file_name
            and run["ctx"] == n_ctx
            and run["kv"] == "f32"
            and run["tag"] == tag
        )
        expected = math.exp(statistics.fmean(run["chunk_nll"][:n_chunks]))
        got = kvasir_json(
            "eval",
            "ppl",
            "-m",
            self.path,
            "-f",
            WIKI,
            "-c",
            n_ctx,
            "--chunks",
            n_chunks,
            "--kv-type",
            "f32",
            "--json",
            *flags,
        )
        self.assertLess(
            abs(got["perplexity"] / expected - 1), tolerance, (got["perplexity"], expected)
        )

    def test_perplexity_with_float_activations(self):
        self.check_perplexity(512, 2, True, 0.001, *FLOAT)

    def test_perplexity_with_integer_activations(self):
        # Fewer tokens than the 10,000 of the full measurement: rounding has not averaged out.
        self.check_perplexity(512, 4, False, 0.015)


class SmolLM2(Reference, unittest.TestCase):
    variable, short_name = "KVASIR_TEST_MODEL", "smollm2"
    file_name = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Gemma3(Reference, unittest.TestCase):
    variable, short_name = "KVASIR_TEST_GEMMA", "gemma3"
    file_name = "gemma-3-270m-q4_k_m.gguf"


if __name__ == "__main__":
    unittest.main()
