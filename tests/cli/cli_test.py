"""Subcommands, their JSON, their messages and exit codes, on the 260K-parameter model."""

import json
import os
import pathlib
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
                "--ignore-eos",
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
            stop,
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
                *flags,
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

    def test_one_value_a_flag_leaves_the_prompt_alone(self):
        plain = kvasir_json("run", *M, "--raw", "-n", 1, "--json", "hi", "you")
        for flags in (("--stop", "zz"), ("-l", "300+1"), ("--stop", "a", "--stop", "zz")):
            got = kvasir_json("run", *M, "--raw", "-n", 1, "--json", *flags, "hi", "you")
            self.assertEqual(got["prompt_ids"], plain["prompt_ids"], flags)
        bracketed = kvasir_json("run", *M, "--raw", "-n", 1, "--json", "[a, b]")
        expected = kvasir_json("tokenize", *M, "--add-special", stdin="[a, b]")
        self.assertEqual(bracketed["prompt_ids"], expected)
        dashed = kvasir_json("run", *M, "--raw", "-n", 1, "--json", "--", "-n", "chat")
        expected = kvasir_json("tokenize", *M, "--add-special", stdin="-n chat")
        self.assertEqual(dashed["prompt_ids"], expected)

    def test_a_file_and_a_pipe_both_go_below_the_prompt(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("file")
            file.flush()
            got = kvasir_json(
                "run", *M, "--raw", "-n", 1, "--json", "-f", file.name, "Say:", stdin="pipe"
            )
        expected = kvasir_json("tokenize", *M, "--add-special", stdin="Say:\n\nfile\n\npipe")
        self.assertEqual(got["prompt_ids"], expected)

    def test_the_seed_is_reported(self):
        got = kvasir_json("run", *M, "--raw", "-n", 20, "--temp", 1.2, "--json", "Once")
        again = kvasir_json(
            "run", *M, "--raw", "-n", 20, "--temp", 1.2, "--json", "--seed", got["seed"], "Once"
        )
        self.assertEqual(got["ids"], again["ids"])
        self.assertIn(b"seed 7", kvasir("run", *M, "--raw", "-n", 1, "--seed", 7, "Once").stderr)

    def test_the_end_of_the_context_is_noted(self):
        done = kvasir("run", *M, "--raw", "-c", 16, "-n", 99, "--ignore-eos", "Once")
        self.assertEqual(done.returncode, OK)
        self.assertIn(b"the context of 16 tokens is full", done.stderr)
        done = kvasir("run", *M, "--raw", "-c", 600, "-n", 1, "Once")
        self.assertIn(b"trained for 512", done.stderr)

    def test_a_budget_that_ends_midway_delivers_what_there_is(self):
        flags = ("run", *M, "--raw", "-c", 2000, "-n", 1900, "--temp", 0, "--ignore-eos")
        whole = kvasir_json(*flags, "-t", 1, "--json", "Once")
        budget = "1700K"
        done = kvasir(*flags, "-t", 1, "--kv-budget", budget, "--json", "Once")
        self.assertEqual(done.returncode, DOES_NOT_FIT, done.stderr)
        got = json.loads(done.stdout)
        self.assertEqual(got["finish_reason"], "out_of_budget")
        self.assertIn("got", got["error"])
        self.assertTrue(got["ids"])
        self.assertEqual(got["ids"], whole["ids"][: len(got["ids"])])
        done = kvasir(*flags, "-t", 1, "--kv-budget", budget, "Once")
        self.assertEqual(done.returncode, DOES_NOT_FIT)
        self.assertEqual(done.stdout.decode(), got["text"] + "\n")
        # Not the bytes that are free: pages that are being kept may take some at that moment.
        self.assertIn(got["error"].split("; got")[0].encode(), done.stderr)


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

    def test_eval_of_kv_types_names_the_wrong_flag(self):
        for name in ("kld", "drift", "attention"):
            sub = ("eval", name, *M, "-f", str(STORIES))
            self.refused(USAGE, *sub, "--kv-type", "f16,q9", says="--kv-type: got 'q9'")
            self.refused(USAGE, *sub, "--kv-type", "f16,", says="--kv-type: got ''")
            self.refused(
                USAGE, *sub, "--kv-type", "f16", "--base-kv", "x", says="--base-kv: got 'x'"
            )
            self.refused(USAGE, *sub, says="--kv-type")
        kld = ("eval", "kld", *M, "-f", str(STORIES), "--kv-type", "f16")
        self.refused(USAGE, *kld, "--score", "some", says="--score: got 'some', want half or all")
        self.refused(USAGE, *kld, "--chunks", "0", says="--chunks: got 0")
        drift = ("eval", "drift", *M, "-f", str(STORIES), "--kv-type", "f16")
        self.refused(USAGE, *drift, "--prompts", "0", says="--prompts: got 0, want 1 or more")

    def test_eval_pareto_refuses_before_it_computes(self):
        pareto = ("eval", "pareto", *M, "-f", str(STORIES), "-c", "64")
        self.refused(USAGE, *pareto, says="--output")
        self.refused(USAGE, *pareto, "-o", "x.html", "--kv-types", "q9", says="got 'q9'")
        for types in ("tile4:basis=1", "int8:basis=0", "int4/int8:basis=1"):
            self.refused(USAGE, *pareto, "-o", "x.html", "--kv-types", types, says="got ':basis=")
        self.refused(USAGE, *pareto, "-o", "x.html", "-r", "0", says="--repetitions: got 0")
        self.refused(USAGE, *pareto, "-o", "x.html", "-n", "0", says="--n-gen: got 0")
        self.refused(USAGE, *pareto, "-o", "x.html", "-p", "-1", says="--n-prompt: got -1")
        self.refused(USAGE, *pareto, "-o", "x.html", "-p", "8", "-n", "8", says="--n-prompt")
        for flags in (("-o", "{}"), ("-o", "{}/page", "--svg", "{}")):
            with self.subTest(flags=flags), tempfile.TemporaryDirectory() as folder:
                name = flags[-2].replace("-o", "--output")
                there = pathlib.Path(folder) / "there"
                for path, why in (
                    (folder, "which is a directory"),
                    (folder + "/no/x", "No such file or directory"),
                    (str(STORIES) + "/x", "Not a directory"),
                    ("/dev/null", "which is a pipe, a device or a socket"),
                ):
                    args = [flag.replace("{}/page", str(there)) for flag in flags]
                    args[-1] = path
                    there.write_text("kept")
                    self.refused(ERROR, *pareto, *args, says=f"{name}: cannot write; got ")
                    self.refused(ERROR, *pareto, *args, says=why)
                    self.assertEqual(there.read_text(), "kept")
                    self.assertEqual(os.listdir(folder), ["there"])
        self.refused(DOES_NOT_FIT, *pareto, "-o", "x.html", "--kv-types", "f16", says="got 7664")

    def test_unknown_subcommands_are_named_with_those_there_are(self):
        for args in (("foo",), ("serve", "--help"), ("eval", "foo")):
            self.refused(USAGE, *args, says=f"'{args[-1] if args[0] == 'eval' else args[0]}'")
        self.refused(USAGE, "foo", says="run, chat, cache, inspect")
        self.refused(USAGE, "eval", "foo", says="ppl, logits")
        self.refused(USAGE, "eval", "ppl", "--nope", says="See: kvasir eval ppl --help")

    def test_empty_values_are_errors(self):
        for flag in ("--temp", "--seed", "-c", "-m", "--kv-budget", "-f", "-p", "--ids"):
            self.refused(USAGE, "run", *M, "hi", flag, "", says="got ''")
        self.refused(USAGE, "run", *M, "", says="prompt")
        for flag in ("-p", "-n", "-d"):
            self.refused(USAGE, "bench", *M, flag, "8,,9", says="got '8,,9'")
        self.refused(USAGE, "inspect", "", says="file")

    def test_numbers_say_what_was_wanted(self):
        raw = ("run", *M, "--raw", "hi")
        self.refused(USAGE, *raw, "-n", "x", says="want a whole number")
        self.refused(USAGE, *raw, "-n", "99999999999", says="2147483647")
        self.refused(USAGE, *raw, "--temp", "warm", says="want a number")
        self.refused(USAGE, *raw, "--seed", "99999999999999999999", says="--seed")
        self.refused(USAGE, *raw, "--kv-type", "junk", says="--kv-type: got 'junk'")
        self.refused(USAGE, *raw, "-k", "junk", says="--kv-type-k: got 'junk'")
        for ids in ("1,,2", "1,2\u00e9", "1 2", ","):
            self.refused(USAGE, "run", *M, "--ids", ids, says=f"--ids: got '{ids}', want token ids")
        text = ("eval", "ppl", *M, "-f", "-")
        self.refused(USAGE, *text, "-c", "1", says="want 4 to 512")
        self.refused(USAGE, *text, "--chunks", "0", says="--chunks: got 0")
        self.refused(USAGE, *text, "--chunks", "-2", says="--chunks: got -2")
        for flag, name in (("-p", "--n-prompt"), ("-n", "--n-gen"), ("-d", "--n-depth")):
            self.refused(USAGE, "bench", *M, flag, "-1", says=f"{name}: got '-1'")
        self.refused(USAGE, "bench", *M, "-p", "0", "-n", "0", says="nothing to measure")
        self.refused(DOES_NOT_FIT, "bench", *M, "-p", "600", "-n", "0", says="600")

    def test_inputs_that_exclude_each_other_are_named(self):
        for args, names in (
            (("run", "--ids", "1", "hi"), ("--ids", "prompt")),
            (("run", "--ids", "1", "-f", "x"), ("--ids", "--file")),
            (("run", "--ids", "1", "--system", "x"), ("--ids", "--system")),
            (("run", "--raw", "--system", "x", "hi"), ("--raw", "--system")),
            (("run", "-p", "hi", "ho"), ("--prompt", "prompt")),
            (("bench", "--lengths", "8"), ("--lengths", "--no-kv-cache")),
            (("bench", "--no-kv-cache", "-p", "8"), ("--no-kv-cache", "--n-prompt")),
            (("bench", "-o", "md", "--json"), ("--output", "--json")),
            (("tokenize", "--chat", "--add-special"), ("--chat", "--add-special")),
        ):
            for name in names:
                self.refused(USAGE, args[0], *M, *args[1:], says=name)
        self.refused(USAGE, "inspect", STORIES, "-m", "other.gguf", says="--model")
        self.refused(USAGE, "run", *M, "--system", "x", "hi", says="--system: the model has no")

    def test_control_characters_are_shown_not_obeyed(self):
        done = kvasir("run", *M, "--kv-type", "a\x1b[2Jb\n", "hi")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"\\x1b[2Jb\\x0a", done.stderr)
        self.assertNotIn(b"\x1b", done.stderr)

    def test_too_much_input_is_refused_before_it_is_worked_on(self):
        self.refused(DOES_NOT_FIT, "run", *M, stdin=b"a" * (1 << 20), says="got 1048576 bytes")
        self.refused(DOES_NOT_FIT, "tokenize", *M, stdin=b"a" * ((64 << 20) + 1), says="64.0 MiB")

    def test_reasons_are_given(self):
        with tempfile.TemporaryDirectory() as directory:
            self.refused(ERROR, "run", *M, "-f", directory, says="Is a directory")
        self.refused(ERROR, "run", *M, "-f", "no/such", says="No such file")

    def test_no_model_says_how_to_get_one(self):
        with tempfile.TemporaryDirectory() as home:
            done = kvasir(
                "run", "-p", "x", env={"HOME": home, "XDG_CACHE_HOME": home, "KVASIR_MODEL": ""}
            )
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"make run", done.stderr)

    def test_what_does_not_fit_is_refused_with_numbers(self):
        small = ("--raw", "-p", "x", "--kv-budget", "64K")
        self.refused(DOES_NOT_FIT, "run", *M, *small, says="no room for weights; got")
        self.refused(DOES_NOT_FIT, "run", *M, "--ids", ",".join(["5"] * 600), says="600")

    def test_help_shows_defaults_and_examples_of_its_own(self):
        text = kvasir("run", "--help").stdout.decode()
        for words in ("=0.8", "=f16", "=512", "kvasir run --raw", "git diff", "<|im_end|>"):
            self.assertIn(words, text)
        self.assertNotIn("kvasir bench", text)
        self.assertIn("0: 512", kvasir("eval", "ppl", "--help").stdout.decode())
        self.assertIn("kvasir bench --no-kv-cache", kvasir("bench", "--help").stdout.decode())

    def test_help_and_version(self):
        for args in (("--help",), ("run", "--help"), ("eval", "ppl", "--help"), ("--version",), ()):
            done = kvasir(*args)
            self.assertEqual(done.returncode, OK, args)
            self.assertTrue(done.stdout)


class Tokenize(unittest.TestCase):
    def test_plain_batch_and_special(self):
        ids = kvasir_json("tokenize", *M, stdin="Once upon a time")
        self.assertTrue(all(isinstance(i, int) for i in ids))
        batch = kvasir("tokenize", *M, "--batch", stdin='"Once upon a time"\n"x\\ny"\n""\n')
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
        done = kvasir("tokenize", *M, "--batch", stdin='"a"\n\n"c"\n')
        self.assertEqual((done.returncode, done.stdout), (USAGE, b""))
        self.assertIn(b"line 2: empty", done.stderr)

    def test_chat_without_a_template_or_with_nonsense_is_an_error(self):
        done = kvasir("tokenize", *M, "--chat", stdin='[{"role":"user","content":"hi"}]')
        self.assertEqual(done.returncode, INVALID_MODEL)
        self.assertIn(b"template", done.stderr)
        done = kvasir("tokenize", *M, "--chat", stdin="{not json")
        self.assertEqual(done.returncode, USAGE)
        done = kvasir("tokenize", *M, "--chat", stdin="{}")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"object", done.stderr)
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

    def test_eval_kld(self):
        text = "Once upon a time there was a little girl named Lily. She liked to play. " * 40
        kld = ("eval", "kld", *M, "-f", "-", "-c", 128, "--chunks", 2)
        got = kvasir_json(*kld, "--kv-type", "f32,f16/bf16", "--json", stdin=text)
        self.assertEqual(got["n_scored"], 2 * (128 - 1 - 64))
        same, other = got["rows"]
        self.assertEqual([same["kv_type"], other["kv_type"]], ["f32", "f16/bf16"])
        self.assertEqual((same["kld_max"], same["same_top"]), (0, 1))
        self.assertGreater(other["kld_mean"], 0)
        self.assertAlmostEqual(other["bits_per_value"], 16, delta=0.3)
        table = kvasir(*kld, "--kv-type", "f32", stdin=text).stdout.decode().splitlines()
        self.assertIn("128 tokens", table[0])
        self.assertEqual(table[-1].split()[0], "f32")

    def test_eval_kld_resumes(self):
        text = "Once upon a time there was a little girl named Lily. She liked to play. " * 40
        with tempfile.TemporaryDirectory() as folder:
            kept = f"{folder}/run.jsonl"
            kld = ("eval", "kld", *M, "-f", "-", "-c", 128, "--resume", kept, "--json")
            first = kvasir_json(*kld, "--kv-type", "f16", "--chunks", 1, stdin=text)
            whole = kvasir_json(*kld, "--kv-type", "f16", "--chunks", 2, stdin=text)
            self.assertEqual([first["n_chunks_resumed"], whole["n_chunks_resumed"]], [0, 1])
            other = kvasir(*kld, "--kv-type", "bf16", stdin=text)
            self.assertEqual(other.returncode, USAGE)
            self.assertIn("got kv-type 'f16', want 'bf16'", other.stderr.decode())

    def test_eval_attention(self):
        text = "Once upon a time there was a little girl named Lily. She liked to play. " * 40
        attention = ("eval", "attention", *M, "-f", "-", "-c", 128, "--chunks", 1)
        got = kvasir_json(*attention, "--kv-type", "f32,bf16", "--json", stdin=text)
        self.assertEqual(got["n_scored"], 128 - 1 - 64)
        same, other = got["rows"]
        for layer, off in zip(same["layers"], other["layers"]):
            self.assertEqual((layer["error"], sum(layer["head_error"])), (0, 0))
            self.assertEqual(len(off["head_error"]), got["n_heads"])
            self.assertEqual(max(off["head_error"]), off["head_error"][off["worst_head"]])
        table = kvasir(*attention, "--kv-type", "bf16", stdin=text).stdout.decode().splitlines()
        self.assertEqual(table[-1].split()[0], str(got["n_layers"] - 1))

    def test_eval_pareto(self):
        text = "Once upon a time there was a little girl named Lily. She liked to play. " * 40
        with tempfile.TemporaryDirectory() as folder:
            page, plot = f"{folder}/kv.html", f"{folder}/kv.svg"
            pareto = ("eval", "pareto", *M, "-f", "-", "-c", 128, "--chunks", 1, "-r", 1, "-n", 4)
            done = kvasir(
                *pareto, "--kv-types", "f16,bf16", "-d", 32, "-o", page, "--svg", plot, stdin=text
            )
            self.assertEqual(done.returncode, OK, done.stderr)
            self.assertIn("act f32", done.stdout.decode())
            table = done.stdout.decode().split("KV type")[1].splitlines()
            self.assertEqual([line.split()[0] for line in table[1:]], ["f16", "bf16"])
            with open(page, encoding="utf-8") as file:
                html = file.read()
            with open(plot, encoding="utf-8") as file:
                self.assertIn(file.read(), html)
            done = kvasir(
                *pareto[:-2], "--kv-types", "f16", "-d", 0, "-p", 24, "-o", page, stdin=text
            )
            self.assertIn("24 tokens of a prompt after 0", done.stdout.decode(), done.stderr)
            # The default list: a head of 8 is too small for most of it.
            done = kvasir(*pareto, "-d", 32, "-o", page, stdin=text)
            self.assertEqual(done.returncode, INVALID_MODEL, done.stderr)

    def test_eval_drift(self):
        text = "Once upon a time there was a little girl named Lily. She liked to play. " * 40
        got = kvasir_json(
            "eval", "drift", *M, "-f", "-", "--kv-type", "f32,bf16", "--prompts", 3,
            "--prompt-tokens", 16, "-n", 24, "--json", stdin=text
        )
        self.assertEqual(got["n_prompts"], 3)
        self.assertEqual(got["rows"][0]["never_differs"], 1)
        self.assertEqual(got["rows"][0]["repetition"], got["base_repetition"])

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

    def test_bench_of_several_sequences(self):
        flags = ["-p", 0, "-n", 4, "-d", 32, "-r", 1]
        rows = kvasir_json("bench", *M, *flags, "--batch", "1,3", "--json")
        self.assertEqual([row["test"] for row in rows], ["tg4 @ d32", "tg4 x 3 @ d32"])
        self.assertEqual([row["n_sequences"] for row in rows], [1, 3])
        alone = kvasir("bench", *M, "-p", 16, "-n", 0, "-r", 1, "--batch", "1,4")
        self.assertEqual((alone.returncode, alone.stdout), (USAGE, b""))
        self.assertIn(b"--batch", alone.stderr)
        for batch in ("0,2", "1025", "2000000000"):
            refused = kvasir("bench", *M, *flags, "--batch", batch)
            self.assertEqual(refused.returncode, USAGE)
            self.assertIn("batch", refused.stderr.decode())

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

    def test_doctor_fails_when_the_model_can_not_run(self):
        got = kvasir_json("doctor", *M, "--json")
        self.assertIn("simd", got)
        self.assertEqual(got["model"]["state"], "fine")
        self.assertEqual(kvasir("doctor", *M).returncode, OK)
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(STORIES.read_bytes()[:5000])
            file.flush()
            for model, state in (("no/such.gguf", "missing"), (file.name, "damaged")):
                done = kvasir("doctor", "-m", model, "--json")
                self.assertEqual(done.returncode, ERROR)
                self.assertEqual(json.loads(done.stdout)["model"]["state"], state)
                done = kvasir("doctor", "-m", model)
                self.assertEqual(done.returncode, ERROR)
                self.assertIn(state.encode(), done.stdout)
                self.assertEqual(b"make model" in done.stdout, state == "missing")


if __name__ == "__main__":
    unittest.main()
