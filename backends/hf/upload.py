"""Sends the bytes of one file to the Hub, for a commit (`streamer.backends.hf.commit`).

huggingface_hub sends them. It reads a file twice, first for its SHA-256, without a copy in memory or on a disk. Bytes
that come only once (encrypted, or of the ranks of a group) are held in a temporary file.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from streamer import _native
from streamer.backends.hf.commit import HubCommit
from streamer.core.errors import ChangedError, StorageError, UsageError
from streamer.core.format.positioned_file import Positioned
from streamer.core.quoting import quoted

HELD_BYTES = 1 << 20  # files up to this size are in memory until the commit, which has most of them in its body
REPORTED_BYTES = 1 << 20  # of progress


class RereadBytes(Positioned, io.BufferedIOBase):
    """A file of bytes that are made anew when they are read again.

    Args:
        pieces: The bytes; each iteration begins at the first one.
        size_bytes: How many there are.
        on_read: Called with the position after each read.
    """

    def __init__(self, pieces: Iterable[memoryview], size_bytes: int, on_read: Callable[[int], None]) -> None:
        super().__init__(size_bytes)
        self._pieces, self._on_read = pieces, on_read
        self._made: Iterator[memoryview] | None = None
        self._rest, self._at = memoryview(b""), 0  # bytes that are made, and their position
        self._crc = 0  # of the bytes that were made in this pass
        self._first_crc: int | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to so many bytes, or all that are left."""
        left = max(0, self._file_bytes - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        found = []
        while wanted:
            some = self._made_bytes()[:wanted]
            found.append(some)
            wanted -= some.nbytes
            self._position += some.nbytes
        self._on_read(self._position)
        return bytes(found[0]) if len(found) == 1 else b"".join(found)

    def _made_bytes(self) -> memoryview:
        """Return bytes that begin at the position."""
        if self._made is None or self._position < self._at:
            self._made, self._rest, self._at, self._crc = iter(self._pieces), memoryview(b""), 0, 0
        while self._at + self._rest.nbytes <= self._position:
            self._at += self._rest.nbytes
            self._rest = self._next(self._made)
        begin, self._at = self._position - self._at, self._position
        self._rest = self._rest[begin:]
        return self._rest

    def _next(self, made: Iterator[memoryview]) -> memoryview:
        piece = next(made, None)
        if piece is None:
            raise self._changed()
        self._crc = _native.crc("crc32c", piece, self._crc)
        if self._at + piece.nbytes >= self._file_bytes:
            is_too_long = any(more.nbytes for more in made)  # what makes the bytes may check them after the last
            self._first_crc = self._crc if self._first_crc is None else self._first_crc
            if is_too_long or self._crc != self._first_crc:
                raise self._changed()
        return piece

    @staticmethod
    def _changed() -> ChangedError:
        return ChangedError("the bytes changed while they were sent", hint="Do not change tensors while they are saved")


class HubUpload:
    """One file of a commit; see `streamer.core.store.own_objects.OwningUpload`, and `RereadingUpload`."""

    parallel_parts = 1
    needs_equal_parts = False

    def __init__(self, commit: HubCommit, path: str, uri: str, size_bytes: int) -> None:
        self._commit, self._path, self._uri, self._size_bytes = commit, path, uri, size_bytes
        self._addition: Any = None
        self._blob: str | None = None
        self._spool: Any = None

    def read(self, pieces: Iterable[memoryview], on_sent: Callable[[int], None]) -> None:
        """Send all bytes; see `RereadingUpload.read`."""
        if self._size_bytes <= HELD_BYTES:
            self._send(self._held(b"".join(pieces)))
            on_sent(self._size_bytes)
            return
        passes = reported = 0

        def note(position: int) -> None:
            nonlocal passes, reported
            passes += position == self._size_bytes and not passes  # the first one computes the hash
            is_more = passes and position < self._size_bytes and position - reported >= REPORTED_BYTES
            on_sent(position - reported if is_more else 0)
            reported = position if is_more else reported

        self._send(RereadBytes(pieces, self._size_bytes, note))
        on_sent(self._size_bytes - reported)

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Keep a part, and send all of them after the last; raises as `Upload.send`."""
        try:
            self._spool = self._spool or tempfile.TemporaryFile()  # noqa: SIM115 (closed by `abort` and `_send`)
            self._spool.seek(offset_bytes)
            self._spool.write(part)
        except OSError as error:
            hint = f"Free some room in {quoted(tempfile.gettempdir())}, or set TMPDIR to another folder"
            what = f"the bytes cannot be held in a temporary file: {error.strerror}"
            raise StorageError(what, uri=self._uri, hint=hint) from error
        if offset_bytes + part.nbytes == self._size_bytes:
            self._spool.seek(0)
            with self._spool as file:
                self._send(self._held(file.read()) if self._size_bytes <= HELD_BYTES else file)

    def finish(self) -> None:
        """Add the file to the commit."""
        if self._addition is None:
            self._send(self._held(b""))
        self._commit.add(self._path, self._addition, self._blob)

    def abort(self) -> None:
        """Leave the file out of the commit."""
        if self._spool is not None:
            self._spool.close()
        self._commit.leave_out(self._path)

    withdraw = abort

    def confirm(self) -> None:
        """Do nothing: the commit is looked at when it is made."""

    def may_stand(self) -> bool:
        """Say whether the commit may be made, although an error says that it is not known."""
        return self._commit.is_unknown

    def _held(self, data: bytes) -> io.BytesIO:
        if len(data) != self._size_bytes:
            raise UsageError(f"{len(data)} bytes were sent in place of {self._size_bytes}", uri=self._uri)
        self._blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        return io.BytesIO(data)

    def _send(self, file: Any) -> None:
        self._addition = self._commit.send(self._path, file, self._uri)
