#!/usr/bin/env python3
"""Docs that stay true: links resolve, `make` targets exist, and so does all that the tour names.

In docs/tour.md every word in backticks that looks like a file or a symbol must be one: a path
below the root or src/; an identifier, `ns::Class::member` or `function()` whose parts stand in one
file of src/ or apps/.
Words with a space, a quote or a leading dash (commands, examples, flags) are not looked up.
Usage: check_docs.py [root]
"""

import os
import re

import common

TOUR = "docs/tour.md"
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.M | re.S)
INLINE_CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"!?\[[^\]\n]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
PATH = re.compile(r"[\w.+-]+(/[\w.*+-]+)*/?")
FILE_NAME = re.compile(r"[\w.+-]+\.(h|cc|cpp|py|sh|md|txt|json|gguf|cmake)")
SYMBOL = re.compile(r"~?[A-Za-z_]\w*(::~?[A-Za-z_]\w*)*(\(\))?")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def slugs(text):
    """The anchors that the headings of a page get."""
    found = set()
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*\s*$", FENCE.sub(blank, text), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        n = 0
        while "%s-%d" % (slug, n) in found or (n == 0 and slug in found):
            n += 1
        found.add(slug if n == 0 else "%s-%d" % (slug, n))
    return found


def check_links(root, path, text, offend):
    plain = INLINE_CODE.sub(blank, FENCE.sub(blank, text))
    for match in LINK.finditer(plain):
        target = match.group(1)
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        full = os.path.join(root, file)
        if file.startswith("..") or not os.path.exists(full):
            offend(match.start(1), "link to %s: no such file" % target)
        elif anchor and file.endswith(".md") and anchor not in slugs(common.read_text(root, file)):
            offend(match.start(1), "link to %s: no such heading" % target)


def check_make_targets(text, targets, offend):
    for match in re.finditer(r"(?:`|^\s*(?:\$ )?)make ([a-z][\w-]*)", text, re.M):
        if match.group(1) not in targets:
            offend(match.start(1), "make %s: no such target" % match.group(1))


def exists(root, word):
    return any(os.path.exists(os.path.join(root, base, word)) for base in ("", "src"))


def check_tour(root, text, sources, offend):
    """`sources`: for each file of src/ and apps/ the set of its identifiers."""
    for match in INLINE_CODE.finditer(FENCE.sub(blank, text)):
        word = match.group(1)
        if ("/" in word or FILE_NAME.fullmatch(word)) and PATH.fullmatch(word):
            if not exists(root, word):
                offend(match.start(1), "`%s`: no such file" % word)
        elif SYMBOL.fullmatch(word):
            names = set(re.findall(r"\w+", word))
            if not any(names <= identifiers for identifiers in sources):
                offend(match.start(1), "`%s`: no file of src/ or apps/ has it" % word)


def find_offences(root):
    offences = []
    files = common.list_files(root)
    makefile = common.read_text(root, "Makefile") if "Makefile" in files else ""
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))
    for path in files:
        if not path.endswith(".md"):
            continue
        text = common.read_text(root, path)

        def offend(position, what, path=path, text=text):
            line = text.count("\n", 0, position) + 1
            offences.append("%s:%d: %s" % (path, line, what))

        check_links(root, path, text, offend)
        check_make_targets(text, targets, offend)
        if path == TOUR:
            sources = [set(re.findall(r"\w+", common.read_text(root, file))) for file in files
                       if file.endswith(common.CPP) and file.startswith(("src/", "apps/"))]
            check_tour(root, text, sources, offend)
    return offences


if __name__ == "__main__":
    common.main("check_docs", find_offences)
