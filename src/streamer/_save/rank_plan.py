"""The plan of a save by several ranks: the rank that sends each part of a file, and the ranks that give it bytes.

Pure: all ranks make the same plan from the same descriptions. A file is cut into the parts of a save by one process. A
part is sent by a rank that holds at least half as many of its bytes as any other; of these, by the one that has the
fewest bytes to send so far. So rows are not exchanged, and what all ranks hold is divided among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple

from streamer._save.parts import Segments
from streamer.core.format.header_writer import TensorLayout
from streamer.core.group.assembly import Part, bytes_between

PARTS_IN_FLIGHT = 2  # a rank gives others at most the bytes of so many parts in one step


class Held(NamedTuple):
    """A part of a tensor, and the ranks that have it."""

    part: Part
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RankFile:
    """One file."""

    header_bytes: int
    layouts: Sequence[TensorLayout]  # its tensors, in order
    part_bytes: int
    is_in_order: bool = False  # whether its parts are sent in order, and so by one rank
    sender: int | None = None  # the only rank that can send, or None
    tail_bytes: int = 0  # at its end, which are known when all other parts of all files were made

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self.header_bytes + sum(each.size_bytes for each in self.layouts) + self.tail_bytes


class Piece(NamedTuple):
    """Bytes of a tensor that one rank gives."""

    name: str
    begin: int  # of the tensor's bytes in question
    end: int
    at: int  # position of `begin` in the part of the file
    part: Part  # what the rank has of the tensor
    rank: int
    size_bytes: int  # how many bytes the rank gives


class SentPart(NamedTuple):
    """A part of a file."""

    file: int
    offset: int
    size_bytes: int
    sender: int
    pieces: tuple[Piece, ...]  # its bytes behind the header
    is_tail: bool = False  # whether it is made when all others were


def exchanged(step: Sequence[SentPart]) -> Iterator[tuple[SentPart, Piece]]:
    """Yield the pieces that one rank gives to another."""
    for part in step:
        for piece in part.pieces:
            if piece.rank != part.sender:
                yield part, piece


def steps_of(files: Sequence[RankFile], held: Mapping[str, Sequence[Held]], ranks: int) -> Iterator[list[SentPart]]:
    """Divide the bytes of files into steps, whose bytes are exchanged together: at most one part for each sender."""
    queues: list[list[list[SentPart]]] = [[[] for _ in range(ranks)] for _ in range(2)]
    load = [0] * ranks
    for number, file in enumerate(files):
        sender = file.sender
        if sender is None and file.is_in_order:
            sender = load.index(min(load))
        for part in _parts(number, file, held, load, sender):
            queues[part.is_tail][part.sender].append(part)
    for parts in chain.from_iterable(zip_longest(*each) for each in queues):
        step: list[SentPart] = []
        given: Counter[int] = Counter()
        for part in filter(None, parts):
            more = Counter[int]()
            for piece in part.pieces:
                if piece.rank != part.sender:
                    more[piece.rank] += piece.size_bytes
            most_bytes = PARTS_IN_FLIGHT * max(part.size_bytes, *(each.size_bytes for each in step), 0)
            if step and any((given + more)[rank] > most_bytes for rank in more):
                yield step
                step, given = [], Counter()
            step.append(part)
            given += more
        yield step


def _parts(
    number: int, file: RankFile, held: Mapping[str, Sequence[Held]], load: list[int], sender: int | None
) -> Iterator[SentPart]:
    """Cut a file into parts; choose the rank that sends each part, and add the bytes of the part to its load."""
    segments = Segments(file.header_bytes, file.layouts)
    for offset in range(0, file.size_bytes, file.part_bytes):
        end = min(offset + file.part_bytes, file.size_bytes)
        is_tail = end > file.size_bytes - file.tail_bytes
        wanted = [
            (segment, each, size_bytes)
            for segment in segments.between(offset, end)
            for each in held[segment[0]]
            if (size_bytes := _bytes_in(each.part, *segment[1:3]))
        ]
        chosen = sender
        if chosen is None:
            chosen = number % len(load) if is_tail else _chosen(wanted, load)
        load[chosen] += end - offset
        pieces = tuple(
            Piece(
                *segment,
                each.part,
                chosen if chosen in each.ranks else each.ranks[chosen % len(each.ranks)],
                size_bytes,
            )
            for segment, each, size_bytes in wanted
        )
        yield SentPart(number, offset, end - offset, chosen, pieces, is_tail)


def _bytes_in(part: Part, begin: int, end: int) -> int:
    return bytes_between(part, begin, end) if part[0].first < end and begin < part[-1].end else 0


def _chosen(wanted: Sequence[tuple[object, Held, int]], load: Sequence[int]) -> int:
    has: Counter[int] = Counter()
    for _, each, size_bytes in wanted:
        for rank in each.ranks:
            has[rank] += size_bytes
    most = max(has.values(), default=0)
    return min((rank for rank in range(len(load)) if 2 * has[rank] >= most), key=lambda rank: (load[rank], rank))
