#!/usr/bin/env python3
"""Arrows between rooms: who may include what.

The rooms and their arrows are the kvasir_room(...) lines of CMakeLists.txt; the finer rules are the
tables below. Usage: check_layers.py [root]
"""

import os
import re

import common

# A room that may see only a part of another room: (room, other room) -> what.
PARTS = {
    # Kernels get a view; they do not know who owns pages.
    ("attention", "cache"): re.compile(r"cache/(page/(geometry|paged_kv_view)\.h|codec/.*)"),
    # The model writes K/V and names its cache groups; it manages no pages.
    ("model", "cache"): re.compile(r"cache/(page/.*|codec/.*|cache\.h)"),
}
# Headers with a fence: pattern, folders that may include them, why.
FENCED_HEADERS = [
    (re.compile(r"nlohmann/.*"), ("src/eval/", "apps/", "tests/", "bench/", "fuzz/"),
     "JSON stays in eval's writers and the apps"),
    (re.compile(r"CLI/.*"), ("apps/",), "flags stay in the apps"),
    (re.compile(r"iostream"), (), "fmt takes its place"),
    (re.compile(r"regex"), (), "slow, recursive, without limits"),
]
# Code with a fence: pattern, folders it is fenced out of, why.
FENCED_CODE = [
    (re.compile(r"\b(?:secure_)?getenv\s*\(|\benviron\b"), ("src/", "include/"),
     "the environment is read in apps only"),
    (re.compile(r"\bstd::(?:basic_)?regex\b"), ("",), "slow, recursive, without limits"),
    (re.compile(r"\bstd::c(?:out|err|in)\b"), ("src/", "include/"), "library code never prints"),
]
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.M)


def read_rooms(root):
    """{room: rooms it may include}, from CMakeLists.txt."""
    text = common.read_text(root, "CMakeLists.txt")
    return {match.group(1): set(re.findall(r"\bkvasir_(\w+)", match.group(2)))
            for match in re.finditer(r"^kvasir_room\((\w+)([^)]*)\)", text, re.M)}


def check_room_include(root, rooms, room, target):
    """Why a file of `room` may not include "target"; None when it may."""
    if ".." in target.split("/"):
        return "no way up: includes start at src/"
    other = target.split("/")[0]
    if other == "apps":
        return "src/ knows no app"
    if other == "hwy":  # Highway quotes its own headers
        return None if room == "simd" or "simd" in rooms[room] else "Highway comes with room 'simd'"
    if other not in rooms:
        return "'%s' is no room of CMakeLists.txt" % other
    if other != room and other not in rooms[room]:
        return "room '%s' may include %s" % (room, ", ".join(sorted(rooms[room])) or "nothing")
    part = PARTS.get((room, other))
    if part and not part.fullmatch(target):
        return "of '%s', room '%s' may include only %s" % (other, room, part.pattern)
    if not os.path.isfile(os.path.join(root, "src", target)):
        return "no such file"
    return None


def find_offences(root):
    rooms = read_rooms(root)
    offences = []
    if not rooms:
        offences.append("CMakeLists.txt: no kvasir_room lines found")
    for path in common.list_files(root):
        if not path.endswith(common.CPP):
            continue
        text = common.read_text(root, path)
        parts = path.split("/")
        in_src = parts[0] == "src" and len(parts) > 2
        if in_src and parts[1] not in rooms:
            offences.append("%s: '%s' is no room of CMakeLists.txt" % (path, parts[1]))
            continue

        def offend(position, what, why, path=path, text=text):
            line = text.count("\n", 0, position) + 1
            offences.append("%s:%d: %s: %s" % (path, line, what, why))

        for match in INCLUDE.finditer(text):
            target = match.group(2)
            if in_src and match.group(1) == '"':
                why = check_room_include(root, rooms, parts[1], target)
                if why:
                    offend(match.start(2), 'includes "%s"' % target, why)
            for pattern, folders, why in FENCED_HEADERS:
                if pattern.fullmatch(target) and not path.startswith(folders or ("\0",)):
                    offend(match.start(2), "includes <%s>" % target, why)
        code = common.strip_comments_and_strings(text)
        for pattern, folders, why in FENCED_CODE:
            if path.startswith(folders):
                for match in pattern.finditer(code):
                    offend(match.start(), "uses %s" % match.group(0).strip(" ("), why)
    return offences


if __name__ == "__main__":
    common.main("check_layers", find_offences)
