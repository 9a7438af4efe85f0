"""What a checkpoint must give, and whether two sets of tensors are the same, bit for bit.

NaN and signed zero are included, which `torch.equal` confuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

__all__ = ["assert_same", "tensors_of"]


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Load a folder as the reference does, file by file."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def assert_same(got: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Compare names, dtypes, shapes and bytes."""
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(got[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name
