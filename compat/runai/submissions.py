"""The requests of Run:ai's C interface: ranges of files, each with the address that its bytes are written to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Range", "ranges_at", "texts_at"]


class Range(NamedTuple):
    """One requested range.

    Attributes:
        submission: The number of its request.
        file: The position of its file in the request.
        position: The position of the range among those of its file.
        path: Path or URL of the file.
        begin: First byte.
        end: Byte after the last.
        target: Address of the caller's memory.
    """

    submission: int
    file: int
    position: int
    path: str
    begin: int
    end: int
    target: int


def texts_at(address: int, count: int) -> list[str]:
    """Copy an array of C strings; names of files may be no UTF-8."""
    texts = (ctypes.c_char_p * count).from_address(address) if count else ()
    return [(each or b"").decode("utf-8", "surrogateescape") for each in texts]


def numbers_at(address: int, count: int, kind: type[ctypes.c_uint32] | type[ctypes.c_uint64]) -> list[int]:
    """Copy an array of integers."""
    return list((kind * count).from_address(address)) if count else []


def ranges_at(  # noqa: PLR0917  the tables of C
    submission: int, file_count: int, paths: int, range_counts: int, offsets: int, sizes: int, targets: int
) -> list[Range]:
    """Copy the tables of a request from their addresses: the caller may reuse the tables when the call returns."""
    counts = numbers_at(range_counts, file_count, ctypes.c_uint32)
    tables = [numbers_at(each, sum(counts), ctypes.c_uint64) for each in (offsets, sizes, targets)]
    rows = zip(*tables, strict=True)
    return list(_ranges(submission, list(zip(texts_at(paths, file_count), counts, strict=True)), rows))


def _ranges(submission: int, files: list[tuple[str, int]], rows: Iterator[tuple[int, int, int]]) -> Iterator[Range]:
    for file, (path, count) in enumerate(files):
        for index in range(count):
            offset, size, target = next(rows)
            yield Range(submission, file, index, path, offset, offset + size, target)
