"""Cuts the bytes of a file into equal parts, and computes the digests of its tensors on the way.

Guarantees: a part that lies in one tensor is a view of that tensor's memory; only parts in which several tensors meet
are copied. Every part but the last has the same size, as some storages demand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from streamer import _native
from streamer._save.saved_tensors import SavedTensors
from streamer.core.errors import ChangedError
from streamer.core.format.header_writer import TensorLayout
from streamer.core.format.manifest import ALGORITHM, TensorDigest
from streamer.core.quoting import quoted
from streamer.core.store.sources import ObjectInfo
from streamer.core.verification.file_bytes import FileDigests

MIB = 1 << 20
PART_BYTES = 16 * MIB  # with parts of this size, S3 takes 1 Gbit/s from one connection; eight are in flight
WORTH_A_PART_BYTES = MIB
MOST_PARTS = 9_000  # most parts of one object; S3 takes 10 000, Azure 50 000


@dataclass(frozen=True)
class Again:
    """Bytes that can be made again: each iteration yields all of them."""

    made: Callable[[], Iterator[memoryview]]

    def __iter__(self) -> Iterator[memoryview]:
        return self.made()


@dataclass(frozen=True)
class SentFile:
    """A file to be sent."""

    path: str  # the store's own path of the file
    size_bytes: int  # its size
    pieces: Iterable[memoryview]  # its bytes, in order
    replaced: ObjectInfo | None  # the existing file that is replaced, or None
    # Maximum memory that a piece takes beside the parts: a tensor that is read, or copied from a device.
    held_bytes: int = 0


def part_bytes_for(size_bytes: int) -> int:
    """Choose the size of the parts of an object: a multiple of a MiB.

    Example:
        >>> [part_bytes_for(size) >> 20 for size in (1, 5 << 30, 5 << 40)]
        [16, 16, 583]
    """
    least = -(-size_bytes // MOST_PARTS)
    return max(PART_BYTES, -(-least // MIB) * MIB)


def cut(pieces: Iterable[memoryview], part_bytes: int, *, is_equal: bool = True) -> Iterator[memoryview]:
    """Cut pieces of any size into parts.

    Example:
        >>> [bytes(part) for part in cut([memoryview(b"abcdefg"), memoryview(b"hi")], 4)]
        [b'abcd', b'efgh', b'i']
    """
    held: list[memoryview] = []
    held_bytes = 0
    for piece in pieces:
        if held and not is_equal and piece.nbytes >= WORTH_A_PART_BYTES:
            yield _joined(held)
            held, held_bytes = [], 0
        begin = 0
        while piece.nbytes - begin >= part_bytes - held_bytes:
            end = begin + part_bytes - held_bytes
            yield _joined([*held, piece[begin:end]])
            held, held_bytes, begin = [], 0, end
        if begin < piece.nbytes:
            held.append(piece[begin:])
            held_bytes += piece.nbytes - begin
    if held:
        yield _joined(held)


def _joined(pieces: list[memoryview]) -> memoryview:
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


class Segments:
    """The bytes of tensors that lie one after the other in a file."""

    def __init__(self, begin: int, layouts: Sequence[TensorLayout]) -> None:
        self._layouts = [each for each in layouts if each.size_bytes]
        self._begins = [*accumulate((each.size_bytes for each in self._layouts), initial=begin)]

    def between(self, begin: int, end: int) -> Iterator[tuple[str, int, int, int]]:
        """Yield what lies between two offsets: the tensor, the bounds in it, and the position behind `begin`."""
        for number in range(max(0, bisect_right(self._begins, begin) - 1), len(self._layouts)):
            first, layout = self._begins[number], self._layouts[number]
            if first >= end:
                return
            yield layout.name, max(begin - first, 0), min(end - first, layout.size_bytes), max(first - begin, 0)


class ShardBytes:
    """The bytes of one shard.

    Attributes:
        header: Its header, and with `prefix` all bytes that are known before the tensors.
        inner: The tensors in it, in order.
        tail_bytes: Bytes at its end that are known when all others are.
    """

    tail_bytes = 0

    def __init__(self, header: bytes, tensors: SavedTensors, layouts: list[TensorLayout], *, has_digests: bool) -> None:
        self.header, self._tensors, self.has_digests = header, tensors, has_digests
        self.layouts = layouts  # as the argument
        self.prefix, self.inner = header, layouts
        self.segments = Segments(len(header), layouts)
        self.size_bytes = len(header) + sum(each.size_bytes for each in layouts)  # size of the file
        self.digests: dict[str, TensorDigest] = {}  # digests of the tensors that were read so far

    @property
    def held_bytes(self) -> int:
        """The most memory that one tensor needs while it is sent, if it is read or copied for this."""
        return max((self._tensors.held_bytes(each) for each in self.layouts), default=0)

    @property
    def content(self) -> Iterable[memoryview]:
        """The pieces, which a storage may read twice."""
        return Again(self.pieces)

    def digested(self, digests: FileDigests) -> Iterator[memoryview]:
        """Yield the pieces, and update the digests of the whole file with each piece; raises as `pieces`."""
        for piece in self.pieces():
            digests.update(piece)
            yield piece
        digests.finish()

    def pieces(self) -> Iterator[memoryview]:
        """Yield the header, and then tensor after tensor."""
        yield memoryview(self.header)
        for layout, pieces in self.contents():
            digest = read_bytes = 0
            for piece in pieces:
                read_bytes += piece.nbytes
                if self.has_digests:
                    digest = _native.crc(ALGORITHM, piece, digest)
                yield piece
            if read_bytes != layout.size_bytes:
                raise tensor_changed(layout, read_bytes)
            self.digests[layout.name] = TensorDigest(layout.dtype, layout.shape, layout.size_bytes, digest)

    def sealed(self, offset_bytes: int, plain: memoryview) -> memoryview:
        """Return the bytes of a part of the file as they are sent."""
        del offset_bytes
        return plain

    def contents(self) -> Iterator[tuple[TensorLayout, Iterable[memoryview]]]:
        """Yield each tensor of the file with its pieces."""
        for layout in self.layouts:
            yield layout, self._tensors.pieces(layout)


def tensor_changed(layout: TensorLayout, read_bytes: int) -> ChangedError:
    """Return the error for a tensor with another size than before."""
    what = f"tensor {quoted(layout.name)} has {read_bytes} bytes, and had {layout.size_bytes} before"
    return ChangedError(what, hint="Do not change tensors while they are saved")


def combine_digests(shards: Sequence[ShardBytes], checksums: Iterable[tuple[int, str, int, int, int]]) -> None:
    """Compute the digests of whole tensors from those of parts: number of the shard, name, begin, end, CRC-32C."""
    found: dict[tuple[int, str], tuple[int, int]] = {}  # by shard and name: end, and the value up to it
    for number, name, begin, end, value in sorted(checksums):
        before_end, before = found.get((number, name), (0, 0))
        assert before_end == begin, "each byte is sent once"
        found[number, name] = end, _native.crc_combine(ALGORITHM, before, value, end - begin)
    for number, shard in enumerate(shards):
        for each in shard.layouts if shard.has_digests else ():
            value = found.get((number, each.name), (0, 0))[1]
            shard.digests[each.name] = TensorDigest(each.dtype, each.shape, each.size_bytes, value)


class SentParts:
    """All parts that this rank sends, as those of one `Upload`; their numbers take the place of offsets."""

    def __init__(self, uploads: Mapping[int, Any], parallel_parts: int) -> None:
        self._uploads, self.parallel_parts = uploads, parallel_parts
        self._places: list[tuple[int, int]] = []  # file and offset, by number

    def number_of(self, file: int, offset_bytes: int) -> int:
        """Return the number with which `send` is called for a part."""
        self._places.append((file, offset_bytes))
        return len(self._places) - 1

    def send(self, number: int, data: memoryview) -> None:
        """See `Upload.send`."""
        file, offset_bytes = self._places[number]
        self._uploads[file].send(offset_bytes, data)


class PartSums:
    """Takes the place of an upload, and computes checksums of what it would send."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, int]] = []  # offset, size, CRC-32C

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """See `Upload.send`."""
        self.parts.append((offset_bytes, part.nbytes, _native.crc(ALGORITHM, part)))
