"""Types of cached K and V on the command line: names, llama.cpp's flags, and what is refused."""

import unittest

from support import DATA, INVALID_MODEL, OK, STORIES, USAGE, kvasir, kvasir_json

LLAMA = DATA / "arch_vectors" / "llama_9q3kv_hd64.gguf"  # heads of 64; the stories' have 8
TEXT = "Once upon a time there was a little girl named Lily. She liked to play. " * 60
BENCH = ("bench", "-m", LLAMA, "-p", "0", "-n", "4", "-d", "200", "-r", "1")


class KvTypes(unittest.TestCase):
    def refused(self, code, *args, says):
        done = kvasir(*args)
        self.assertEqual(done.returncode, code, (args, done.stderr))
        self.assertEqual(done.stdout, b"", args)
        self.assertTrue(done.stderr.startswith(b"kvasir: "), done.stderr)
        self.assertIn(says, done.stderr.decode())

    def test_every_name_runs(self):
        for name in ("f32", "f16", "bf16", "int8", "int8-g64", "int4", "int4-3", "int3", "tile3"):
            done = kvasir(*BENCH, "--kv-type", name)
            self.assertEqual(done.returncode, OK, (name, done.stderr))
            self.assertNotIn(b"takes its place", done.stderr)

    def test_names_of_llama_cpp_are_taken_with_a_note(self):
        for k, v in (("-ctk", "-ctv"), ("--cache-type-k", "--cache-type-v"), ("-k", "-v")):
            done = kvasir(*BENCH, k, "q8_0", v, "q4_0")
            self.assertEqual(done.returncode, OK, done.stderr)
            self.assertIn(b"kv type q8_0: int8 takes its place", done.stderr)
            self.assertIn(b"kv type q4_0: int4 takes its place", done.stderr)

    def test_bench_names_types_and_not_codecs(self):
        for flags, k, v in (
            ((), "f16", "f16"),
            (("--kv-type", "int4"), "int4", "int4"),
            (("-ctk", "q4_0"), "int4", "f16"),
            (("-ctk", "q8_0", "-ctv", "q4_0"), "int8", "int4"),
            (("--kv-type", "int4", "-v", "int4-3"), "int4", "int4-3"),
            (("--kv-type", "tile4"), "tile4", "tile4"),
        ):
            row = kvasir_json(*BENCH, *flags, "--json")[0]
            self.assertEqual((row["type_k"], row["type_v"]), (k, v), flags)
        table = kvasir(*BENCH, "-ctk", "q4_0", "-ctv", "int8-g64").stdout.decode()
        self.assertIn("| int4 | int8-g64 |", table)

    def test_flags_of_several_letters_behind_one_dash(self):
        self.refused(USAGE, *BENCH, "-ctk", "int7", says="--kv-type-k: got 'int7', want f32")
        self.refused(USAGE, *BENCH, "-ctv", "int7", says="--kv-type-v: got 'int7', want f32")
        self.refused(USAGE, *BENCH, "-ctk", says="--kv-type-k: 1 required")
        # Behind "--" stands no flag, but a prompt.
        raw = ("run", "-m", STORIES, "--raw", "-n", "1")
        self.assertEqual(kvasir(*raw, "--", "-ctk").returncode, OK)

    def test_tails_sinks_and_protected_layers_out_of_range(self):
        for flag, value, says in (
            ("--kv-tail", "100", "--kv-tail: got 100, want a multiple of 64 tokens, 0 to 4096"),
            ("--kv-tail", "-64", "--kv-tail"),
            ("--kv-tail", "4160", "--kv-tail: got 4160"),
            ("--kv-sinks", "-1", "--kv-sinks"),
            ("--kv-sinks", "5000", "--kv-sinks: got 5000, want 0 to 4096 tokens"),
            ("--kv-protect", "-1", "--kv-protect"),
            ("--kv-protect", "x", "--kv-protect"),
            ("--kv-type", "int5", "--kv-type: got 'int5', want f32"),
        ):
            self.refused(USAGE, *BENCH, flag, value, says=says)
        for flags in (("--kv-tail", "0"), ("--kv-tail", "128", "--kv-sinks", "1")):
            self.assertEqual(kvasir(*BENCH, "--kv-type", "int4", *flags).returncode, OK, flags)

    def test_what_concerns_tiles_alone_is_refused_without_any(self):
        flags = (("--kv-tail", "0"), ("--kv-sinks", "64"), ("--kv-protect", "0"))
        for flag, value in flags:
            for types in ((), ("--kv-type", "int8"), ("-k", "bf16", "-v", "q8_0")):
                what = "K" if flag == "--kv-protect" else "K and V"
                got = {0: "f16", 2: "int8", 4: "bf16/int8"}[len(types)]
                self.refused(
                    USAGE, *BENCH, *types, flag, value,
                    says=f"{flag}: concerns {what} in tiles alone; got {got}, "
                    "want int4, int4-3 or int3",
                )
        for flag, value in flags[:2]:
            for types in (("--kv-type", "int3"), ("-v", "int4"), ("-k", "q4_0")):
                done = kvasir(*BENCH, *types, flag, value)
                self.assertEqual(done.returncode, OK, (types, flag, done.stderr))
        self.refused(USAGE, *BENCH, "-v", "int4", "--kv-protect", "0", says="concerns K in tiles")

    def test_in_comparisons_some_type_must_have_tiles(self):
        kld = ("eval", "kld", "-m", LLAMA, "-f", "-", "-c", "260", "--chunks", "1")
        for types in ("int8:tail=0", "f16,bf16:sinks=0", "int8/int8-g64:tail=64"):
            option = types.split(":")[1].split("=")[0]
            got = types.split(",")[-1]
            self.refused(
                USAGE, *kld, "--kv-type", types,
                says=f"--kv-type: :{option}: concerns K and V in tiles alone; got {got}, want int4",
            )
        self.refused(USAGE, *kld, "--kv-type", "f16/int4:protect=1", says=":protect: concerns K in")
        refused = ("--base-kv", "int8:tail=0", "--kv-type", "int4")
        self.refused(USAGE, *kld, *refused, says="--base-kv: :tail: concerns")
        done = kvasir(*kld, "--kv-type", "int8:tail=0,int4:tail=0", stdin=TEXT)
        self.assertEqual(done.returncode, OK, done.stderr)

    def test_comparisons_too_short_for_a_tile_say_so_once_a_type(self):
        says = "kv type {}: in {} of {} tokens no tile is ever read, so this measures int8 alone"
        for command, what in (
            (("kld", "-c", "{}", "--chunks", "1"), "chunks"),
            (("attention", "-c", "{}", "--chunks", "1"), "chunks"),
            (("drift", "--prompts", "1", "--prompt-tokens", "{0-4}", "-n", "4"),
             "prompts and answers"),
        ):
            for n, is_short in ((193, True), (194, False)):
                args = [arg.replace("{}", str(n)).replace("{0-4}", str(n - 4)) for arg in command]
                types = "int8,tile4,tile4:tail=0,tile3,tile4"
                done = kvasir(
                    "eval", *args, "-m", LLAMA, "-f", "-", "--kv-type", types, stdin=TEXT)
                self.assertEqual(done.returncode, OK, done.stderr)
                notes = done.stderr.decode()
                for kv_type in ("tile4", "tile3"):
                    n_times = notes.count(says.format(kv_type, what, n))
                    self.assertEqual(n_times, 1 if is_short else 0, (command, n, notes))
                self.assertEqual(notes.count("the least that reads one is 194"), 2 * is_short)
                for kv_type in ("int8", "tile4:tail=0"):
                    self.assertNotIn(f"kv type {kv_type}: in ", notes)

    def test_comparisons_keep_the_names_they_were_given_and_add_ours(self):
        args = ("-m", LLAMA, "-f", "-", "--kv-type", "q4_0,int8/q8_0:tail=0,int4",
                "--base-kv", "q8_0")
        names = [("q4_0", "int4"), ("int8/q8_0:tail=0", "int8/int8:tail=0"), ("int4", None)]
        for command in (
            ("kld", "-c", "260", "--chunks", "1"),
            ("attention", "-c", "260", "--chunks", "1"),
            ("drift", "--prompts", "1", "--prompt-tokens", "200", "-n", "8"),
        ):
            got = kvasir_json("eval", *command, *args, "--json", stdin=TEXT)
            rows = [(row["kv_type"], row.get("kv_type_resolved")) for row in got["rows"]]
            self.assertEqual(rows, names, command)
            self.assertEqual((got["base_kv"], got["base_kv_resolved"]), ("q8_0", "int8"))
            table = kvasir("eval", *command, *args, stdin=TEXT).stdout.decode()
            self.assertIn("q8_0 (int8)", table.splitlines()[0])
            if command[0] == "attention":
                self.assertIn("\nq4_0 (int4)\n", table)
                continue
            rows = [line.split() for line in table.splitlines()]
            self.assertIn(["q4_0", "int4"], [row[:2] for row in rows])
            self.assertIn(["int4", "int4"], [row[:2] for row in rows])
            head = next(line for line in table.splitlines() if line.startswith("KV type"))
            self.assertIn("stored as", head)
        plain = ("eval", "drift", "--prompts", "1", "--prompt-tokens", "20", "-n", "8")
        plain = (*plain, "-m", LLAMA, "-f", "-", "--kv-type", "int8")
        self.assertNotIn(b"stored as", kvasir(*plain, stdin=TEXT).stdout)
        self.assertNotIn("kv_type_resolved", kvasir_json(*plain, "--json", stdin=TEXT)["rows"][0])

    def test_layers_to_protect_need_a_calibration(self):
        self.refused(USAGE, *BENCH, "--kv-type", "int4", "--kv-protect", "1", says="calibrat")

    def test_bits_that_no_calibration_gives_are_noted(self):
        for name, is_noted in (("int4", True), ("int4-3", True), ("tile4", False), ("int8", False)):
            done = kvasir(*BENCH, "--kv-type", name)
            self.assertEqual(done.returncode, OK, done.stderr)
            self.assertEqual(b"no calibration beside the model" in done.stderr, is_noted, name)

    def test_pages_of_tiles_are_whole_tiles(self):
        flags = ("--kv-type", "tile4", "--page-tokens", "16")
        self.refused(USAGE, *BENCH, *flags, says="want a multiple of 64")

    def test_heads_that_a_type_does_not_have_are_an_unsupported_model(self):
        for name in ("int8", "int8-g64", "int4", "tile3", "q8_0"):
            done = kvasir("run", "-m", STORIES, "--raw", "-n", "1", "--kv-type", name, "Once")
            self.assertEqual(done.returncode, INVALID_MODEL, (name, done.stderr))
            self.assertEqual(done.stdout, b"")
            self.assertIn(b"head size; got 8, want a multiple of 16 up to 256", done.stderr)
        for flag in ("-ctk", "-ctv"):
            done = kvasir("run", "-m", STORIES, "--raw", "-n", "1", flag, "int8", "Once")
            self.assertEqual(done.returncode, INVALID_MODEL, done.stderr)

    def test_evaluation_refuses_them_likewise(self):
        kld = ("eval", "kld", "-m", STORIES, "-f", "-", "-c", "64", "--chunks", "1")
        done = kvasir(*kld, "--kv-type", "int8", stdin="Once upon a time. " * 40)
        self.assertEqual(done.returncode, INVALID_MODEL, done.stderr)
        self.assertIn(b"head size; got 8", done.stderr)


if __name__ == "__main__":
    unittest.main()
