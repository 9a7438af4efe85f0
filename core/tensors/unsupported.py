"""Tensors of a header that a framework cannot hold."""

from __future__ import annotations

from math import prod

from streamer.core.errors import UnsupportedDtypeError
from streamer.core.format.header import TensorEntry

__all__ = ["check_addressable", "unsupported"]

LARGEST_ITEM_BYTES = 16
LARGEST_STRIDE = 2**63 - 1


def check_addressable(entry: TensorEntry) -> None:
    """Check that strides fit 64 signed bits: an empty tensor may have any dimension beside its zero.

    Raises:
        UnsupportedDtypeError: they do not.
    """
    if 0 not in entry.shape:
        return  # the file's size bounds it
    strides = prod(max(1, size) for size in entry.shape)
    if strides * LARGEST_ITEM_BYTES > LARGEST_STRIDE:
        raise unsupported(entry, "the other dimensions of this empty tensor are too large for torch and numpy")


def unsupported(entry: TensorEntry, reason: str, hint: str | None = None) -> UnsupportedDtypeError:
    """Make the error for a tensor that the framework cannot hold."""
    return UnsupportedDtypeError(f"tensor {entry.name[:80]!r} is {entry.dtype}: {reason}", hint=hint)
