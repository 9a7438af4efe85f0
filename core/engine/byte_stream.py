"""Reads one object from an offset to its end, in order: the engine reads ahead while the caller takes piece by piece.

Guarantees: one session with its connections reads the whole stream. The bytes that are read ahead are bounded. Closing,
an error or garbage collection stops the reading, as for every `ReadSession`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import Settings

__all__ = ["ByteStream"]

PIECE_BYTES = 8 << 20  # the largest block, so that a piece is complete with one answer
# Several blocks for each of two reactors; this is the most memory that one file with a slow consumer may hold. More is
# not faster on a connection of 5 GB/s; a path of 50 Gbit/s and 50 ms would need 300 MiB.
AHEAD_BYTES = 128 << 20


class ByteStream:
    """A stream of the bytes of one object from an offset on.

    Args:
        source_object: The object to read from.
        begin: Offset of the first byte.
        settings: How to read. The deadline is ignored, because the caller may pause between two pieces.
        in_order: Yield pieces in order; otherwise as they arrive.

    Attributes:
        position: Offset of the next byte.
    """

    def __init__(self, source_object: SourceObject, begin: int, settings: Settings, *, in_order: bool = True) -> None:
        self._begins = range(begin, source_object.size_bytes, PIECE_BYTES)
        size_bytes = source_object.size_bytes
        items = (Item(0, at, min(at + PIECE_BYTES, size_bytes)) for at in self._begins)
        limit_bytes = min(settings.memory_limit_bytes, AHEAD_BYTES)
        own = replace(settings, memory_limit_bytes=limit_bytes, deadline_s=None, began=None)
        self.position = begin
        self._ready: deque[int] = deque()
        self._piece = memoryview(b"")
        self._session = ReadSession([source_object], plan_reads(items, 0), own, in_item_order=in_order, items="pieces")

    def close(self) -> None:
        """Stop reading."""
        self._session.close()
        self._piece = memoryview(b"")

    def read_into(self, buffer: memoryview) -> int:
        """Copy the next bytes into the buffer; only the end of the object leaves the buffer partly empty.

        Raises:
            StorageError: and its kinds.
        """
        copied = 0
        while copied < buffer.nbytes:
            if not self._piece.nbytes and not self._has_next():
                break
            count = min(self._piece.nbytes, buffer.nbytes - copied)
            buffer[copied : copied + count] = self._piece[:count]
            self._piece = self._piece[count:]
            self.position += count
            copied += count
        return copied

    def skip_to(self, position: int) -> None:
        """Drop the bytes before a later position; raises as `read_into`."""
        while self.position < position:
            if not self._piece.nbytes and not self._has_next():
                break
            count = min(self._piece.nbytes, position - self.position)
            self._piece = self._piece[count:]
            self.position += count

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Yield each piece with its offset; raises as `read_into`."""
        while self._has_next():
            yield self._begins[self._item], self._piece

    def _has_next(self) -> bool:
        self._piece = memoryview(b"")  # frees the last piece before the wait for the next one
        if not self._ready:
            self._ready.extend(self._session.next_items())
        if not self._ready:
            return False
        self._item = self._ready.popleft()
        memory = self._session.take(self._item)
        self._piece = memoryview(b"") if memory is None else memoryview(memory)
        return True
