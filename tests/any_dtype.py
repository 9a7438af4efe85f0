"""Files with tensors of every dtype of the format, and of many shapes; no library has all dtypes."""

from __future__ import annotations

import json

import numpy as np

from streamer.core.format.dtypes import DTYPE_BITS, byte_length

SHAPES: dict[str, tuple[int, ...]] = {
    "matrix": (10, 16),
    "cube": (3, 8, 12),
    "pair": (2, 8, 8),
    "one": (1, 10, 8),
    "vector": (24,),
    "none": (0, 8),
}
DTYPES = [each for each in DTYPE_BITS if not each.startswith("F6")]  # which no framework has


def file_of(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Make a file of random bytes by hand, as no library has all dtypes."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = byte_length(shape, dtype)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    data = np.random.default_rng(7).integers(0, 2 if "BOOL" in str(tensors) else 256, end, dtype=np.uint8)
    return len(header).to_bytes(8, "little") + header + data.tobytes()
