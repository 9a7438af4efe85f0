"""Are two sets of tensors the same, bit for bit? NaN and signed zero included, which `torch.equal` confuses."""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["assert_same"]


def assert_same(got: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Compare names, dtypes, shapes and bytes."""
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(got[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name
