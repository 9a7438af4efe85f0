"""The checkpoint that all contestants load: it is made once, and its expected digests are computed here.

Guarantees: `expected_tensors` and `expected_files` are computed from the bytes on disk with numpy alone, without the
code under test.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from measure import MASK, digest, named_digest


def shard_paths(folder: Path) -> list[Path]:
    """Return all shards, sorted by name."""
    return sorted(folder.glob("*.safetensors"))


def make_or_reuse(folder: Path, total_bytes: int, shards: int) -> list[Path]:
    """Return the shards in `folder`; write them first if there are none."""
    if not shard_paths(folder):
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
        from make_checkpoint import make_checkpoint

        folder.mkdir(parents=True, exist_ok=True)
        make_checkpoint(folder, total_bytes=total_bytes, shards=shards, seed=0)
    return shard_paths(folder)


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return 8 + length, entries


def expected_tensors(paths: list[Path]) -> dict[str, int]:
    """Return the bytes, digest and count that a contestant must report if it returns tensors."""
    total_bytes, total_digest, count = 0, 0, 0
    for path in paths:
        start, entries = _header(path)
        data = np.memmap(path, dtype=np.uint8, mode="r")
        for name, entry in entries.items():
            begin, end = (start + offset for offset in entry["data_offsets"])
            total_digest = (total_digest + named_digest(name, data[begin:end])) & MASK
            total_bytes += end - begin
            count += 1
    return {"bytes": total_bytes, "digest": total_digest, "tensors": count}


def expected_files(paths: list[Path]) -> dict[str, int]:
    """Return the bytes and digest that a raw reader of whole files must report."""
    digests = (digest(np.memmap(path, dtype=np.uint8, mode="r")) for path in paths)
    total = sum((index + 1) * each for index, each in enumerate(digests)) & MASK
    return {"bytes": sum(path.stat().st_size for path in paths), "digest": total}
