"""Writes one object through a file that an fsspec file system has opened for writing, part after part.

The file system decides when readers see the object: most object stores show it when the file is closed, SFTP and others
while it is written. A new large file is closed after its last byte, so that no buffer waits for `finish`. A small file
is written in `finish`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from streamer import _native
from streamer.backends.fsspec.info import make_folders
from streamer.backends.fsspec.reads import exclusive
from streamer.backends.private_names.fsspec import parent_of
from streamer.core.errors import ChangedError, UsageError
from streamer.core.store.uploads import changed_meanwhile

SMALL_BYTES = 1 << 20
_READ_ONLY = (NotImplementedError, ValueError)  # raised by file systems without the mode "wb"


class FsspecUpload:
    """See `streamer.core.store.uploads.Upload`."""

    parallel_parts = 1
    needs_equal_parts = False

    def __init__(
        self,
        fs: AbstractFileSystem,
        path: str,
        uri: str,
        size_bytes: int,
        *,
        replaces: bool,
        fail: Callable[[Exception], NoReturn],
    ) -> None:
        self._fs, self._path, self.uri, self._fail = fs, path, uri, fail
        self._size_bytes, self._replaces = size_bytes, replaces
        self._written_bytes = 0
        self._small = bytearray()
        self._file: Any = None
        self._is_finished = False
        if size_bytes > SMALL_BYTES:
            self._open()

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Write one part; raises as `Upload.send`."""
        if self._file is None:
            self._small[offset_bytes:] = part
            return
        if offset_bytes < self._written_bytes:  # this part was written; only closing the file failed, and is retried
            part = part[self._written_bytes - offset_bytes :]
        try:
            with exclusive(self._fs):
                self._file.write(part)
                self._written_bytes += part.nbytes
                if self._written_bytes == self._size_bytes and not self._replaces:
                    self._file.close()
        except Exception as error:
            self._fail(error)

    def finish(self) -> None:
        """Write the file if it is small, and close it; raises as `Upload.finish`."""
        if self._is_finished:
            return
        if self._file is None:
            self._open()
        try:
            with exclusive(self._fs):
                if self._small:
                    self._file.write(bytes(self._small))
                self._file.close()
        except Exception as error:
            self._fail(error)
        self._is_finished = True

    def holds(self, crc32c: int) -> bool:
        """Read the file back, as some file systems have times in seconds and no other version."""
        try:
            with exclusive(self._fs), self._fs.open(self._path, "rb") as file:
                value = 0
                while piece := file.read(SMALL_BYTES):
                    value = _native.crc("crc32c", piece, value)
        except Exception as error:
            self._fail(error)
        return value == crc32c

    def abort(self) -> None:
        """Discard the file, and remove it if readers see a part of it; raises as `Upload.abort`."""
        if self._file is None or self._is_finished:
            return
        try:
            if isinstance(self._file, AbstractBufferedFile) and not self._file.closed:
                self._file.discard()
                self._file.closed = True  # otherwise its finalizer would write the rest
                return
            with exclusive(self._fs):
                self._file.close()
                self._fs.rm_file(self._path)
        except FileNotFoundError:
            pass
        except Exception as error:
            self._fail(error)

    def _open(self) -> None:
        fs, folder = self._fs, parent_of(self._fs, self._path)
        try:
            with exclusive(fs):
                fs.invalidate_cache(folder)
                if not self._replaces and fs.exists(self._path):
                    raise changed_meanwhile(self.uri, None)
                with suppress(NotImplementedError):
                    make_folders(fs, folder)
                self._file = fs.open(self._path, "wb")
        except _READ_ONLY:
            raise UsageError("this storage cannot be written", uri=self.uri) from None
        except ChangedError:
            raise
        except Exception as error:
            self._fail(error)
