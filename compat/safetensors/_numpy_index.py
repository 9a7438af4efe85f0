"""Refuses the indexes of numpy tensors that safetensors refuses, with its messages; numpy would clip or gather.

Callers match these messages (safetensors' own tests among them).
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from safetensors import SafetensorError

__all__ = ["check_numpy_index"]


def check_numpy_index(key: Any, shape: Sequence[int]) -> None:
    """Check an index as safetensors 0.8 does for ``framework="np"``.

    Raises:
        SafetensorError: the index has a non-empty list, or exceeds the shape.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(part, list) and part for part in parts):
        raise SafetensorError("Non empty lists are not implemented")
    if Ellipsis in parts or any(isinstance(part, list) or part is None for part in parts):
        return
    for dimension, (part, size) in enumerate(zip(parts, shape, strict=False)):
        if isinstance(part, Integral) and part < -size:
            raise SafetensorError(f"Invalid index {part} for dimension {dimension} of size {size}")
        last = _last(part)
        if last is not None and last >= size:
            raise SafetensorError(
                f"Error during slicing [{', '.join(map(_text, parts))}] with shape {list(shape)}: index {last} out of"
                f" bounds for tensor dimension #{dimension} of size {size}"
            )


def _last(part: Any) -> int | None:
    """Return the highest index that a part names, or None."""
    if isinstance(part, slice):
        return None if part.stop is None or part.stop <= 0 else int(part.stop) - 1
    return int(part) if isinstance(part, Integral) else None


def _text(part: Any) -> str:
    if not isinstance(part, slice):
        return str(part)
    begin, end = ("" if each is None else str(each) for each in (part.start, part.stop))
    return f"{begin}:{end}"
