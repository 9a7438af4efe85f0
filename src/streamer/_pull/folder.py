"""The folder that is filled: who fills it, what is in it, and whether that is whole.

In ``.streamer-pull/`` are the lock, the parts that are not whole, and ``complete.json``, the record of a whole pull.
``.streamer-pull-incomplete`` lies beside the files while some of them may be missing.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streamer._pull.names import STATE
from streamer._pull.record import PulledFolder, parse_record, render_record
from streamer.backends.posix.atomic_write import write_atomically
from streamer.core.checkpoint.half_pulled import INCOMPLETE
from streamer.core.quoting import printable, size_text

__all__ = ["Folder", "open_folder"]

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of some network file systems
NOTE = b"python -m streamer pull has not finished here: files may be missing. Run it again with the same URI.\n"

_log = logging.getLogger("streamer")


class Folder:
    """A folder on a disk.

    Args:
        path: Without links.

    Attributes:
        path: As given.
        parts: Where parts lie.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._state = os.path.join(path, STATE)
        self.parts = os.path.join(self._state, "parts")
        self._mark = os.path.join(path, INCOMPLETE)

    def record(self, name: str = "complete") -> PulledFolder | None:
        """Read the record of a whole pull, or another one; None where there is none."""
        try:
            return parse_record(Path(self._state, f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None

    def write_record(self, record: PulledFolder, name: str = "complete") -> None:
        """Write a record, flushed to the disk."""
        write_atomically(os.path.join(self._state, f"{name}.json"), render_record(record))

    def forget_record(self, name: str) -> None:
        """Remove a record."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._state, f"{name}.json"))

    @property
    def is_marked(self) -> bool:
        """Whether the folder says that files may be missing."""
        return os.path.lexists(self._mark)

    def mark(self) -> None:
        """Say that files may be missing."""
        if not self.is_marked:
            write_atomically(self._mark, NOTE)

    def unmark(self) -> None:
        """Say that no file is missing."""
        with suppress(FileNotFoundError):
            os.unlink(self._mark)

    def file(self, name: str) -> str:
        """Give the path of a file.

        Raises:
            NotADirectoryError: a folder on the way is a link, which may lead anywhere, or a file.
        """
        path = self.path
        for segment in name.split("/")[:-1]:
            path = os.path.join(path, segment)
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, "This is no folder, or a link to one", path)
        return os.path.join(self.path, name)

    def has_file(self, name: str, size_bytes: int) -> bool:
        """Whether there is a regular file of this name and size."""
        try:
            status = os.lstat(self.file(name))
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == size_bytes

    def check_space(self, needed_bytes: int) -> None:
        """Check that so many bytes more have room.

        Raises:
            OSError: they do not.
        """
        status = os.statvfs(self.path)
        free_bytes = status.f_bavail * status.f_frsize
        if status.f_blocks and needed_bytes > free_bytes:  # without blocks, the file system does not tell
            message = f"No space: {size_text(needed_bytes)} are needed, and {size_text(free_bytes)} free"
            raise OSError(errno.ENOSPC, message, self.path)


@contextmanager
def open_folder(path: str, on_wait: Callable[[str], None]) -> Iterator[Folder]:
    """Make a folder where it is missing, and keep other pulls out of it for the time of a block.

    Args:
        path: Of the folder; links are followed.
        on_wait: Called with a line where another pull is waited for.

    Raises:
        OSError: it cannot be written.
    """
    folder = Folder(os.path.realpath(path))
    os.makedirs(folder.parts, exist_ok=True)
    descriptor = os.open(os.path.join(folder.path, STATE, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(f"another process pulls into {path}: waiting until it has finished")
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # Ctrl-C and SIGTERM end the wait
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            _log.warning("%s: this file system has no locks: let one process pull at a time", printable(path))
        yield folder
    finally:
        os.close(descriptor)
