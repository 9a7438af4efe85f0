"""Readers of bytes that files hold only in another form (strided, in big-endian order, deflated), or with a CRC-32.

Guarantees: every reader gives the same bytes at any offset, from any thread. `Inflated` and `Swapped` hold a few
megabytes. `Strided` holds two tensors of a checkpoint as a whole, because a transposed row lies in all of its bytes.
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from streamer import _native
from streamer.core.errors import FormatError
from streamer.core.other_formats.interface import Reader

MOST_LAID = 2  # tensors of a checkpoint that `Strided` holds: one that is read, and the next
FETCHED_BYTES = 2 << 20  # compressed bytes of one read, because a request to a storage takes milliseconds
FED_BYTES = 16 << 10  # compressed bytes that the decompressor gets at a time; each point keeps the unused ones
POINTS = 256  # places from which a deflated member can be inflated; each takes some 50 KB of memory
LEAST_DISTANCE = 1 << 20  # between two points, in bytes of the result
_AGAIN = "Upload or download it again"


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Say whether the elements lie one after the other, row by row; strides of dimensions of size 1 do not matter."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 0:
            return True
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def span_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Count the elements from the first of a strided tensor to its last, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


class Laid:
    """The last tensors of one checkpoint that were laid out row by row."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, reader: Strided) -> Any:
        """Return the array of a reader, or None."""
        with self._lock:
            return self._arrays.get(id(reader))

    def put(self, reader: Strided, array: Any) -> None:
        """Keep an array, and drop the oldest if there are too many."""
        with self._lock:
            self._arrays[id(reader)] = array
            while len(self._arrays) > MOST_LAID:
                self._arrays.popitem(last=False)

    def drop(self, reader: Strided) -> None:
        """Drop the array of a reader."""
        with self._lock:
            self._arrays.pop(id(reader), None)


class Strided:
    """A tensor whose rows do not lie one after the other: transposed, expanded, or every other column."""

    def __init__(
        self,
        reader: Reader,
        begin: int,
        shape: Sequence[int],
        strides: Sequence[int],
        *,
        item_bytes: int,
        laid: Laid,
    ) -> None:
        self._reader, self._begin, self._laid = reader, begin, laid
        self._shape, self._strides, self._item_bytes = tuple(shape), tuple(strides), item_bytes
        self.size_bytes = prod(shape) * item_bytes
        self._missing_bytes = self.size_bytes
        self._lock = threading.Lock()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer; see `Reader.read_into`."""
        with self._lock:  # only one thread lays it out
            array = self._laid.get(self)
            if array is None:
                array = self._laid_out()
                self._laid.put(self, array)
            self._missing_bytes -= buffer.nbytes
            if self._missing_bytes <= 0:  # perhaps too early, after a second read of a part
                self._missing_bytes = self.size_bytes
                self._laid.drop(self)
        buffer.cast("B")[:] = memoryview(array)[offset : offset + buffer.nbytes]

    def _laid_out(self) -> Any:
        span: Any = np.empty(span_elements(self._shape, self._strides) * self._item_bytes, np.uint8)
        self._reader.read_into(memoryview(span), self._begin)
        strides = [stride * self._item_bytes for stride in self._strides]
        view = np.ndarray(self._shape, np.dtype((np.void, self._item_bytes)), span.data, strides=strides)
        return np.ascontiguousarray(view).reshape(-1).view(np.uint8)


class Swapped:
    """Reads big-endian elements in little-endian order."""

    def __init__(self, reader: Reader, begin: int, size_bytes: int, item_bytes: int) -> None:
        self._reader, self._begin, self._item_bytes = reader, begin, item_bytes
        self.size_bytes = size_bytes

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer; see `Reader.read_into`."""
        first = offset - offset % self._item_bytes
        end = -(-(offset + buffer.nbytes) // self._item_bytes) * self._item_bytes
        whole: Any = np.empty(end - first, np.uint8)
        self._reader.read_into(memoryview(whole), self._begin + first)
        swapped = whole.reshape(-1, self._item_bytes)[:, ::-1].reshape(-1)
        buffer.cast("B")[:] = memoryview(swapped)[offset - first : offset - first + buffer.nbytes]


class Checked:
    """Bytes that an archive stores as they are. Their CRC-32 is compared once reads have covered all of them."""

    def __init__(self, reader: Reader, begin: int, size_bytes: int, *, crc: int, name: str) -> None:
        self._reader, self._begin, self._crc, self._name = reader, begin, crc, name
        self.size_bytes = size_bytes
        self._pieces: dict[int, tuple[int, int]] = {}  # size and CRC-32 of each piece that was read, by its offset
        self._lock = threading.Lock()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer; see `Reader.read_into`."""
        piece = self._read(buffer, offset)
        if buffer.nbytes == self.size_bytes and piece[1] != self._crc:
            piece = self._read(buffer, offset)  # it may have been damaged on the way
        with self._lock:
            self._pieces[offset] = piece
            found = self._joined()
        if found is not None and found != self._crc:
            raise wrong_crc(self._name, found, self._crc)

    def _read(self, buffer: memoryview, offset: int) -> tuple[int, int]:
        """Fill the buffer; return the size and CRC-32 of its bytes."""
        self._reader.read_into(buffer, self._begin + offset)
        return buffer.nbytes, _native.crc("crc32", buffer.cast("B"))

    def _joined(self) -> int | None:
        """Return the CRC-32 of all bytes, and forget the pieces; None while a piece is missing."""
        crc, end = 0, 0
        while end < self.size_bytes:
            size_bytes, value = self._pieces.get(end, (0, 0))
            if not size_bytes:
                return None
            crc, end = _native.crc_combine("crc32", crc, value, size_bytes), end + size_bytes
        self._pieces.clear()
        return crc


def wrong_crc(name: str, found: int, expected: int) -> FormatError:
    """Return the error for a member of an archive whose bytes have another CRC-32 than the archive says."""
    what = f"member {name[:80]!r} of the archive has CRC-32 {found:08x}, the archive says {expected:08x}"
    return FormatError(what, hint=_AGAIN)


class _Point(NamedTuple):
    """A place from which a deflated member can be inflated."""

    position: int  # offset in the result
    source: int  # offset of the first compressed byte that `state` has not got
    state: Any  # the decompressor at this place; it is copied before use
    crc: int  # CRC-32 of the result up to here


class Inflated:
    """A member of a zip archive that is compressed with deflate.

    Inflating can start at a few points, so that a read of the end does not inflate the whole member again, and several
    threads inflate parts of it at the same time. The CRC-32 of the archive is compared when the last byte is inflated.
    """

    def __init__(self, reader: Reader, begin: int, stored_bytes: int, *, size_bytes: int, crc: int, name: str) -> None:
        self._reader, self._begin, self._stored_bytes = reader, begin, stored_bytes
        self.size_bytes, self._crc, self._name = size_bytes, crc, name
        self._distance = max(LEAST_DISTANCE, size_bytes // POINTS)
        self._points = [_Point(0, 0, zlib.decompressobj(-zlib.MAX_WBITS), 0)]
        self._lock = threading.Lock()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer; see `Reader.read_into`."""
        target, end = buffer.cast("B"), offset + buffer.nbytes
        with self._lock:
            index = bisect_right(self._points, offset, key=lambda point: point.position) - 1
            point = self._points[index]
        walk = _Walk(point, self._chunk)
        while walk.position < end:
            begin = walk.position
            piece = self._step(walk, min(self._distance, self.size_bytes - begin))
            if not piece:
                raise self._error(f"ends after {begin} of {self.size_bytes} bytes")
            first, last = max(offset, begin), min(end, walk.position)
            if first < last:
                target[first - offset : last - offset] = piece[first - begin : last - begin]
            self._keep(walk)
        if walk.position == self.size_bytes:
            self._check_end(walk)

    def _step(self, walk: _Walk, most_bytes: int) -> bytes:
        try:
            return walk.step(most_bytes)
        except zlib.error as error:
            raise self._error(f"cannot be inflated ({error})") from error

    def _chunk(self, source: int) -> bytes:
        data = bytearray(min(FETCHED_BYTES, self._stored_bytes - source))
        self._reader.read_into(memoryview(data), self._begin + source)
        return bytes(data)

    def _keep(self, walk: _Walk) -> None:
        with self._lock:
            if walk.position - self._points[-1].position >= self._distance:
                self._points.append(walk.point())

    def _check_end(self, walk: _Walk) -> None:
        if self._step(walk, 1):
            raise self._error(f"inflates to more than the {self.size_bytes} bytes that the archive says")
        if walk.crc != self._crc:
            raise wrong_crc(self._name, walk.crc, self._crc)

    def _error(self, what: str) -> FormatError:
        return FormatError(f"member {self._name[:80]!r} of the archive {what}", hint=_AGAIN)


class _Walk:
    """Inflates from a point on.

    Attributes:
        position: Offset of the next byte in the result.
        crc: CRC-32 of the result up to there.
    """

    def __init__(self, point: _Point, chunk: Any) -> None:
        self.position, self.crc = point.position, point.crc
        self._source, self._state, self._chunk = point.source, point.state.copy(), chunk
        self._fetched = b""
        self._fed = 0  # bytes of `_fetched` that the decompressor got

    def step(self, most_bytes: int) -> bytes:
        """Return the next bytes, at most `most_bytes`; none at the end of the compressed bytes."""
        while not self._state.eof:
            data = self._state.unconsumed_tail
            if not data:
                data = self._next()
            piece: bytes = self._state.decompress(data, max(1, most_bytes))
            if piece:
                self.position += len(piece)
                self.crc = zlib.crc32(piece, self.crc)
                return piece
            if not data:
                return b""
        return b""

    def _next(self) -> bytes:
        if self._fed == len(self._fetched):
            self._fetched, self._fed = self._chunk(self._source), 0
        data = self._fetched[self._fed : self._fed + FED_BYTES]
        self._fed += len(data)
        self._source += len(data)
        return data

    def point(self) -> _Point:
        """Return a point from which inflating can continue here."""
        return _Point(self.position, self._source, self._state.copy(), self.crc)
