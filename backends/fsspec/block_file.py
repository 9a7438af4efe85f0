"""A file whose blocks are downloaded when they are first read; the file is kept once all blocks were downloaded.

Guarantees: the copy gets its name in the cache only when it has all blocks, and only if the file still has the version
of these blocks. While another process fills the copy, or if the cache has no room, blocks are read and not kept.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fsspec import AbstractFileSystem

from streamer.core.errors import RangeResponseError, TruncatedError
from streamer.core.folders.drafts import LockedDraft
from streamer.core.folders.paths import NO_ROOM

BLOCK_BYTES = 4 << 20  # about the size of fsspec's own blocks


def sends_ranges(fs: AbstractFileSystem, path: str, size_bytes: int) -> bool:
    """Read a file's last byte, to find out whether its storage sends ranges: some web servers send only whole files.

    A file that fsspec opens learns this from the header of the answer; `cat_file` would receive the whole file.
    """
    if size_bytes <= 1:
        return True
    try:
        with fs.open(path, "rb") as file:
            file.seek(size_bytes - 1)
            return len(file.read(1)) == 1
    except ValueError:  # raised by fsspec's HTTP file system
        return False


@dataclass(frozen=True)
class Blocks:
    """The source of the blocks of a file."""

    size_bytes: int  # size of the file
    fetch: Callable[[int, int], bytes]  # returns the bytes of a half-open range
    is_unchanged: Callable[[], bool]  # says whether the file still has the version that it had when it was opened

    def read(self, begin: int, end: int) -> bytes:
        """Return exactly the bytes of a range."""
        data = self.fetch(begin, end)
        if len(data) == end - begin:
            return data
        cls, what = (TruncatedError, "ends") if len(data) < end - begin else (RangeResponseError, "goes on")
        message = f"The file {what} after {len(data)} of the {end - begin} bytes asked for"
        raise cls(message, byte_range=(begin, end), object_size=self.size_bytes)


class BlockFile(io.RawIOBase):
    """Reads a file by blocks; one thread at a time."""

    def __init__(
        self,
        blocks: Blocks,
        draft: LockedDraft | None,
        *,
        on_kept: Callable[[], None],
        on_no_room: Callable[[OSError], None],
    ) -> None:
        self._blocks, self._draft = blocks, draft
        self._on_kept, self._on_no_room = on_kept, on_no_room
        self._missing = set(range(-(-blocks.size_bytes // BLOCK_BYTES)))
        self._descriptor = -1 if draft is None else os.dup(draft.descriptor)
        self._position = 0

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: it has a position."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._blocks.size_bytes}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read to the end of a block at most, and return the number of bytes; 0 at the end of the file."""
        view = memoryview(buffer).cast("B")
        block, begin = self._position // BLOCK_BYTES, self._position
        end = min(begin + view.nbytes, self._blocks.size_bytes, (block + 1) * BLOCK_BYTES)
        if end <= begin:
            return 0
        if block in self._missing and self._descriptor >= 0:
            self._keep(block)
        data = (
            os.pread(self._descriptor, end - begin, begin) if self._descriptor >= 0 else self._blocks.read(begin, end)
        )
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Close the file; the copy is not kept unless all blocks were read."""
        if self._draft is not None:
            self._draft.discard()
        self._stop_keeping()
        super().close()

    def _keep(self, block: int) -> None:
        begin = block * BLOCK_BYTES
        data = memoryview(self._blocks.read(begin, min(begin + BLOCK_BYTES, self._blocks.size_bytes)))
        try:
            while data.nbytes:
                written = os.pwrite(self._descriptor, data, begin)
                begin, data = begin + written, data[written:]
            self._missing.discard(block)
            if not self._missing and self._draft is not None and self._blocks.is_unchanged():
                self._on_kept()
                self._draft.finish()
                self._draft = None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._on_no_room(error)
            if self._draft is not None:
                self._draft.discard()
            self._stop_keeping()

    def _stop_keeping(self) -> None:
        self._draft = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
