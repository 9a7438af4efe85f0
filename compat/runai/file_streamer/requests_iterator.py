"""The ranges of one file, under Run:ai's name."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

__all__ = ["FileChunks"]


@dataclass
class FileChunks:
    """Ranges of one file to read.

    Example:
        >>> FileChunks.contiguous(0, "/file", 100, [10, 20]).offsets
        [100, 110]
    """

    id: int  # the caller's own number for the file
    path: str  # path or URL
    offsets: list[int]  # first byte of each range
    sizes: list[int]  # bytes of each range

    def __post_init__(self) -> None:
        """Raises ValueError if the two lists differ in length."""
        if len(self.offsets) != len(self.sizes):
            raise ValueError(f"there are {len(self.offsets)} offsets and {len(self.sizes)} sizes")

    @classmethod
    def contiguous(cls, id: int, path: str, offset: int, sizes: list[int]) -> FileChunks:  # noqa: A002  Run:ai's name
        """Return consecutive ranges that begin at an offset."""
        return cls(id, path, list(accumulate(sizes, initial=offset))[:-1] if sizes else [], list(sizes))

    def total_size(self) -> int:
        """Return the total bytes of all ranges."""
        return sum(self.sizes)

    def max_chunk_size(self) -> int:
        """Return the bytes of the largest range; 0 if there are no ranges."""
        return max(self.sizes, default=0)
