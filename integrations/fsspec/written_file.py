"""Files that are written through ``streamer::``: sent in parts, several at a time, while the caller continues.

Guarantees: a file shows up whole, when it is closed, as far as its storage offers this (docs/saving.md). An older file
is replaced only if nobody has changed it meanwhile. The new file is given up, and the older file stays, in three cases:
the block that writes it raises, it is closed while an exception is handled, or nothing refers to it any more.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from streamer._save.parts import PART_BYTES
from streamer._save.writing import quiet_writing, uploading_store
from streamer.core.errors import OptionError, UsageError
from streamer.core.log import OwnLogger, warn
from streamer.core.secrets.redact import redact
from streamer.core.store.own_objects import OwningUpload
from streamer.core.store.part_sender import PartSender, PartStream
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import ObjectInfo, Store
from streamer.integrations.fsspec.inner import Inner

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from streamer.integrations.fsspec.file_system import StreamerFileSystem

__all__ = ["WrittenFile"]

_log = OwnLogger()

LEAST_PART_BYTES = 5 << 20  # S3 accepts no smaller parts


class _GivenUpError(Exception):
    """The file was given up."""


class WrittenFile(io.RawIOBase):
    """A file that is open for writing.

    Args:
        fs: The file system that opened it.
        inner: Opens the store.
        path: The path of the object.
        mode: ``"wb"``, or ``"xb"``: there must be no such object.
        part_bytes: Size of a part; None for the usual one.
        size_bytes: Size of the object, if it is known.
        autocommit: Whether the object shows up when the file is closed, or in `commit`.
    """

    def __init__(
        self,
        fs: StreamerFileSystem,
        inner: Inner,
        path: str,
        mode: str,
        *,
        part_bytes: int | None,
        size_bytes: int | None,
        autocommit: bool,
    ) -> None:
        super().__init__()
        self._is_over = True  # if this method raises, the finalizer has nothing to give up
        if part_bytes is not None and part_bytes < LEAST_PART_BYTES:
            raise OptionError(f"block_size is {LEAST_PART_BYTES} bytes at least", hint="Leave it out")
        self.fs, self.path, self.mode, self.blocksize = fs, path, mode, part_bytes or PART_BYTES
        self._autocommit, self._passing, self._expected_bytes = autocommit, sys.exc_info()[1], size_bytes
        self._buffer = bytearray()
        self._sent_bytes = 0
        self._stream: PartStream | None = None
        self._upload: OwningUpload | None = None
        with ExitStack() as stack:
            store, uri = stack.enter_context(inner.written(path))
            self._path, self._replaced = store.root, _replaced(store, uri, must_create=mode == "xb")
            self._writing = stack.enter_context(quiet_writing(store, uri, inner.settings))
            self._sender = stack.enter_context(PartSender(self._writing.most_parallel))
            self._stack = stack.pop_all()
        self._is_over = False

    @property
    def size(self) -> int:
        """Bytes that were written."""
        return self._sent_bytes + len(self._buffer)

    @property
    def full_name(self) -> str:
        """The URL."""
        return str(self.fs.unstrip_protocol(self.path))

    def writable(self) -> bool:
        """Say yes."""
        return True

    def read(self, _: int = -1) -> bytes:
        """Refuse."""
        raise io.UnsupportedOperation("not open for reading")

    def tell(self) -> int:
        """Return the number of bytes that were written."""
        return self.size

    def write(self, data: Buffer) -> int:
        """Write bytes, all of them; raises as `close`."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = memoryview(data).cast("B")
        with self._given_up_on_failure():
            begin = 0
            while begin < view.nbytes:
                end = begin + self.blocksize - len(self._buffer)
                self._buffer += view[begin:end]
                begin = end
                if len(self._buffer) == self.blocksize:
                    self._send_part()
        return view.nbytes

    def close(self) -> None:
        """Send the remaining bytes and show the object, unless `commit` is to do this or an exception is handled."""
        if self.closed:
            return
        try:
            if self._is_over:
                return
            passing = sys.exc_info()[1]
            if passing is not None and passing is not self._passing:
                _log.warning("%s is not written: it was closed during a %s", self, type(passing).__name__)
                self.discard()
                return
            with self._given_up_on_failure():
                self._send_rest()
                if self._autocommit:
                    self.commit()
        finally:
            super().close()

    def commit(self) -> None:
        """Let the object show up; raises as `close`."""
        if self._is_over:
            return
        with self._given_up_on_failure():
            self._send_rest()
            assert self._upload is not None
            self._writing.show(self._path, self._upload, self._replaced)
        self._is_over = True
        self._stack.close()

    def discard(self) -> None:
        """Give the file up; an older file stays."""
        with suppress(_GivenUpError), self._given_up_on_failure():
            raise _GivenUpError

    def __exit__(self, kind: Any, error: Any, at: Any) -> None:
        if error is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        if not self._is_over:
            warn(f"{self} was not closed, and is not written", ResourceWarning, source=self)
            self.discard()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a file that is open for writing cannot be pickled")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {redact(self.full_name)}>"

    def _send_rest(self) -> None:
        if self._expected_bytes not in (None, self.size):
            hint = "Write as many bytes as the argument size= of open says, or leave size= out"
            raise UsageError(f"{self.size} bytes were written, and {self._expected_bytes} expected", hint=hint)
        if self._stream is None:  # the first part is the last one, so the size is known
            self._begin(len(self._buffer))
        if self._buffer:
            self._send_part()
        assert self._stream is not None
        self._stream.finish()

    def _send_part(self) -> None:
        stream = self._stream or self._begin(self._expected_bytes)
        part, self._buffer = self._buffer, bytearray()
        self._sent_bytes += len(part)
        stream.put(memoryview(part))

    def _begin(self, size_bytes: int | None) -> PartStream:
        self._upload = self._writing.begin(self._path, size_bytes, self.blocksize, self._replaced)
        self._stream = PartStream(self._sender, self._upload, lambda _: None)
        return self._stream

    @contextmanager
    def _given_up_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not self._is_over:
                self._is_over = True
                self._buffer = bytearray()
                self._stack.__exit__(type(error), error, error.__traceback__)
            raise


def _replaced(store: Store, uri: str, *, must_create: bool) -> ObjectInfo | None:
    """Return the existing object, which is to be replaced, or None."""
    uploading_store(store, uri)
    replaced = info_if_present(store, store.root)
    if replaced is not None and must_create:
        raise FileExistsError(f"{redact(uri)} exists already")
    return replaced
