#!/usr/bin/env python3
"""What each part of a KV format is worth: the formats of K and V simulated in floats, one changed
at a time, independent of Kvasir's own code.

A llama model is run in numpy on chunks of text, once with exact K and V and once per variant, whose
K and V are rounded where its format rounds them, layer by layer, read by Kvasir's rule (the first
tokens, the tail and a query's own tile as rows, what lies between as tiles). Printed: KL divergence
of the next token from the exact run, and how often the likeliest token is the same. The formats:
src/cache/codec/tile_codec.h and codec.h, K's base chosen in a simpler way.

  scripts/kv_ablations.py -m model.gguf -f wiki.test.raw -f war_and_peace.txt > table.md
  scripts/kv_ablations.py -m model.gguf -f wiki.test.raw --only int8,tile4

Needs numpy and gguf (python3 -m pip install numpy gguf) and a built `kvasir` for its tokens.
Exit: 0, 1 after a run that failed, 2 for wrong arguments.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time

try:
    import gguf
    import numpy as np
except ImportError as error:
    sys.exit("kv_ablations: %s; want: python3 -m pip install numpy gguf" % error)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SEGMENT = 256  # tokens whose softmax factors are relative to one maximum


@dataclasses.dataclass(frozen=True)
class Side:
    """How K, or V, is stored: tiles of `bits` (None: none, rows everywhere)."""

    bits: int | None = None
    hadamard: bool = True
    axis: str = "channel"  # what has a scale of its own in a tile, beside the other axis' scale
    meta: int = 8  # bits of a tile's scales; 16: not rounded
    token_scale: bool = True  # K: tokens are brought to one size first
    clip: float = 1.0  # the share of a range that codes cover
    rows: str = "int8"  # "int8": amax of a row; "g64": its minimum and maximum; "exact"


@dataclasses.dataclass(frozen=True)
class Variant:
    k: Side
    v: Side
    group: int = 64  # tokens of a tile
    tail: int = 64
    sinks: int = 64
    q_bits: int = 8  # 15: two planes
    p_bits: int = 14  # 7: one plane of the kernels; 8: one plane without sign; 24: floats
    protected: tuple = ()  # layers that keep rows


def variants():
    """(name, variant): the two formats as they are, then with one thing changed."""
    replace = dataclasses.replace
    int8 = Variant(Side(), Side())
    k4, v4 = Side(4), Side(4, axis="token")
    tile4 = Variant(k4, v4)
    both = lambda v, **kw: replace(v, k=replace(v.k, **kw), v=replace(v.v, **kw))
    yield "int8", int8
    yield "int8, K plain", replace(int8, k=Side(hadamard=False))
    yield "int8, V plain", replace(int8, v=Side(hadamard=False))
    yield "int8, both plain", both(int8, hadamard=False)
    yield "int8, q in two planes", replace(int8, q_bits=15)
    for bits in (24, 8, 7):
        yield "int8, P of %d bits" % bits, replace(int8, p_bits=bits)
    yield "int8-g64 (plain)", both(int8, rows="g64", hadamard=False)
    yield "int8-g64, Hadamard", both(int8, rows="g64")
    yield "tile4", tile4
    yield "tile4, K plain", replace(tile4, k=replace(k4, hadamard=False))
    yield "tile4, V plain", replace(tile4, v=replace(v4, hadamard=False))
    yield "tile4, both plain", both(tile4, hadamard=False)
    yield "tile4, K's scales by token", replace(tile4, k=replace(k4, axis="token"))
    yield "tile4, no token scale of K", replace(tile4, k=replace(k4, token_scale=False))
    yield "tile4, scales of 16 bits", both(tile4, meta=16)
    yield "tile4, 128 tokens", replace(tile4, group=128)
    yield "tile4, ranges of 0.95", both(tile4, clip=0.95)
    yield "tile4, ranges of 0.85", both(tile4, clip=0.85)
    yield "tile4, q in two planes", replace(tile4, q_bits=15)
    for bits in (24, 8, 7):
        yield "tile4, P of %d bits" % bits, replace(tile4, p_bits=bits)
    yield "tile4, exact rows", both(tile4, rows="exact")
    for tail in (0, 128, 512):
        yield "tile4, tail %d" % tail, replace(tile4, tail=tail)
    for sinks in (0, 4):
        yield "tile4, sinks %d" % sinks, replace(tile4, sinks=sinks)
    yield "tile4, layers 17, 18 protected", replace(tile4, protected=(17, 18))
    yield "tile4, 17, 18, 20, 23 protected", replace(tile4, protected=(17, 18, 20, 23))


# What formats do to a row or a tile of one kv head.


def mantissa(x, bits, up=False):
    """x rounded to `bits` bits of mantissa, to nearest or up."""
    fraction, exponent = np.frexp(x)
    scale = 2.0 ** (bits + 1)
    return np.ldexp((np.ceil if up else np.round)(fraction * scale) / scale, exponent)


def half(x):
    return x.astype(np.float16).astype(np.float32)


def round_rows(x, rows):
    """[..., channels] as int8 rows read back; the scale of each row beside it."""
    if rows == "exact":
        return x, np.abs(x).max(-1, keepdims=True) / 127, np.zeros_like(x[..., :1])
    if rows == "g64":
        low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
        middle = half((low + high) / 2)
        scale = half(np.maximum(high - middle, middle - low) / 127)
    else:
        middle = np.zeros_like(x[..., :1])
        scale = half(np.abs(x).max(-1, keepdims=True) / 127)
    safe = np.where(scale > 0, scale, 1)
    return scale * np.clip(np.round((x - middle) / safe), -127, 127) + middle, scale, middle


def round_k_tile(x, side):
    """[tokens, channels] of K as a tile read back."""
    most = 2**side.bits - 1
    if side.axis == "token":
        return round_v_tile(x, side)[0]
    size = np.ones((len(x), 1), np.float32)
    if side.token_scale:
        size = np.sqrt(np.mean(x * x, -1, keepdims=True)) + 1e-30
        if side.meta == 8:
            size = mantissa(size, 4)
    y = x / size
    low, high = y.min(0), y.max(0)
    middle, width = (low + high) / 2, (high - low) * side.clip
    step = np.maximum(width / most, 1e-30)
    low = middle - width / 2
    if side.meta == 8:  # steps and offsets are integers: a code is worth a byte
        base = max(np.abs(y).max() / 127, step.max() / max(1, 252 // most), 1e-30)
        step = np.ceil(step / base - 1e-3)
        offset = np.round((low + width / 2) / base - step * most / 2)
        code = np.clip(np.round((y / base - offset) / step), 0, most)
        return size * base * (step * code + offset)
    return size * (low + step * np.clip(np.round((y - low) / step), 0, most))


def round_v_tile(x, side):
    """[tokens, channels] of V as a tile read back; what a byte is worth, and the centre, of each
    token: a code is the top bits of a byte."""
    most = 2**side.bits - 1
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    centre, width = (low + high) / 2, (high - low) * side.clip
    if side.meta == 8:
        base = max(np.abs(centre).max() / 127, 1e-30)
        rounded = base * np.round(centre / base)
        width = width + 2 * np.abs(rounded - centre)
        centre = rounded
    step = np.maximum(width / most, 1e-30)
    if side.meta == 8:
        step = mantissa(step, 5, up=True)
    code = np.clip(np.round((x - centre) / step + most / 2), 0, most)
    return centre + step * (code - most / 2), step / 2 ** (8 - side.bits), centre


def hadamard(n):
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(np.float32(n))


class Stored:
    """K or V [tokens, channels] of a head as rows and as tiles, in its basis."""

    def __init__(self, x, side, is_v, layer_has_tiles, group):
        self.rows, self.row_scale, self.row_centre = round_rows(x, side.rows)
        self.tiles, self.tile_scale, self.tile_centre = (
            self.rows.copy(), self.row_scale.copy(), self.row_centre.copy())
        if side.bits is None or not layer_has_tiles:
            return
        for at in range(0, len(x) - group + 1, group):
            tile = slice(at, at + group)
            if is_v:
                self.tiles[tile], self.tile_scale[tile], self.tile_centre[tile] = round_v_tile(
                    x[tile], side)
            else:
                self.tiles[tile] = round_k_tile(x[tile], side)

    def read(self, first, last):
        """What a query reads whose tiles are tokens [first, last): values, scales, centres."""
        merged = []
        for rows, tiles in ((self.rows, self.tiles), (self.row_scale, self.tile_scale),
                            (self.row_centre, self.tile_centre)):
            values = rows.copy()
            values[first:last] = tiles[first:last]
            merged.append(values)
        return merged


def attend(q, k, v, variant, has_tiles, basis):
    """[tokens, heads, channels] of the queries of one kv head -> their outputs."""
    n_tokens, n_heads, channels = q.shape
    if variant.k.hadamard:
        q, k = q @ basis, k @ basis
    if variant.v.hadamard:
        v = v @ basis
    scale = np.abs(q).max(-1, keepdims=True) / (2 ** (variant.q_bits - 1) - 1)
    q = scale * np.round(q / np.maximum(scale, 1e-30))
    keys = Stored(k, variant.k, False, has_tiles, variant.group)
    values = Stored(v, variant.v, True, has_tiles, variant.group)
    out = np.empty((n_tokens, n_heads, channels), np.float32)
    block = min(64, variant.group)
    for begin in range(0, n_tokens, block):
        end = min(begin + block, n_tokens)
        own_tile = begin // variant.group * variant.group
        last = max(variant.sinks, (own_tile - variant.tail) // variant.group * variant.group)
        first = min(variant.sinks, last)
        k_read = keys.read(first, last)[0][:end]
        v_read, v_scale, v_centre = (x[:end] for x in values.read(first, last))
        rows = q[begin:end].reshape(-1, channels)
        scores = rows @ k_read.T / np.sqrt(np.float32(channels))
        positions = np.repeat(np.arange(begin, end), n_heads)
        scores[np.arange(end)[None] > positions[:, None]] = -np.inf
        out[begin:end] = weigh(scores, v_read, v_scale, v_centre, variant.p_bits).reshape(
            end - begin, n_heads, channels)
    return out @ basis if variant.v.hadamard else out


def weigh(scores, v, v_scale, v_centre, p_bits):
    """Softmax of scores times V, the factors rounded segment by segment as kernels do."""
    most = 2**p_bits - 1
    highest = scores.max(-1, keepdims=True)
    total, out = 0, 0
    for at in range(0, scores.shape[1], SEGMENT):
        part = slice(at, at + SEGMENT)
        local = scores[:, part].max(-1, keepdims=True)
        local = np.where(np.isfinite(local), local, 0)
        e = np.exp(scores[:, part] - local)
        unit = v_scale[part].max() / most
        weight = e
        if p_bits < 24:
            factors = np.round(e * (v_scale[part].T / unit)) * unit
            weight = factors / v_scale[part].T
        sums = weight @ (v[part] - v_centre[part]) + e @ v_centre[part]
        merge = np.exp(local - highest)
        total = total + merge * e.sum(-1, keepdims=True)
        out = out + merge * sums
    return out / total


class Model:
    """A llama model, its weights as floats."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda name: reader.fields["llama." + name].contents()
        if reader.fields["general.architecture"].contents() != "llama":
            raise SystemExit("kv_ablations: %s: want a model of architecture llama" % path)
        self.weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
                        for t in reader.tensors}
        self.n_layers, self.n_heads = field("block_count"), field("attention.head_count")
        self.n_kv_heads = field("attention.head_count_kv")
        self.channels = field("embedding_length") // self.n_heads
        self.eps = field("attention.layer_norm_rms_epsilon")
        self.rope_base = field("rope.freq_base")
        self.basis = hadamard(self.channels)

    def norm(self, x, name):
        root = np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps)
        return x / root * self.weights[name]

    def rotate(self, x):
        """Rotary embedding of neighbouring pairs, [tokens, heads, channels]."""
        pairs = np.arange(self.channels // 2)
        angle = np.arange(len(x))[:, None] * self.rope_base ** (-2.0 * pairs / self.channels)
        cos = np.cos(angle)[:, None].astype(np.float32)
        sin = np.sin(angle)[:, None].astype(np.float32)
        even, odd = x[..., ::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def log_probabilities(self, tokens, scored, variant):
        """[scored, vocabulary]; variant None: exact K and V."""
        w = self.weights
        x = w["token_embd.weight"][tokens]
        for layer in range(self.n_layers):
            p = "blk.%d." % layer
            h = self.norm(x, p + "attn_norm.weight")
            heads = lambda name: (h @ w[p + name].T).reshape(len(tokens), -1, self.channels)
            q, k = self.rotate(heads("attn_q.weight")), self.rotate(heads("attn_k.weight"))
            v = heads("attn_v.weight")
            n = self.n_heads // self.n_kv_heads
            exact = Variant(Side(rows="exact"), Side(rows="exact"), q_bits=24, p_bits=24)
            used = exact if variant is None else variant
            out = [attend(q[:, g * n:(g + 1) * n], k[:, g], v[:, g], used,
                          layer not in used.protected, self.basis)
                   for g in range(self.n_kv_heads)]
            x = x + np.concatenate(out, 1).reshape(len(tokens), -1) @ w[p + "attn_output.weight"].T
            h = self.norm(x, p + "ffn_norm.weight")
            gate = h @ w[p + "ffn_gate.weight"].T
            up = h @ w[p + "ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "ffn_down.weight"].T
        head = w.get("output.weight", w["token_embd.weight"])
        logits = self.norm(x[scored], "output_norm.weight") @ head.T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def chunks_of(kvasir, model, path, n_tokens, n_chunks):
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(16 * n_tokens * n_chunks)
    done = subprocess.run([kvasir, "tokenize", "-m", model], input=text, text=True, check=True,
                          stdout=subprocess.PIPE)
    tokens = np.array(json.loads(done.stdout))
    if len(tokens) < n_tokens * n_chunks:
        raise SystemExit("kv_ablations: %s: got %d tokens, want %d" % (path, len(tokens),
                                                                       n_tokens * n_chunks))
    return [tokens[i * n_tokens:(i + 1) * n_tokens] for i in range(n_chunks)]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-f", "--file", action="append", required=True)
    parser.add_argument("-c", "--context", type=int, default=2048)
    parser.add_argument("--chunks", type=int, default=1, help="of each file")
    parser.add_argument("--only", default="", help="variants whose names begin with one of these")
    parser.add_argument("--kvasir", default=os.path.join(ROOT, "build/release/bin/kvasir"))
    args = parser.parse_args()
    wanted = [n for n in args.only.split(",") if n]
    chosen = [(name, v) for name, v in variants()
              if not wanted or any(name.startswith(n) for n in wanted)]
    model = Model(args.model)
    scored = np.arange(args.context // 2, args.context - 1, 2)
    divergences = {name: [] for name, _ in chosen}
    same = {name: [] for name, _ in chosen}
    for path in args.file:
        for tokens in chunks_of(args.kvasir, args.model, path, args.context, args.chunks):
            base = model.log_probabilities(tokens, scored, None)
            for name, variant in chosen:
                started = time.monotonic()
                found = model.log_probabilities(tokens, scored, variant)
                divergences[name].append((np.exp(base) * (base - found)).sum(-1))
                same[name].append(base.argmax(-1) == found.argmax(-1))
                print("%s: %s: %.5f (%.0f s)" % (os.path.basename(path), name,
                                                 divergences[name][-1].mean(),
                                                 time.monotonic() - started), file=sys.stderr)
    print("| format | KLD mean | standard error | median | 99 % | same top |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, _ in chosen:
        kld = np.concatenate(divergences[name])
        print("| %s | %.3g | %.1g | %.3g | %.2g | %.2f %% |" % (
            name, kld.mean(), kld.std() / np.sqrt(len(kld)), np.median(kld),
            np.quantile(kld, 0.99), 100 * np.concatenate(same[name]).mean()))


if __name__ == "__main__":
    main()
