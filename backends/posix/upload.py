"""Writes one large file: under another name beside its own, flushed to the disk, and then renamed.

Guarantees: a reader finds no file, the old file or the whole new file. A file that another program wrote meanwhile is
not replaced. If the disk is too small, the upload fails before a byte is written, provided that the file system can
reserve room. Several threads write. On a local disk they bypass the page cache, because all bytes must reach the disk
before the rename anyway.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from streamer import _native
from streamer.backends.posix.errors import storage_error
from streamer.core.errors import ObjectNotFoundError, StorageError, UsageError
from streamer.core.folders.drafts import OwnDraft, locked_folder, sync_folder
from streamer.core.folders.paths import disk_name
from streamer.core.path_objects import text_of
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import changed_meanwhile

PARALLEL_PARTS = 4  # more do not write faster: one copies while another waits for the disk
MOST_TRIES = 3  # to make a draft in a folder that others remove
SMALL_BYTES = 1 << 20  # a smaller file stays in the page cache, from which it is probably read next
# The types (statfs(2)) of file systems on local disks: ext2 to ext4, xfs, and a container's overlay of these.
_LOCAL_DISKS = frozenset({0xEF53, 0x58465342, 0x794C7630})
# Errors of file systems without hard links (FAT, some FUSE file systems): the first from Linux, the rest from others.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

_HERE, _NO_REPLACE = -100, 1  # AT_FDCWD and RENAME_NOREPLACE of renameat2(2)

_made: set[str] = set()  # folders that uploads of this process have made


class _Parts:
    """Writes parts of a file to its draft."""

    parallel_parts = PARALLEL_PARTS
    needs_equal_parts = True  # so that every part begins at a whole page

    def __init__(self, path: str) -> None:
        self._path, self._draft_path, self._is_direct = path, "", False
        self._ends_bytes: list[int] = []  # of the parts that were written

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Write one part; raises as `Upload.send`."""
        with self._translated():
            _native.write_part(os.fsencode(self._draft_path), part, offset_bytes, is_direct=self._is_direct)
        self._ends_bytes.append(offset_bytes + part.nbytes)

    def share(self) -> tuple[str, bool]:
        """Return the path of the draft, and how it is written."""
        return self._draft_path, self._is_direct

    def add(self, sent: list[int]) -> None:
        """Add the parts of another process."""
        self._ends_bytes += sent

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            raise storage_error(error, self._path) from error


class JoinedUpload(_Parts):
    """Writes parts of a file that another process has begun; see `streamer.core.store.uploads.SharedUpload`."""

    def __init__(self, path: str, shared: tuple[str, bool]) -> None:
        super().__init__(path)
        self._draft_path, self._is_direct = shared
        with self._translated():
            try:
                os.stat(self._draft_path)
            except FileNotFoundError as error:
                hint = "Ranks on several machines can save together to a file system that all of them have mounted"
                what = "the file that rank 0 has begun is not there"
                raise StorageError(what, uri=redact(path), hint=hint) from error

    def sent(self) -> list[int]:
        """Flush what was written to the disk, and return the ends of the parts."""
        with self._translated(), open(self._draft_path, "rb") as file:
            os.fsync(file.fileno())
        return self._ends_bytes

    def finish(self) -> None:
        """Do nothing: the other process lets the file show up."""

    def abort(self) -> None:
        """Remove the draft; raises as `Upload.abort`."""
        with self._translated(), suppress(FileNotFoundError):
            os.unlink(self._draft_path)


class PosixUpload(_Parts):
    """See `streamer.core.store.uploads.Upload`."""

    def __init__(
        self, path: str, size_bytes: int, replaced: ObjectInfo | None, info: Callable[[str], ObjectInfo]
    ) -> None:
        super().__init__(path)
        self._replaced, self._info = replaced, info
        folder, name = os.path.split(disk_name(path))
        self._is_finished = False
        # The version of the finished file, if its disk is local; servers may set times later.
        self.version: str | None = None
        with self._translated():
            if replaced is None:
                _check_free(disk_name(path))
            self._draft = _draft_in(folder, name)
            self._draft_path = self._draft.path
            if replaced is not None:
                self._draft.take_permissions(disk_name(path), and_of_owner=True)
            if size_bytes:
                self._reserve(size_bytes)
        is_local = _native.file_system_type(os.fsencode(folder)) in _LOCAL_DISKS
        self._is_local = is_local
        self._is_direct = is_local and size_bytes >= SMALL_BYTES

    def sent(self) -> list[int]:
        """Return the ends of the parts that were written."""
        return self._ends_bytes

    def finish(self) -> None:
        """Flush the draft to the disk and rename it; raises as `Upload.finish`."""
        if self._is_finished:
            return
        with self._translated():
            self._draft.flush()
            self._check_size()
            if self._replaced is None:
                self._create()
            else:
                with locked_folder(os.path.dirname(self._draft_path)):
                    self._check_replaced(self._replaced)
                    self._draft.take_permissions(disk_name(self._path))
                    os.replace(self._draft_path, disk_name(self._path))
            self._is_finished = True
            if self._is_local:
                self.version = self._info(self._draft.open_path).version
            self._draft.close()
            sync_folder(os.path.dirname(self._draft_path))

    def abort(self) -> None:
        """Remove the draft; raises as `Upload.abort`."""
        with self._translated():
            self._remove()

    def _reserve(self, size_bytes: int) -> None:
        try:
            _native.reserve_room(os.fsencode(self._draft_path), size_bytes)
        except OSError:
            self._remove()
            raise

    def _remove(self) -> None:
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._draft_path)
        finally:
            self._draft.close()
        remove_made_folders(os.path.dirname(self._draft_path))

    def _create(self) -> None:
        """Rename the draft, unless a file with the final name exists."""
        target = disk_name(self._path)
        try:
            if _renamed(self._draft_path, target):
                return
            os.link(self._draft_path, target)
        except FileExistsError:
            raise self._changed() from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(target):
                raise self._changed() from None
            os.replace(self._draft_path, target)
        else:
            os.unlink(self._draft_path)

    def _check_size(self) -> None:
        """Look at the draft, because half a file must not replace a whole one."""
        size_bytes, sent_bytes = self._info(self._draft.open_path).size_bytes, max(self._ends_bytes, default=0)
        if size_bytes != sent_bytes:
            what = f"the file system has {size_bytes} of the {sent_bytes} bytes that were written"
            raise StorageError(what, uri=redact(self._path), hint="Check the disk, and save again")

    def _check_replaced(self, replaced: ObjectInfo) -> None:
        try:
            version = self._info(self._path).version
        except ObjectNotFoundError:
            version = None
        if version != replaced.version:
            raise self._changed()

    def _changed(self) -> StorageError:
        return changed_meanwhile(redact(self._path), self._replaced)


def _renamed(path: str, target: str) -> bool:
    """Rename a file in one step, unless the new name exists; return False if the file system or libc has no such call.

    A process that is killed between a link and the removal of the old name would leave a file with both.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None or not rename(_HERE, os.fsencode(path), _HERE, os.fsencode(target), _NO_REPLACE):
        return rename is not None
    if (code := ctypes.get_errno()) in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), target)


def _check_free(path: str) -> None:
    """Refuse a folder, and a link that leads nowhere, in place of a file: no file of another program is there."""
    uri = redact(text_of(path))
    if os.path.isdir(path):
        raise StorageError("this is a folder, not a file", uri=uri, hint="Name a file in it, or move the folder away")
    if os.path.islink(path) and not os.path.exists(path):
        hint = "Remove the link, or make the folder or file to which it leads"
        raise StorageError("this is a link that leads nowhere", uri=uri, hint=hint)


def remove_made_folders(folder: str) -> None:
    """Remove a folder, and those above it, that this process made, and in which nothing is left."""
    with suppress(OSError):  # it is not empty, or somebody removed it
        while folder in _made:
            with suppress(FileNotFoundError):
                os.rmdir(folder)
            _made.discard(folder)
            folder = os.path.dirname(folder)


def _draft_in(folder: str, name: str) -> OwnDraft:
    """Make a draft, and the folder if it is missing."""
    for _ in range(MOST_TRIES):
        _make_folder(folder)
        with suppress(FileNotFoundError):  # another save that failed has just removed the folder that it had made
            OwnDraft.remove_left(folder, name)
            try:
                return OwnDraft(folder, name)
            except OSError:
                remove_made_folders(folder)
                raise
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)


def _make_folder(folder: str) -> None:
    """Make a folder, and those above it."""
    missing, above = [], folder
    while above and not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    _made.update(missing)
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = folder
        while not os.path.lexists(file):
            file = os.path.dirname(file)
        if os.path.isdir(file):
            raise
        _check_free(file)
        hint = "Name another folder, or move the file away; a name that ends in .safetensors is one file"
        raise UsageError("this is a file, not a folder", uri=redact(text_of(file)), hint=hint) from None
