"""Subcommands, their JSON, their messages and exit codes, on the 260K-parameter model."""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from support import (
    BINARY,
    DATA,
    DOES_NOT_FIT,
    ERROR,
    INTERRUPTED,
    INVALID_MODEL,
    OK,
    STORIES,
    USAGE,
    kvasir,
    kvasir_json,
)

M = ("-m", STORIES)
REFERENCE = json.loads((DATA / "stories260k" / "stories260K.reference.json").read_text())
REFERENCE_IDS = REFERENCE["ids"][1:]  # the first is BOS


class Run(unittest.TestCase):
    def test_json_has_what_the_contract_says(self):
        got = kvasir_json(
            "run", *M, "--raw", "-p", "Once upon a time", "-n", 20, "--temp", 0, "--json"
        )
        for key in ("text", "ids", "usage", "timings", "memory", "finish_reason", "prompt_ids"):
            self.assertIn(key, got)
        self.assertEqual(len(got["ids"]), 20)
        usage = got["usage"]
        self.assertEqual(usage["completion_tokens"], 20)
        self.assertEqual(usage["prompt_tokens"], len(got["prompt_ids"]))
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 20)
        self.assertLess(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"])
        self.assertEqual(got["prompt_ids"][0], 1)
        self.assertNotEqual(got["prompt_ids"][1], 1, "exactly one BOS")

    def test_greedy_ids_equal_the_reference_for_every_kv_type_that_can(self):
        for kv_type in ("f32", "f16"):
            got = kvasir_json(
                "run",
                *M,
                "--ids",
                "1",
                "-n",
                220,
                "--temp",
                0,
                "--json",
                "--act",
                "f32",
                "--kv-type",
                kv_type,
                "--ignore-eos"
            )
            if kv_type == "f32":
                self.assertEqual(got["ids"], REFERENCE_IDS)
            self.assertEqual(len(got["ids"]), 220)

    def test_text_goes_to_stdout_and_figures_to_stderr(self):
        done = kvasir("run", *M, "--raw", "-p", "Once upon a time", "-n", 8, "--temp", 0)
        self.assertEqual(done.returncode, OK)
        self.assertNotIn(b"tokens/s", done.stdout)
        self.assertIn(b"tokens/s", done.stderr)
        self.assertIn(b"KV", done.stderr)
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)

    def test_the_same_seed_gives_the_same_text(self):
        def one(seed):
            return kvasir_json(
                "run", *M, "--raw", "-p", "Once", "-n", 30, "--seed", seed, "--json"
            )["ids"]

        self.assertEqual(one(1), one(1))
        self.assertNotEqual(one(1), one(2))

    def test_prompt_from_file_pipe_and_argument(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("Once upon a time")
            file.flush()
            from_file = kvasir_json(
                "run", *M, "--raw", "-f", file.name, "-n", 5, "--temp", 0, "--json"
            )
        from_flag = kvasir_json(
            "run", *M, "--raw", "-p", "Once upon a time", "-n", 5, "--temp", 0, "--json"
        )
        from_pipe = kvasir_json(
            "run", *M, "--raw", "-n", 5, "--temp", 0, "--json", stdin="Once upon a time"
        )
        from_dash = kvasir_json(
            "run", *M, "--raw", "-f", "-", "-n", 5, "--temp", 0, "--json", stdin="Once upon a time"
        )
        from_words = kvasir_json(
            "run", *M, "--raw", "-n", 5, "--temp", 0, "--json", "Once", "upon", "a", "time"
        )
        for other in (from_file, from_pipe, from_dash, from_words):
            self.assertEqual(from_flag["prompt_ids"], other["prompt_ids"])
            self.assertEqual(from_flag["ids"], other["ids"])
        both = kvasir_json("run", *M, "--raw", "-n", 1, "--json", "Say:", stdin="hello")
        expected = kvasir_json("tokenize", *M, "--add-special", stdin="Say:\n\nhello")
        self.assertEqual(both["prompt_ids"], expected)

    def test_stop_strings_end_the_text(self):
        whole = kvasir_json(
            "run", *M, "--raw", "-p", "Once upon a time", "-n", 60, "--temp", 0, "--json"
        )
        stop = whole["text"][15:22]
        cut = kvasir_json(
            "run",
            *M,
            "--raw",
            "-p",
            "Once upon a time",
            "-n",
            60,
            "--temp",
            0,
            "--json",
            "--stop",
            stop
        )
        self.assertEqual(cut["finish_reason"], "stop")
        self.assertEqual(cut["text"], whole["text"].split(stop)[0])

    def test_layouts_threads_and_batches_give_the_same_text(self):
        def one(*flags):
            return kvasir_json(
                "run",
                *M,
                "--raw",
                "-p",
                "Once upon a time " * 20,
                "-n",
                24,
                "--temp",
                0,
                "--json",
                *flags
            )["ids"]

        expected = one()
        for flags in (
            ("--page-tokens", "16"),
            ("--page-tokens", "512"),
            ("--page-tokens", "contiguous"),
            ("--kv-heads", "interleaved"),
            ("--kv-pool", "per-layer"),
            ("-t", "1"),
            ("-t", "3"),
            ("-b", "1"),
            ("-b", "7"),
        ):
            self.assertEqual(one(*flags), expected, flags)

    def test_memory_is_printed_by_owner(self):
        done = kvasir("run", *M, "--raw", "-p", "Once", "-n", 2, "--memory")
        for word in (b"allocated", b"reserved", b"used", b"shared", b"wasted", b"weights"):
            self.assertIn(word, done.stderr)

    def test_ctrl_c_stops_and_keeps_the_text(self):
        process = subprocess.Popen(
            [
                BINARY,
                "run",
                *map(str, M),
                "--raw",
                "-p",
                "Once",
                "-n",
                "100000",
                "--json",
                "-c",
                "200000",
                "--ignore-eos",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED)
        got = json.loads(out)
        self.assertEqual(got["finish_reason"], "interrupted")
        self.assertTrue(got["ids"])

    def test_a_closed_pipe_ends_quietly(self):
        process = subprocess.Popen(
            [BINARY, "run", *map(str, M), "--raw", "-p", "Once", "-n", "400"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        process.stdout.close()
        error = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=60), 141)
        self.assertNotIn(b"terminate", error)


class Usage(unittest.TestCase):
    def refused(self, code, *args, says=None, stdin=None):
        done = kvasir(*args, stdin=stdin)
        self.assertEqual(done.returncode, code, (args, done.stderr))
        self.assertEqual(done.stdout, b"", args)
        self.assertTrue(done.stderr.startswith(b"kvasir: "), done.stderr)
        if says:
            self.assertIn(says, done.stderr.decode())

    def test_bad_flags_are_usage_errors_that_name_the_flag(self):
        raw = ("run", *M, "--raw", "-p", "x")
        for flags, says in (
            (("--temp", "-1"), "temp"),
            (("--temp", "nan"), "temp"),
            (("--top-k", "-3"), "top-k"),
            (("--top-p", "0"), "top-p"),
            (("--top-p", "1.1"), "top-p"),
            (("--min-p", "2"), "min-p"),
            (("-n", "-5"), "n-predict"),
            (("-t", "-1"), "threads"),
            (("-b", "0"), "batch"),
            (("-c", "-1"), "context"),
            (("--kv-type", "q9"), "--kv-type"),
            (("--act", "f8"), "--act"),
            (("--page-tokens", "48"), "--page-tokens"),
            (("--kv-budget", "lots"), "--kv-budget"),
            (("--seed", "-2"), "seed"),
            (("--logit-bias", "abc"), "logit-bias"),
            (("--logit-bias", "99999+1"), "logit-bias"),
            (("--stop", ""), "stop"),
            (("--no-such-flag",), "no-such-flag"),
            (("-n", "x"), "-n"),
        ):
            self.refused(USAGE, *raw, *flags, says=says)

    def test_missing_things(self):
        self.refused(USAGE, "no-such-command")
        self.refused(USAGE, "run", *M, "--raw", says="prompt")
        self.refused(ERROR, "run", "-m", "no/such/file.gguf", "-p", "x", says="no/such/file.gguf")
        self.refused(ERROR, "run", "-m", str(DATA), "-p", "x")
        self.refused(ERROR, "run", *M, "-f", "no/such/prompt.txt", says="no/such/prompt.txt")
        self.refused(USAGE, "run", *M, "--ids", "1,x", says="ids")
        self.refused(USAGE, "run", *M, "--ids", "1,-2", says="ids")
        self.refused(USAGE, "run", *M, "--ids", "1,100000", says="token")
        self.refused(
            USAGE, "eval", "logits", *M, "--ids", "1,2", "--positions", "5", says="positions"
        )
        self.refused(USAGE, "eval", says="ubcommand")
        self.refused(USAGE, "bench", *M, "-r", "0", says="repetitions")

    def test_no_model_says_how_to_get_one(self):
        with tempfile.TemporaryDirectory() as home:
            done = kvasir(
                "run", "-p", "x", env={"HOME": home, "XDG_CACHE_HOME": home, "KVASIR_MODEL": ""}
            )
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"make run", done.stderr)

    def test_what_does_not_fit_is_refused_with_numbers(self):
        self.refused(DOES_NOT_FIT, "run", *M, "--raw", "-p", "x", "--kv-budget", "64K", says="got")
        self.refused(DOES_NOT_FIT, "run", *M, "--ids", ",".join(["5"] * 600), says="600")

    def test_help_and_version(self):
        for args in (("--help",), ("run", "--help"), ("eval", "ppl", "--help"), ("--version",), ()):
            done = kvasir(*args)
            self.assertEqual(done.returncode, OK, args)
            self.assertTrue(done.stdout)


class Tokenize(unittest.TestCase):
    def test_plain_batch_and_special(self):
        ids = kvasir_json("tokenize", *M, stdin="Once upon a time")
        self.assertTrue(all(isinstance(i, int) for i in ids))
        batch = kvasir("tokenize", *M, "--batch", stdin='"Once upon a time"\n\n"x\\ny"\n""\n')
        lines = [json.loads(line) for line in batch.stdout.decode().splitlines()]
        self.assertEqual(lines[0], ids)
        self.assertEqual(lines[2], [])
        self.assertEqual(len(lines), 3)
        self.assertEqual(
            kvasir_json("tokenize", *M, "--add-special", stdin="Once upon a time"), [1] + ids
        )
        self.assertEqual(kvasir_json("tokenize", *M, "--parse-special", stdin="</s>"), [2])
        self.assertNotIn(2, kvasir_json("tokenize", *M, stdin="</s>"))
        self.assertEqual(kvasir_json("tokenize", *M, stdin=""), [])

    def test_any_bytes_are_text(self):
        ids = kvasir_json("tokenize", *M, stdin=bytes(range(256)))
        self.assertTrue(ids)

    def test_bad_batch_lines_are_named(self):
        done = kvasir("tokenize", *M, "--batch", stdin='"ok"\n{"a":1}\n')
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"line 2", done.stderr)
        done = kvasir("tokenize", *M, "--batch", stdin='"ok\n')
        self.assertEqual(done.returncode, USAGE)

    def test_chat_without_a_template_or_with_nonsense_is_an_error(self):
        done = kvasir("tokenize", *M, "--chat", stdin='[{"role":"user","content":"hi"}]')
        self.assertEqual(done.returncode, INVALID_MODEL)
        self.assertIn(b"template", done.stderr)
        done = kvasir("tokenize", *M, "--chat", stdin="{not json")
        self.assertEqual(done.returncode, USAGE)
        deep = "[" * 100000 + "]" * 100000
        self.assertEqual(kvasir("tokenize", *M, "--chat", stdin=deep).returncode, USAGE)


class Others(unittest.TestCase):
    def test_inspect(self):
        got = kvasir_json("inspect", STORIES, "--json")
        self.assertIn("tensors", got)
        self.assertIn("metadata", got)
        self.assertIn(b"token_embd.weight", kvasir("inspect", STORIES).stdout)

    def test_eval_logits_equal_the_reference(self):
        first = REFERENCE["full_logits_step0"]
        got = kvasir_json(
            "eval", "logits", *M, "--ids", "1", "--act", "f32", "--kv-type", "f32", "--json"
        )
        self.assertEqual(len(got["logits"]), 1)
        worst = max(abs(a - b) for a, b in zip(got["logits"][0], first))
        self.assertLessEqual(worst, 1e-3)
        self.assertEqual(len(got["logits"][0]), len(first))

    def test_eval_ppl(self):
        text = "Once upon a time there was a little girl named Lily. She liked to play. " * 40
        got = kvasir_json(
            "eval", "ppl", *M, "-f", "-", "-c", 128, "--chunks", 3, "--json", stdin=text
        )
        self.assertEqual(got["n_chunks"], 3)
        self.assertEqual(got["n_scored"], 3 * (128 - 1 - 64))
        self.assertGreater(got["perplexity"], 1)
        self.assertLess(got["perplexity"], 60)
        short = kvasir("eval", "ppl", *M, "-f", "-", "-c", 128, stdin="too short")
        self.assertEqual(short.returncode, USAGE)

    def test_bench_json_and_markdown(self):
        rows = kvasir_json(
            "bench", *M, "-p", "16", "-n", "4", "-d", "0,32", "-r", "2", "-o", "json"
        )
        self.assertEqual([row["test"] for row in rows], ["pp16", "tg4", "pp16 @ d32", "tg4 @ d32"])
        for row in rows:
            self.assertEqual(len(row["samples_ts"]), 2)
            self.assertGreater(row["avg_ts"], 0)
        for row in kvasir_json(
            "bench", *M, "-p", "16", "-n", "4", "-r", "1", "--roofline", "--json"
        ):
            roofline = row["roofline"]
            self.assertGreater(roofline["limit_ts"], 0)
            self.assertAlmostEqual(
                roofline["share_of_limit"], row["median_ts"] / roofline["limit_ts"], places=5
            )
        done = kvasir("bench", *M, "-p", "16", "-n", "0", "-r", "1")
        self.assertIn("| pp16 |", done.stdout.decode())

    def test_bench_without_the_cache(self):
        got = kvasir_json(
            "bench", *M, "--no-kv-cache", "--lengths", "16,64", "-r", "1", "-o", "json"
        )
        self.assertEqual([row["n_tokens"] for row in got["rows"]], [16, 64])
        for row in got["rows"]:
            self.assertLess(row["cached_multiply_adds"], row["recomputed_multiply_adds"])

    def test_trace_has_eight_hops(self):
        hops = kvasir_json("trace", *M, "--json", "The cat")
        self.assertEqual([hop["hop"] for hop in hops], list(range(1, 9)))
        self.assertEqual(len(kvasir("trace", *M, "The cat").stdout.decode().splitlines()), 8)

    def test_doctor(self):
        got = kvasir_json("doctor", "--json")
        self.assertIn("simd", got)
        self.assertEqual(kvasir("doctor").returncode, OK)


class Chat(unittest.TestCase):
    def test_without_a_template_chat_says_so(self):
        done = kvasir("chat", *M, stdin="hello\n")
        self.assertIn(b"template", done.stderr)


if __name__ == "__main__":
    unittest.main()
