"""Writes one large file: under another name beside its own, flushed to the disk, and then renamed.

Guarantees: a reader finds no file, the old one or the whole new one; a file of another program is not replaced without
being asked for. Parts are written straight from their memory, by several threads.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from streamer.backends.posix.atomic_write import sync_folder
from streamer.backends.posix.errors import storage_error
from streamer.core.disk_names import disk_name
from streamer.core.errors import ObjectNotFoundError, StorageError
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import changed_meanwhile

__all__ = ["PosixUpload"]

# More do not write faster: the page cache takes what one thread copies at 2 GB/s and more.
PARALLEL_PARTS = 4
# Of file systems without hard links (FAT, some of FUSE), of which Linux says the first and others the rest.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class PosixUpload:
    """See `streamer.core.store.uploads.Upload`.

    Args:
        path: Of the file.
        replaced: What is to be replaced, or None.
        info: Describes the file at a path.

    Raises:
        StorageError: the file cannot be made.
    """

    parallel_parts = PARALLEL_PARTS
    needs_equal_parts = False

    def __init__(self, path: str, replaced: ObjectInfo | None, info: Callable[[str], ObjectInfo]) -> None:
        self._path, self._replaced, self._info = path, replaced, info
        folder, name = os.path.split(disk_name(path))
        self._draft = os.path.join(folder, f".{name[:100]}-{secrets.token_hex(4)}")  # a name has 255 bytes at most
        self._is_finished = False
        with self._translated():
            os.makedirs(folder, exist_ok=True)
            os.close(os.open(self._draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Write one part; raises as `Upload.send`."""
        with self._translated():
            descriptor = os.open(self._draft, os.O_WRONLY)
            try:
                while part.nbytes:
                    count = os.pwrite(descriptor, part, offset_bytes)
                    part, offset_bytes = part[count:], offset_bytes + count
            finally:
                os.close(descriptor)

    def finish(self) -> None:
        """Flush the file to the disk and give it its name; raises as `Upload.finish`."""
        if self._is_finished:
            return
        with self._translated():
            descriptor = os.open(self._draft, os.O_WRONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if self._replaced is None:
                self._create()
            else:
                self._check_replaced(self._replaced)
                os.replace(self._draft, disk_name(self._path))
            self._is_finished = True
            sync_folder(os.path.dirname(self._draft))

    def abort(self) -> None:
        """Remove the file that has not got its name; raises as `Upload.abort`."""
        with self._translated(), suppress(FileNotFoundError):
            os.unlink(self._draft)

    def _create(self) -> None:
        """Rename the file, unless there is one with its name."""
        target = disk_name(self._path)
        try:
            os.link(self._draft, target)
        except FileExistsError:
            raise self._changed() from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(target):
                raise self._changed() from None
            os.replace(self._draft, target)
        else:
            os.unlink(self._draft)

    def _check_replaced(self, replaced: ObjectInfo) -> None:
        try:
            version = self._info(self._path).version
        except ObjectNotFoundError:
            version = None
        if version != replaced.version:
            raise self._changed()

    def _changed(self) -> StorageError:
        return changed_meanwhile(redact(self._path), self._replaced)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            raise storage_error(error, self._path) from error
