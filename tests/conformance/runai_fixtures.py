"""The two checkpoints that Run:ai's tests read and its wheel lacks, made with the names that they ask for."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

# A name ends with its dtype; the tests ask for tensor1 in float16, bfloat16 and bool.
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


def write_fixtures(folder: Path) -> None:
    """Write ``test.safetensors`` and ``test_empty.safetensors``."""
    folder.mkdir(parents=True)
    values = torch.arange(12).reshape(3, 4)
    tensors = {f"tensor1.{dtype}": values.to(getattr(torch, dtype)) for dtype in DTYPES}
    save_file({**tensors, "tensor2.float32": torch.ones(5, 1, 7)}, folder / "test.safetensors")
    save_file({}, folder / "test_empty.safetensors")
