#!/usr/bin/env python3
"""Small rules that every file keeps; see RULES in the functions below, one function a rule.

Usage: check_hygiene.py [root]
"""

import os
import re
import shutil
import subprocess

import common

COLUMNS = 100
HEADER_LINES, SOURCE_LINES = 400, 600
# A longer file says in its first comment why; so does one with wider lines (a table of test cases).
# The words that say it:
EXCUSE, EXCUSE_WIDE = "long because", "wide because"
OFFENCES_SHOWN = 3  # of one file and kind
CLANG_FORMAT_VERSION = "14."  # other versions format differently

# Spelled in pieces, so that this file keeps its own rules.
UNFINISHED = re.compile(r"\b(%s)\b" % "|".join(("TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK")))
REGISTRY_HOSTS = [".".join(parts).encode() for parts in (
    ("pypi", "org"), ("pythonhosted", "org"), ("crates", "io"), ("proxy", "golang", "org"),
    ("npmjs", "org"), ("npmjs", "com"), ("yarnpkg", "com"), ("maven", "org"),
    ("maven", "apache", "org"), ("deb", "debian", "org"), ("security", "debian", "org"),
    ("snapshot", "debian", "org"), ("archive", "ubuntu", "com"))]
MACHINE_PATH = re.compile(r"(?<![\w.$}~/-])/(?:%s)/\w" % "|".join(("wo" "rk", "tm" "p", "ro" "ot",
                                                                  "ho" "me")))


def is_code(path):
    name = path.split("/")[-1]
    return (path.endswith(common.CPP + (".py", ".sh", ".cmake")) or
            name in ("CMakeLists.txt", "Makefile", "pre-commit") or path == ".ci/run")


def is_ours(path):
    """Not data that a test reads, nor a licence text."""
    return not path.startswith("tests/data/") and not path.split("/")[-1].startswith("LICENSE")


def check_hosts(data, offend):
    for host in REGISTRY_HOSTS:
        position = data.find(host)
        if position >= 0:
            line = data.count(b"\n", 0, position) + 1
            offend(line, "names a package registry's host; packages go by name alone")


def check_lines(path, text, offend):
    columns = 100000 if EXCUSE_WIDE in " ".join(text[:1500].split()) else COLUMNS
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip() and not path.endswith(".md"):
            offend(number, "space at the end of the line")
        if UNFINISHED.search(line):
            offend(number, "unfinished: " + UNFINISHED.search(line).group(0))
        if MACHINE_PATH.search(line):
            offend(number, "absolute path of one machine")
        if not is_code(path):
            continue
        if not line.isascii():
            offend(number, "not ASCII")
        if len(line) > columns:
            offend(number, "columns: %d, want at most %d" % (len(line), COLUMNS))
        if "\t" in line and path != "Makefile":
            offend(number, "tab")
    if text and not text.endswith("\n"):
        offend(text.count("\n") + 1, "no newline at the end")


def first_comment(text):
    match = re.match(r"(?:[ \t]*//[^\n]*\n|\s*/\*.*?\*/)+", text, re.S)
    return " ".join(re.sub(r"//|/\*|\*/", " ", match.group(0)).split()) if match else ""


def check_shape(path, text, offend):
    n_lines = text.count("\n")
    limit = HEADER_LINES if path.endswith(".h") else SOURCE_LINES
    if n_lines > limit and EXCUSE not in first_comment(text).lower():
        offend(1, "%d lines, want at most %d, or a first comment that says '%s ...'"
               % (n_lines, limit, EXCUSE))
    if path.endswith(".h") and path.startswith(("src/", "apps/", "include/")):
        if not text.startswith("//"):
            offend(1, "a header begins with one sentence saying what it is for")
        if not path.endswith("-inl.h") and "#pragma once" not in text:
            offend(1, "no #pragma once")


def check_format(root, paths):
    """clang-format's opinion, where the version is the one that made the style."""
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if not tool or not paths:
        return []
    version = subprocess.run([tool, "--version"], stdout=subprocess.PIPE, text=True,
                             check=False).stdout
    if "version " + CLANG_FORMAT_VERSION not in version:
        print("check_hygiene: formatting not checked: want clang-format %sx, got %s"
              % (CLANG_FORMAT_VERSION, version.strip()))
        return []
    result = subprocess.run([tool, "--dry-run", "--style=file"] + paths, cwd=root,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            check=False)
    offences = {}
    for match in re.finditer(r"^(\S+?):(\d+):\d+: warning: code should be clang-formatted",
                             result.stderr, re.M):
        offences.setdefault(os.path.relpath(os.path.join(root, match.group(1)), root),
                            match.group(2))
    return ["%s:%s: not formatted: run `make format`" % item for item in sorted(offences.items())]


def shorten(offences):
    """The first few of each file and kind (the words before a colon), and how many more."""
    kinds = {}
    for offence in offences:
        path, _, what = offence.split(":", 2)
        kinds.setdefault((path, what.split(":")[0]), []).append(offence)
    shown = []
    for found in kinds.values():
        shown += found[:OFFENCES_SHOWN]
        if len(found) > OFFENCES_SHOWN:
            shown[-1] += " (and %d more in this file)" % (len(found) - OFFENCES_SHOWN)
    return shown


def find_offences(root):
    offences = []
    cpp = []
    for path in common.list_files(root):
        data = common.read_bytes(root, path)

        def offend(line, what, path=path):
            offences.append("%s:%d: %s" % (path, line, what))

        check_hosts(data, offend)
        if not is_ours(path) or b"\0" in data:
            continue
        text = data.decode("utf-8", "replace")
        check_lines(path, text, offend)
        if path.endswith(common.CPP):
            cpp.append(path)
            check_shape(path, text, offend)
    return shorten(offences) + check_format(root, cpp)


if __name__ == "__main__":
    common.main("check_hygiene", find_offences)
