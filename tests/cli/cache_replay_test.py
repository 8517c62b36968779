"""kvasir cache replay: a request trace against caches of several sizes, without a model."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest
import xml.etree.ElementTree

from support import ERROR, OK, ROOT, USAGE, kvasir, kvasir_json

DATA = pathlib.Path(os.environ.get("KVASIR_TEST_DATA", ROOT.parent / "shared" / "data"))
CONVERSATION = DATA / "traces" / "mooncake_conversation.jsonl"


def line(ms, n_tokens, ids):
    return json.dumps({"timestamp": ms, "input_length": n_tokens, "hash_ids": ids}) + "\n"


# A B C, A B D, A B C; pages of ten tokens.
FORK = line(0, 25, [1, 2, 3]) + line(1000, 25, [1, 2, 4]) + line(2500, 25, [1, 2, 3])
PAGES = ["--page-tokens", "10", "--token-bytes", "100"]


class CacheReplay(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="kvasir-replay-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def fails(self, *args, want, code=USAGE, stdin=FORK):
        done = kvasir("cache", "replay", *args, stdin=stdin)
        message = done.stderr.decode()
        self.assertEqual((done.returncode, done.stdout), (code, b""), message)
        self.assertIn(want, message)

    def test_json_of_a_trace_counted_by_hand(self):
        flags = ["--capacity", "3p", "--policy", "lru", "--disk", "100%", "--json"]
        got = kvasir_json("cache", "replay", "-", *PAGES, *flags, stdin=FORK)
        self.assertEqual(
            got,
            {
                "schema_version": 1,
                "trace": "-",
                "n_requests": 3,
                "seconds": 2.5,
                "page_tokens": 10,
                "page_bytes": 1000,
                "n_pages": 9,
                "n_distinct_pages": 4,
                "hit_rate_bound": 1 - 4 / 9,
                "disk_capacity_pages": 4,
                "rows": [
                    {
                        "policy": "lru",
                        "capacity_pages": 3,
                        "capacity_share": 0.75,
                        "hit_rate": 5 / 9,
                        "pages": {"memory": 4, "disk": 1, "computed": 4},
                        "tokens": {"memory": 40, "disk": 4, "computed": 31},
                        "prefill_saved": got["rows"][0]["prefill_saved"],
                        "evicted": 2,
                        "not_kept": 0,
                        "disk_written": 4,
                        "disk_evicted": 0,
                        "bytes_written": 4000,
                        "bytes_read": 1000,
                    }
                ],
            },
        )
        self.assertAlmostEqual(got["rows"][0]["prefill_saved"], 44 / 75, places=2)

    def test_a_row_for_each_capacity_and_policy(self):
        # 75 % of four pages, two pages, three and a half pages' bytes.
        flags = ["--capacity", "75%,2p,3500", "--policy", "cost,lru", "--json"]
        got = kvasir_json("cache", "replay", "-", *PAGES, *flags, stdin=FORK)
        rows = [(row["capacity_pages"], row["policy"]) for row in got["rows"]]
        sizes = [3, 3, 2, 2, 3, 3]
        self.assertEqual(rows, list(zip(sizes, ["cost", "lru"] * 3)))

    def test_table_and_plot(self):
        path = self.dir / "trace.jsonl"
        path.write_text(FORK)
        plot = self.dir / "hits.svg"
        flags = ["--capacity", "2p,4p", "--plot", plot]
        done = kvasir("cache", "replay", path, *PAGES, *flags)
        self.assertEqual((done.returncode, done.stderr), (OK, b""))
        lines = done.stdout.decode().splitlines()
        self.assertIn("9 pages of 10 tokens, 4 of them distinct", lines[0])
        self.assertEqual(len(lines), 2 + 2 + 6)
        self.assertIn("| 4 p (100 %) | lru | 55.56 % | 44 | 0 | 31 |", done.stdout.decode())
        svg = xml.etree.ElementTree.parse(plot).getroot()
        name = "{http://www.w3.org/2000/svg}"
        self.assertEqual(svg.tag, name + "svg")
        self.assertEqual(len(svg.findall(name + "polyline")), 3)
        self.assertEqual(len(svg.findall(name + "circle")), 6)

    def test_rubbish_is_named_by_its_line(self):
        self.fails("-", stdin=FORK + "rubbish\n", want="stdin, line 4: not JSON", *PAGES)
        self.fails(
            "-",
            *PAGES,
            stdin=FORK + line(2500, 25, [1, 2]),
            want="stdin, line 4: hash_ids: got 2 ids, want 3",
        )
        self.fails("-", stdin=b"\x1f\x8b\x08\x00", want="stdin: got gzip")
        self.fails("-", stdin=bytes(range(256)) * 64, want="stdin, line 1: not JSON")
        self.fails("-", stdin="", want="stdin: got no request")

    def test_files_that_cannot_be_used(self):
        missing = self.dir / "missing.jsonl"
        self.fails(missing, want=f"{missing}", code=ERROR)
        self.fails(self.dir, want=f"{self.dir}", code=ERROR)
        # Known before the work; and a picture never takes the trace's place.
        picture = self.dir / "no" / "x"
        self.fails("-", *PAGES, "--plot", picture, stdin=FORK, want="no such", code=ERROR)
        trace = self.dir / "trace.jsonl"
        trace.write_text(FORK)
        self.fails(trace, *PAGES, "--plot", trace, want="got the trace itself")
        self.assertEqual(trace.read_text(), FORK)

    def test_wrong_flags(self):
        for capacity in ("5x", "%", "-5%", "1e99p", "nan%", "5%,", "1p%"):
            self.fails("-", *PAGES, f"--capacity={capacity}", want="--capacity: got '")
        self.fails("-", *PAGES, "--capacity", "999", want="want at least a page (1000 B, of 4")
        self.fails("-", *PAGES, "--capacity", "0%", want="want at least a page")
        self.fails("-", *PAGES, "--disk", "much", want="--disk: got 'much'")
        self.fails("-", *PAGES, "--policy", "lru,fifo", want="--policy: got 'fifo', want some of")
        self.fails("-", "--page-tokens", "0", want="--page-tokens")
        self.fails("-", "--token-bytes", "0", want="--token-bytes")
        self.fails(want="trace")

    def test_mooncakes_conversations(self):
        if not CONVERSATION.exists():
            self.skipTest(f"no {CONVERSATION.name} in KVASIR_TEST_DATA nor beside the checkout")
        got = kvasir_json("cache", "replay", CONVERSATION, "--json")
        self.assertEqual((got["n_requests"], got["n_distinct_pages"]), (12031, 182790))
        rate = {(row["capacity_pages"], row["policy"]): row["hit_rate"] for row in got["rows"]}
        for n_pages in (9139, 18279, 36558):
            self.assertGreaterEqual(rate[n_pages, "cost"], rate[n_pages, "lru"])
            self.assertLess(rate[n_pages, "cost"], got["hit_rate_bound"])


if __name__ == "__main__":
    unittest.main()
