#!/usr/bin/env python3
"""Writes the chat template test cases with the output that Jinja2 gives for them.

Jinja2 is set up as Hugging Face sets it up for chat templates: a sandboxed environment with
trim_blocks and lstrip_blocks, loop controls, a plain json.dumps as `tojson`, `raise_exception`,
`strftime_now` (here at a fixed time) and the transparent `generation` tag.

    python tools/make_jinja_cases.py tests/data        (needs jinja2 >= 3.1)
"""

import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

import jinja_cases

NOW = 1732320000  # 2024-11-23 00:00:00 UTC


class Raised(Exception):
    """What raise_exception() throws."""


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def raise_exception(message):
        raise Raised(message)

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(source, variables):
    """{"expected": text}, {"raised": message} or {"error": what Jinja2 said}."""
    try:
        return {"expected": environment().from_string(source).render(**variables)}
    except Raised as error:
        return {"raised": str(error)}
    except Exception as error:  # any way of failing is one: TypeError, UndefinedError, ...
        return {"error": f"{type(error).__name__}: {error}"}


def feature_cases():
    cases = []
    for group, sources in jinja_cases.CASES.items():
        for entry in sources:
            source, variables = entry if isinstance(entry, tuple) else (entry, {})
            cases.append(
                {
                    "group": group,
                    "source": source,
                    "variables": variables,
                    **render(source, {**jinja_cases.SHARED, **variables}),
                }
            )
    return {"now": NOW, "shared": jinja_cases.SHARED, "cases": cases}


def conversation_cases(folder):
    cases = []
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for name, variables in jinja_cases.CONVERSATIONS.items():
            cases.append(
                {
                    "template": path.name,
                    "conversation": name,
                    **render(
                        source,
                        {"tools": None, "documents": None, **jinja_cases.SPECIALS, **variables},
                    ),
                }
            )
    return {
        "now": NOW,
        "specials": jinja_cases.SPECIALS,
        "conversations": jinja_cases.CONVERSATIONS,
        "cases": cases,
    }


def main():
    data = pathlib.Path(sys.argv[1])
    for name, content in [
        ("jinja_cases.json", feature_cases()),
        ("chat_template_cases.json", conversation_cases(data / "chat_templates")),
    ]:
        text = json.dumps(content, indent=1, ensure_ascii=True)
        (data / name).write_text(text + "\n", encoding="utf-8")
        n_errors = sum("expected" not in case for case in content["cases"])
        print(f"{name}: {len(content['cases'])} cases, {n_errors} of them errors")


if __name__ == "__main__":
    main()
