"""Tensors as a checkpoint has them, allocated and never touched: what a model that was just made brings to a load."""

from __future__ import annotations

from typing import Any

__all__ = ["empty_targets"]

# Of the checkpoint that these benchmarks make.
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn", "I64": "int64"}


def empty_targets(paths: list[str], device: str) -> dict[str, Any]:
    """Make one for each tensor, with `torch.empty`; only headers are read."""
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
