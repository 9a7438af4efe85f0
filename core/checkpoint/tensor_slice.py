"""A tensor that is not read yet, indexed like one: only the leading rows that the index needs are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamer.core.format.dtypes import bits_of
from streamer.core.format.header import TensorEntry

__all__ = ["TensorSlice", "narrow"]


def narrow(entry: TensorEntry, key: Any) -> tuple[TensorEntry, Any]:
    """Find the byte range that an index needs.

    Leading integers and then one slice with a positive step choose contiguous rows; whatever follows, and
    every other kind of index, is left to the framework.

    Returns:
        The entry of the rows to read, and the index (a tuple, or `key` itself) to apply to the tensor they make.

    Raises:
        IndexError: a leading integer is out of range.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    if not all(_is_basic(part) for part in parts):
        return entry, key  # one list or mask changes the meaning of the integers beside it
    shape, begin, end = entry.shape, entry.begin, entry.end
    while parts and len(shape) > _packed_dimensions(entry):
        row_bytes = (end - begin) // shape[0] if shape[0] else 0
        part = parts[0]
        if isinstance(part, int):
            row = _row(part, shape[0])
            begin, end, shape = begin + row * row_bytes, begin + (row + 1) * row_bytes, shape[1:]
            parts.pop(0)
        elif isinstance(part, slice) and (part.step is None or part.step > 0):
            first, stop, step = part.indices(shape[0])
            last = max(first, stop)
            begin, end = begin + first * row_bytes, begin + last * row_bytes
            shape = (last - first, *shape[1:])
            parts[0] = slice(None, None, step)
            break
        else:
            break
    return entry._replace(shape=shape, begin=begin, end=end), tuple(parts)


def _packed_dimensions(entry: TensorEntry) -> int:
    """How many trailing dimensions share bytes between elements, and so cannot be cut."""
    return 1 if bits_of(entry.dtype) % 8 else 0


def _is_basic(part: Any) -> bool:
    return part is None or part is Ellipsis or (isinstance(part, (int, slice)) and not isinstance(part, bool))


def _row(index: int, rows: int) -> int:
    if not -rows <= index < rows:
        raise IndexError(f"index {index} is out of bounds for a dimension of {rows}")
    return index % rows


class TensorSlice:
    """One tensor of a checkpoint; ``[...]`` reads it. Thread-safe."""

    def __init__(self, entry: TensorEntry, read: Callable[[TensorEntry], Any]) -> None:
        self._entry = entry
        self._read = read

    def get_shape(self) -> list[int]:
        """Give the shape in the checkpoint."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Give the name of the dtype in the checkpoint, as safetensors spells it (``"BF16"``, ``"F8_E4M3"``)."""
        return self._entry.dtype

    def __getitem__(self, key: Any) -> Any:
        """Read what the index needs and apply the rest of it, with the framework's own rules."""
        entry, rest = narrow(self._entry, key)
        tensor = self._read(entry)
        return tensor if rest in ((), (Ellipsis,)) else tensor[rest]
