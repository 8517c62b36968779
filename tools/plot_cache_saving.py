#!/usr/bin/env python3
"""Draws `kvasir bench --no-kv-cache -o json` as an SVG: milliseconds per token and multiply-adds,
with the KV cache and recomputed, over the length of the history (both axes logarithmic).

  kvasir bench --no-kv-cache -o json | tools/plot_cache_saving.py > docs/images/cache-saving.svg
"""

import json
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 920, 380, 70, 56, 60, 90
PANEL = (WIDTH - 2 * LEFT - GAP + 40) // 2
CACHED, RECOMPUTED, INK, GRID = "#1a7f5a", "#b3402e", "#24292f", "#d0d7de"


def text(x, y, words, anchor="middle", size=12, weight="normal", color=INK):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}" fill="{color}">{words}</text>'
    )


def decades(values):
    """The powers of ten that enclose the values."""
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)


def tick_name(exponent, unit):
    if unit == "ms":
        return f"{10.0 ** exponent:g}"
    return f'10<tspan dy="-5" font-size="9">{exponent}</tspan>'


def panel(left, title, unit, rows, cached_key, recomputed_key):
    """One chart; y is logarithmic over whole decades, x over the lengths measured."""
    lengths = [row["n_tokens"] for row in rows]
    exponents = decades([row[key] for row in rows for key in (cached_key, recomputed_key)])
    bottom = HEIGHT - BOTTOM

    def x_of(length):
        span = math.log2(lengths[-1] / lengths[0]) or 1
        return left + 14 + (PANEL - 28) * math.log2(length / lengths[0]) / span

    def y_of(value):
        return bottom - (bottom - TOP) * (math.log10(value) - exponents[0]) / (
            exponents[-1] - exponents[0]
        )

    out = [text(left + PANEL / 2, TOP - 16, title, size=13, weight="bold")]
    for exponent in exponents:
        y = y_of(10.0**exponent)
        out.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{left + PANEL}" y2="{y:.1f}" stroke="{GRID}"/>'
        )
        out.append(text(left - 8, y + 4, tick_name(exponent, unit), anchor="end", size=11))
    for length in lengths:
        out.append(text(x_of(length), bottom + 18, str(length), size=11))
    out.append(text(left + PANEL / 2, bottom + 38, "tokens of history", size=11))
    for key, color, name, above in (
        (cached_key, CACHED, "KV cache", False),
        (recomputed_key, RECOMPUTED, "recomputed", True),
    ):
        points = " ".join(f"{x_of(row['n_tokens']):.1f},{y_of(row[key]):.1f}" for row in rows)
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        for row in rows:
            out.append(
                f'<circle cx="{x_of(row["n_tokens"]):.1f}" cy="{y_of(row[key]):.1f}" '
                f'r="3.5" fill="{color}"/>'
            )
        last = rows[-1]
        out.append(
            text(
                left + PANEL - 14,
                y_of(last[key]) + (18 if above else -12),
                name,
                anchor="end",
                color=color,
                weight="bold",
            )
        )
    return out


def main():
    report = json.load(sys.stdin)
    rows = report["rows"]
    caption = (
        f"{report['model_type']}, {report['cpu_info']}, {report['n_threads']} threads, "
        f"median of {report['n_repetitions']}"
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 20, caption, size=11),
    ]
    out += panel(LEFT, "milliseconds for one more token", "ms", rows, "cached_ms", "recomputed_ms")
    out += panel(
        LEFT + PANEL + GAP,
        "multiply-adds for one more token",
        "ops",
        rows,
        "cached_multiply_adds",
        "recomputed_multiply_adds",
    )
    out.append("</svg>")
    print("\n".join(out))


if __name__ == "__main__":
    main()
