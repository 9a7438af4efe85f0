"""Errors for tensors of a header that a framework cannot hold."""

from __future__ import annotations

from math import prod

from streamer.core.errors import UnsupportedDtypeError
from streamer.core.format.header import TensorEntry

__all__ = ["check_addressable", "unsupported"]

LARGEST_ITEM_BYTES = 16
LARGEST_STRIDE = 2**63 - 1


def check_addressable(entry: TensorEntry) -> None:
    """Check that strides fit 64 signed bits: in an empty tensor, one dimension is zero and the others may be huge."""
    if 0 not in entry.shape:
        return  # the file bounds the size of a tensor that is not empty
    strides = prod(max(1, size) for size in entry.shape)
    if strides * LARGEST_ITEM_BYTES > LARGEST_STRIDE:
        raise unsupported(entry, "the other dimensions of this empty tensor are too large for torch and numpy")


def unsupported(entry: TensorEntry, reason: str, hint: str | None = None) -> UnsupportedDtypeError:
    """Return the error for a tensor that the framework cannot hold."""
    return UnsupportedDtypeError(f"tensor {entry.name[:80]!r} is {entry.dtype}: {reason}", hint=hint)
