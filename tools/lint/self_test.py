#!/usr/bin/env python3
"""Proves that each rule of the checks catches a violation, and that a clean tree passes."""

import os
import sys
import tempfile
import unittest

import check_docs
import check_hygiene
import check_layers

CMAKE = """
kvasir_room(base DEPS fmt::fmt)
kvasir_room(cache DEPS kvasir_base)
kvasir_room(attention DEPS kvasir_base kvasir_cache)
kvasir_room(model DEPS kvasir_base kvasir_attention
                       kvasir_cache)
kvasir_room(eval DEPS kvasir_base kvasir_model nlohmann_json::nlohmann_json)
"""
HEADER = "// What it is for.\n#pragma once\n"
CLEAN = {
    ".clang-format": "DisableFormat: true\nSortIncludes: Never\n",
    "CMakeLists.txt": CMAKE,
    "Makefile": "run: ## it\n\t@true\n",
    "README.md": "# A\n\nSee [the tour](docs/tour.md#one-two) and [above](#a). Try `make run`.\n",
    "docs/tour.md": "# One, two\n`src/base/a.h` `base/a.h` `Pool::take` `take()` `kvasir run`\n",
    "src/base/a.h": HEADER + "struct Pool { int take(); };\n",
    "src/cache/cache.h": HEADER + '#include "base/a.h"\n',
    "src/cache/page/geometry.h": HEADER,
    "src/cache/page/paged_kv_view.h": HEADER + '#include "cache/page/geometry.h"\n',
    "src/cache/page/pool.h": HEADER,
    "src/cache/codec/row_codec.h": HEADER,
    "src/attention/a.h": HEADER + '#include "cache/page/paged_kv_view.h"\n'
                                  '#include "cache/codec/row_codec.h"\n',
    "src/model/m.h": HEADER + '#include "cache/cache.h"\n#include "attention/a.h"\n',
    "src/eval/e.cc": "#include <nlohmann/json.hpp>\n",
    "apps/x/main.cc": '#include <CLI/CLI.hpp>\n#include "local.h"\n'
                      'const char* e = std::getenv("A");\n',
}


class Tree:
    """A throw-away tree: CLEAN with some files changed."""

    def __init__(self, changes):
        self.folder = tempfile.TemporaryDirectory()
        for path, text in {**CLEAN, **changes}.items():
            full = os.path.join(self.folder.name, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as out:
                out.write(text)

    def __enter__(self):
        return self.folder.name

    def __exit__(self, *_):
        self.folder.cleanup()


class RuleTest(unittest.TestCase):
    def offences(self, check, changes):
        with Tree(changes) as root:
            return check.find_offences(root)

    def assert_caught(self, check, path, text, words):
        """One offence, in `path`, that says `words`."""
        found = self.offences(check, {path: text})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(path + ":"), found)
        self.assertIn(words, found[0])

    def assert_clean(self, check, changes=None):
        self.assertEqual(self.offences(check, changes or {}), [])


class Layers(RuleTest):
    def caught(self, path, text, words):
        self.assert_caught(check_layers, path, text, words)

    def test_a_clean_tree_passes(self):
        self.assert_clean(check_layers)

    def test_no_arrow_up(self):
        self.caught("src/base/b.cc", '#include "cache/cache.h"\n',
                    "room 'base' may include nothing")

    def test_no_arrow_that_only_linking_would_allow(self):
        self.caught("src/eval/f.cc", '#include "cache/cache.h"\n', "room 'eval' may include")

    def test_attention_sees_no_owner_of_pages(self):
        self.caught("src/attention/b.cc", '#include "cache/cache.h"\n', "only cache/(page/")
        self.caught("src/attention/b.cc", '#include "cache/page/pool.h"\n', "only cache/(page/")

    def test_model_sees_the_facade_but_no_other_part_of_the_cache(self):
        with_tier = {"src/cache/tier/disk.h": HEADER,
                     "src/model/n.cc": '#include "cache/tier/disk.h"\n'}
        self.assertEqual(len(self.offences(check_layers, with_tier)), 1)

    def test_unknown_rooms_and_missing_files(self):
        self.caught("src/base/b.cc", '#include "shed/a.h"\n', "is no room")
        self.caught("src/shed/a.cc", "int x;\n", "is no room")
        self.caught("src/base/b.cc", '#include "base/nothing.h"\n', "no such file")

    def test_src_includes_no_app_and_goes_not_up(self):
        self.caught("src/base/b.cc", '#include "apps/x/command.h"\n', "knows no app")
        self.caught("src/base/b.cc", '#include "../../apps/x/c.h"\n', "no way up")

    def test_highway_comes_with_simd(self):
        self.caught("src/base/b.cc", '#include "hwy/highway.h"\n', "comes with room 'simd'")

    def test_json_and_flags_stay_in_their_rooms(self):
        self.caught("src/base/b.cc", "#include <nlohmann/json.hpp>\n", "JSON")
        self.caught("src/eval/f.cc", "#include <CLI/CLI.hpp>\n", "flags")

    def test_no_iostream_no_regex(self):
        self.caught("src/base/b.cc", "#include <iostream>\n", "iostream")
        self.caught("apps/x/b.cc", "#  include <regex>\n", "regex")
        self.caught("src/base/b.cc", 'std::regex r("a");\n', "slow")
        self.caught("src/base/b.cc", "void f() { std::cout << 1; }\n", "never prints")

    def test_no_environment_below_apps(self):
        self.caught("src/base/b.cc", 'auto* a = std::getenv("A");\n', "environment")
        self.caught("src/base/b.cc", "extern char** environ;\n", "environment")

    def test_comments_and_strings_are_no_code(self):
        self.assert_clean(check_layers, {
            "src/base/b.cc": '// getenv("A")\n/* std::regex */ const char* s = "getenv(";\n'})

    def test_a_cmake_file_without_rooms_is_no_pass(self):
        self.assertTrue(self.offences(check_layers, {"CMakeLists.txt": "project(x)\n"}))


class Docs(RuleTest):
    def caught(self, path, text, words):
        self.assert_caught(check_docs, path, text, words)

    def test_a_clean_tree_passes(self):
        self.assert_clean(check_docs)

    def test_links_resolve(self):
        self.caught("docs/x.md", "[gone](gone.md)\n", "no such file")
        self.caught("docs/x.md", "[out](../../x.md)\n", "no such file")
        self.caught("docs/x.md", "[anchor](tour.md#three)\n", "no such heading")

    def test_code_and_the_web_are_not_followed(self):
        self.assert_clean(check_docs, {
            "docs/x.md": "`[a](b)` [web](https://example.org/x)\n```\n[a](b)\n```\n"})

    def test_make_targets_exist(self):
        self.caught("docs/x.md", "Run `make coffee`.\n", "no such target")

    def test_the_tour_names_real_files_and_symbols(self):
        for word in ("src/base/b.h", "b.h", "Pool::give", "Lake::take", "give()", "Lake"):
            self.caught("docs/tour.md", "# One, two\n`%s`\n" % word, "`%s`" % word)


class Hygiene(RuleTest):
    def caught(self, path, text, words):
        self.assert_caught(check_hygiene, path, text, words)

    def test_a_clean_tree_passes(self):
        self.assert_clean(check_hygiene)

    def test_each_line(self):
        self.caught("scripts/x.sh", "# caf\u00e9\n", "ASCII")
        self.caught("scripts/x.sh", "# %s\n" % ("x" * 99), "columns: 101")
        self.caught("scripts/x.sh", "true \n", "space at the end")
        self.caught("scripts/x.sh", "\ttrue\n", "tab")
        self.caught("scripts/x.sh", "true", "no newline")
        self.caught("scripts/x.sh", "# TO" "DO later\n", "unfinished")
        self.caught("docs/x.md", "FIX" "ME\n", "unfinished")
        self.caught("docs/x.md", "in /wo" "rk/main\n", "absolute path")

    def test_registry_hosts_even_in_test_data(self):
        self.caught("tests/data/x.txt", "https://py" "pi.org/simple\n", "registry")

    def test_sizes(self):
        self.caught("src/base/b.h", HEADER + "int x;\n" * 400, "402 lines")
        self.caught("src/base/b.cc", "int x;\n" * 601, "601 lines")
        self.assert_clean_sizes("// A table, long\n// because the standard has so many rows.\n"
                                + "int x;\n" * 601)

    def test_a_table_may_be_wide_and_a_file_is_not_listed_line_by_line(self):
        row = "x = 1  # %s\n" % ("y" * 100)
        self.assertEqual(3, len(self.offences(check_hygiene, {"tools/x.py": 9 * row})))
        self.assert_clean(check_hygiene, {"tools/x.py": "# Wide: wide because a table.\n" + row})

    def assert_clean_sizes(self, text):
        self.assertEqual([], [line for line in
                              self.offences(check_hygiene, {"src/base/b.cc": text})
                              if "lines" in line])

    def test_headers(self):
        self.caught("src/base/b.h", "#pragma once\n", "begins with one sentence")
        self.caught("src/base/b.h", "// For x.\nint x;\n", "#pragma once")

    def test_formatting_is_checked_where_the_tool_is(self):
        found = self.offences(check_hygiene, {".clang-format": "BasedOnStyle: Google\n",
                                              "src/base/b.cc": "int   x ;\n"})
        if not check_hygiene.shutil.which("clang-format-14"):
            self.skipTest("no clang-format-14 on this machine")
        self.assertTrue(any("src/base/b.cc:1: not formatted" in line for line in found), found)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
