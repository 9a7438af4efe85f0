"""Reads the entries of a large header many at a time, if they have the form of the reference implementation.

Nearly every file has entries without spaces, in the order of their bytes. Split at its quotes, such a text repeats
every ten pieces, so whole columns of it are compared at once. The offsets follow from the sizes, and are compared with
the expected offsets. Entries that are accepted here are valid, as `header_entries` guarantees; that module reads all
other entries, and raises the errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate, chain, pairwise
from typing import Any

from streamer.core.errors import FormatError

__all__ = ["CompactReader"]

# A few hundred entries: large enough to make the work for each chunk negligible, small enough for a processor's cache.
CHUNK_CHARACTERS = 1 << 16
# Twenty entries: fewer entries are read faster one by one.
LEAST_CHARACTERS = 1 << 11
# A few entries in another form cost nothing. With many of them, each chunk would be read twice.
MAX_REFUSALS = 8
# A model has few dtypes and shapes. If nearly every tensor has its own shape, this reader is no faster.
MAX_KINDS = 4096
LARGEST_OFFSET = 10**19 - 1  # numbers with more digits may exceed 64 bits

_PIECES = 10  # pieces of an entry: the name, then the text between each two quotes until the next name
_FIXED = ((2, ":{"), (3, "dtype"), (4, ":"), (6, ","), (7, "shape"), (9, "data_offsets"))
_DTYPE, _SHAPE, _OFFSETS = 5, 8, 10
_SHAPE_TEXT = re.compile(r":\[((?:(?:0|[1-9][0-9]{0,18})(?:,(?:0|[1-9][0-9]{0,18}))*)?)\],")

Kind = tuple[str, tuple[int, ...], int]


class CompactReader:
    """Reads chunks of entries.

    Args:
        text: The whole header.
        kinds: Maps the texts of dtype and shape to dtype, shape and size in bytes; raises `FormatError`.
    """

    def __init__(self, text: str, kinds: Mapping[tuple[str, str], Kind]) -> None:
        self._text = text
        self._kinds = _WrittenKinds(kinds)
        self._refusals = 0 if len(text) >= LEAST_CHARACTERS else MAX_REFUSALS

    def read(self, position: int, begin: int, data_begin: int, rows: list[Any]) -> int:
        """Append as many entries from `position` on as have the expected form; return the position after them.

        Args:
            position: Position of the first entry's quote.
            begin: Offset of the first tensor's first byte in the object.
            data_begin: Offset of the data section.
            rows: Name, dtype, shape, begin and end of each entry are appended to it.
        """
        while self._refusals < MAX_REFUSALS:
            # Without a backslash no quote is escaped, so this is the end of an entry, or part of a strange name.
            last = self._text.rfind('},"', position, position + CHUNK_CHARACTERS)
            if last < 0:
                return position  # the rest is too short, or the entry is too long
            chunk_rows = self._rows_of(self._text[position : last + 2], begin - data_begin, data_begin)
            if chunk_rows is None:
                self._refusals += 1
                return position
            rows += chunk_rows
            position, begin = last + 2, rows[-1][4]
        return position

    def _rows_of(self, chunk: str, begin: int, data_begin: int) -> list[Any] | None:
        pieces = chunk.split('"')
        count, rest = divmod(len(pieces) - 1, _PIECES)
        if rest or pieces[0] or any(pieces[at::_PIECES].count(text) != count for at, text in _FIXED):
            return None
        names = pieces[1::_PIECES]
        if not _are_plain(names):
            return None
        try:
            written_kinds = zip(pieces[_DTYPE::_PIECES], pieces[_SHAPE::_PIECES], strict=True)
            kinds = list(map(self._kinds.__getitem__, written_kinds))
        except FormatError:
            return None
        dtypes, shapes, sizes = zip(*kinds, strict=True)
        bounds = list(accumulate(sizes, initial=begin))
        # Every offset, except the first and the last, is written twice: as an end, and as the next begin.
        written = (":[%d,%d]}," * count) % tuple(chain.from_iterable(pairwise(bounds)))
        if bounds[-1] > LARGEST_OFFSET or "".join(pieces[_OFFSETS::_PIECES]) != written:
            return None
        bounds = list(accumulate(sizes, initial=begin + data_begin))
        return list(zip(names, dtypes, shapes, bounds, bounds[1:], strict=False))


def _are_plain(names: list[str]) -> bool:
    """Say whether no name holds a character that JSON escapes or forbids; a few harmless ones are refused, too."""
    together = "".join(names)
    return "\\" not in together and together.isprintable() and "__metadata__" not in names


class _WrittenKinds(dict[tuple[str, str], Kind]):
    """The kinds, by the pieces of the text that name dtype and shape."""

    def __init__(self, kinds: Mapping[tuple[str, str], Kind]) -> None:
        self._kinds = kinds

    def __missing__(self, written: tuple[str, str]) -> Kind:
        if len(self) == MAX_KINDS:
            raise FormatError("too many kinds")
        dtype, shape_piece = written
        shape = _SHAPE_TEXT.fullmatch(shape_piece)
        if shape is None:
            raise FormatError("not a shape")
        kind = self[written] = self._kinds[dtype, shape[1]]
        return kind
