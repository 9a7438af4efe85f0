"""Allocates tensors with the shapes of a checkpoint, without touching them, as in a newly created model."""

from __future__ import annotations

from typing import Any

__all__ = ["empty_targets"]

# The dtypes of the checkpoint that these benchmarks make.
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn", "I64": "int64"}


def empty_targets(paths: list[str], device: str) -> dict[str, Any]:
    """Create a target for each tensor with `torch.empty`; only headers are read."""
    import torch
    from safetensors import safe_open

    targets = {}
    for path in paths:
        with safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  not a dict
                part = opened.get_slice(name)
                dtype = getattr(torch, _DTYPES[part.get_dtype()])
                targets[name] = torch.empty(part.get_shape(), dtype=dtype, device=device)
    return targets
