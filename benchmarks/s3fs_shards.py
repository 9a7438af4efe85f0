"""Reads a safetensors shard through s3fs in the fastest simple way, for the s3fs row.

Guarantees: every byte of the shard is read once, in ranges, into one buffer that the returned tensors keep alive.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import torch

RANGE_BYTES = 16 << 20
RANGES_AT_ONCE = 4

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
DTYPES |= {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
DTYPES |= {"BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}


def read_shard(files: Any, path: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one shard, by name."""
    data = _fetch(files, path)
    (length,) = struct.unpack_from("<Q", data)
    entries = json.loads(bytes(data[8 : 8 + length]))
    entries.pop("__metadata__", None)
    return {name: _tensor(data, 8 + length, entry) for name, entry in entries.items()}


def _fetch(files: Any, path: str) -> bytearray:
    data = bytearray(files.size(path))
    starts = list(range(0, len(data), RANGE_BYTES))
    for first in range(0, len(starts), RANGES_AT_ONCE):
        group = starts[first : first + RANGES_AT_ONCE]
        ends = [min(start + RANGE_BYTES, len(data)) for start in group]
        parts = files.cat_ranges([path] * len(group), group, ends, batch_size=RANGES_AT_ONCE)
        for start, end, part in zip(group, ends, parts, strict=True):
            data[start:end] = part
    return data


def _tensor(data: bytearray, data_start: int, entry: dict[str, Any]) -> torch.Tensor:
    begin, end = entry["data_offsets"]
    dtype = DTYPES[entry["dtype"]]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=data_start + begin)
    return flat.view(dtype).reshape(entry["shape"])
