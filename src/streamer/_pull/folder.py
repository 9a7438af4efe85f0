"""The folder that a pull fills: its lock, its files, whether they are complete, and how they get their final names.

``.streamer-pull/`` holds the lock, the parts of unfinished files, and ``complete.json``, the record of a complete pull.
The file ``.streamer-pull-incomplete`` lies in the folder while files may be missing.

While `place` moves files to their final names, the folder has the mark that it is incomplete. For readers that do not
check the mark, the files by which models are found (configurations, indexes) are removed first and placed last. The
next pull finishes an interrupted `place`, and needs no byte of the storage for this.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from streamer._pull.listing import STATE
from streamer._pull.record import PulledFolder, parse_record, render_record
from streamer._pull.resumed_file import Part, name_of_part
from streamer.core.checkpoint.missing import INCOMPLETE
from streamer.core.folders.drafts import NO_LOCKS
from streamer.core.folders.open_folder import OpenFolder
from streamer.core.log import OwnLogger
from streamer.core.quoting import printable, quoted, size_text

__all__ = ["Folder", "finish_placing", "open_folder", "place"]

NOTE = b"python -m streamer pull has not finished here: files may be missing. Run it again with the same URI.\n"

_log = OwnLogger()

READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

FOUND_BY = ("config.json", "model_index.json", ".index.json")  # suffixes of the files by which models are found


class Folder:
    """An open folder on a disk, with its sub-folders for the pull's state and for parts; names are relative to it.

    Attributes:
        path: The path that the caller passed.
        parts: The sub-folder of parts.
        is_read_only: Whether the lock file could be read, but not written.
    """

    is_read_only = False

    def __init__(self, path: str) -> None:
        self.path = path
        with ExitStack() as opened:
            self._root = opened.enter_context(OpenFolder(path))
            self._state = opened.enter_context(self._root.inner(STATE, is_made=True))
            self.parts = opened.enter_context(self._state.inner("parts", is_made=True))
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the folder and its sub-folders."""
        self._opened.close()

    def lock_file(self) -> int:
        """Open the lock file; return its descriptor."""
        try:
            return self._state.open("lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            self.is_read_only = True  # enough for a pull that finds every file here
            return self._state.open("lock", os.O_RDONLY)

    def check_writable(self, names: Collection[str]) -> None:
        """Check that the folder is not known as read-only, before these files are written or removed."""
        if names and self.is_read_only:
            what = f"Read-only; files to write or remove: {len(names)}, such as {quoted(min(names))}"
            raise OSError(errno.EROFS, what, self.path)

    def record(self, name: str = "complete") -> PulledFolder | None:
        """Read the record of a complete pull, or another record; return None if there is none."""
        try:
            return parse_record(self._state.read(f"{name}.json"))
        except FileNotFoundError:
            return None

    def write_record(self, record: PulledFolder, name: str = "complete") -> None:
        """Write a record, and flush it to the disk."""
        self._state.write_atomically(f"{name}.json", render_record(record))

    def forget_record(self, name: str) -> None:
        """Remove a record."""
        self._state.remove(f"{name}.json")

    @property
    def is_marked(self) -> bool:
        """Whether the folder has the mark that files may be missing."""
        return self._root.status(INCOMPLETE) is not None

    def mark(self) -> None:
        """Add the mark that files may be missing."""
        if not self.is_marked:
            self._root.write_atomically(INCOMPLETE, NOTE)

    def unmark(self) -> None:
        """Remove the mark that files may be missing."""
        self._root.remove(INCOMPLETE)

    @contextmanager
    def folder_of(self, name: str, *, is_made: bool = False) -> Iterator[tuple[OpenFolder, str]]:
        """Open the folder of a file; yield it with the file's own name."""
        *folders, own_name = name.split("/")
        with ExitStack() as opened:
            folder = self._root
            for each in folders:
                folder = opened.enter_context(folder.inner(each, is_made=is_made))
            yield folder, own_name

    def check_path(self, name: str) -> None:
        """Check that no folder on the path to a file is a link; raises as `folder_of`, except for a missing folder."""
        with suppress(FileNotFoundError), self.folder_of(name):
            pass

    def remove(self, name: str) -> None:
        """Remove a file if it exists; raises as `folder_of`."""
        with suppress(FileNotFoundError), self.folder_of(name) as (folder, own_name):
            folder.remove(own_name)

    def open(self, name: str) -> int:
        """Open a file for reading; raises as `folder_of`."""
        with self.folder_of(name) as (folder, own_name):
            return folder.open(own_name, os.O_RDONLY)

    def changed_ns(self, name: str, size_bytes: int) -> int | None:
        """Return the time of the last change of a regular file of this name and size; None if there is none."""
        try:
            with self.folder_of(name) as (folder, own_name):
                status = folder.status(own_name)
        except OSError:
            return None
        is_file = status is not None and stat.S_ISREG(status.st_mode) and status.st_size == size_bytes
        return status.st_mtime_ns if status is not None and is_file else None

    def check_space(self, needed_bytes: int) -> None:
        """Check that the file system has room for this many more bytes."""
        status = os.statvfs(self._root.descriptor)
        free_bytes = status.f_bavail * status.f_frsize
        if status.f_blocks and needed_bytes > free_bytes:  # without blocks, the file system reports no sizes
            message = f"No space: {size_text(needed_bytes)} are needed, and {size_text(free_bytes)} free"
            raise OSError(errno.ENOSPC, message, self.path)


@contextmanager
def open_folder(path: str, on_wait: Callable[[str], None]) -> Iterator[Folder]:
    """Create a folder if it is missing, and lock it against other pulls for a ``with`` block."""
    os.makedirs(path, exist_ok=True)
    with closing(Folder(path)) as folder:
        descriptor = folder.lock_file()
        kind = fcntl.LOCK_SH if folder.is_read_only else fcntl.LOCK_EX
        try:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait(f"another process pulls into {path}: waiting until it has finished")
                fcntl.flock(descriptor, kind)  # Ctrl-C and SIGTERM end the wait
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                _log.warning("%s: this file system has no locks: let one process pull at a time", printable(path))
            yield folder
        finally:
            os.close(descriptor)


def place(folder: Folder, record: PulledFolder, gone: Iterable[str], parts: Iterable[Part]) -> None:
    """Move complete parts to their final names, and remove files that an older pull left."""
    folder.mark()
    whole = {part.name for part in parts}
    for name in set(folder.parts.names()) - whole:  # a part of another version must not replace a file
        folder.parts.remove(name)
    for name in gone:
        folder.remove(name)
    folder.write_record(record, "placing")
    finish_placing(folder)


def finish_placing(folder: Folder) -> None:
    """Finish an interrupted `place`, if there is one; raises as `place`."""
    record = folder.record("placing")
    if record is None:
        return
    folder.forget_record("complete")
    moved = [name for name in record.files if folder.parts.status(name_of_part(name)) is not None]
    last = [name for name in moved if _is_found_by(name)]
    for name in last:
        folder.remove(name)
    for name in [*sorted(set(moved) - set(last)), *sorted(last)]:
        with folder.folder_of(name, is_made=True) as (target, own_name):
            folder.parts.move(name_of_part(name), target, own_name)
    for name in {name.rpartition("/")[0]: name for name in record.files}.values():  # one file of each folder
        with folder.folder_of(name) as (target, _):
            target.flush()
    folder.write_record(record)
    folder.forget_record("placing")
    folder.unmark()
    for name in folder.parts.names():  # notes on the parts that were moved
        folder.parts.remove(name)


def _is_found_by(name: str) -> bool:
    return name.rpartition("/")[2].endswith(FOUND_BY)
