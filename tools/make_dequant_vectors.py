#!/usr/bin/env python3
"""Writes tests/data/dequant_vectors.bin: random GGUF weight blocks of 15 types and their values.

The oracle is the `gguf` package (pip install gguf numpy). Run: tools/make_dequant_vectors.py OUT
Layout, little-endian: "DQV1", u32 entries; each entry: u32 type, u32 n_values, u32 n_bytes, the
bytes,
n_values f32.
"""

import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

TYPES = [
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
]
# Byte offsets of the f16 fields within a block.
F16_FIELDS = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}
N_VALUES = 512


def main() -> None:
    rng = np.random.default_rng(20261129)
    out = bytearray(b"DQV1" + struct.pack("<I", len(TYPES)))
    for name in TYPES:
        kind = GGMLQuantizationType[name]
        block_values, block_bytes = GGML_QUANT_SIZES[kind]
        n_blocks = N_VALUES // block_values
        if name == "F32":
            raw = rng.standard_normal(N_VALUES).astype(np.float32).view(np.uint8)
        elif name in ("F16", "BF16"):
            # Every exponent, subnormals among them; no infinity or NaN.
            limit = 0x7C00 if name == "F16" else 0x7F80
            bits = rng.integers(0, limit, N_VALUES).astype(np.uint16)
            raw = (bits | (rng.integers(0, 2, N_VALUES) << 15).astype(np.uint16)).view(np.uint8)
        else:
            blocks = rng.integers(0, 256, (n_blocks, block_bytes)).astype(np.uint8)
            for i in range(n_blocks):
                for field in F16_FIELDS[name]:
                    scale = np.float16(rng.standard_normal() * 10.0 ** rng.integers(-7, 4))
                    blocks[i, field : field + 2] = np.frombuffer(scale.tobytes(), np.uint8)
            raw = blocks.reshape(-1)
        values = dequantize(
            (
                raw.view(np.float32)
                if name == "F32"
                else raw.view(np.float16) if name == "F16" else raw
            ),
            kind,
        )
        values = np.asarray(values, np.float32).reshape(-1)
        assert values.size == N_VALUES and np.isfinite(values).all(), name
        out += struct.pack("<III", int(kind), N_VALUES, raw.size) + raw.tobytes() + values.tobytes()
    with open(sys.argv[1], "wb") as file:
        file.write(out)


if __name__ == "__main__":
    main()
