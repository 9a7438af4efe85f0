"""A folder by its descriptor: the kernel resolves the path once, and then each name from the open folder (``openat``).

Guarantees: all calls reach the same folder, even if its path is renamed or links of the path change. Links such as
``/proc/PID/root`` work, although their text leads nowhere. No link inside of the folder is followed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from streamer.core.folders.drafts import new_draft_name
from streamer.core.folders.paths import disk_name, text_of

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MOST_PARENTS = 4096  # a path has 4096 characters at most


class OpenFolder:
    """An open folder; names in it are text, and errors name files by the folder's path and the name.

    Attributes:
        path: The argument, for messages.
        descriptor: Descriptor of the folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = os.open(path, _FOLDER)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def inner(self, name: str, *, is_made: bool = False) -> OpenFolder:
        """Open a folder in this one."""
        inner = object.__new__(OpenFolder)
        inner.path, inner.descriptor = os.path.join(self.path, name), -1
        if is_made:
            with self._naming(name), suppress(FileExistsError):
                os.mkdir(disk_name(name), dir_fd=self.descriptor)
        try:
            with self._naming(name):
                inner.descriptor = os.open(disk_name(name), _FOLDER | os.O_NOFOLLOW, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise NotADirectoryError(errno.ENOTDIR, "This is no folder, or a link to one", inner.path) from None
            raise
        return inner

    def open(self, name: str, flags: int) -> int:
        """Open a file and return its descriptor."""
        with self._naming(name):
            return os.open(disk_name(name), flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=self.descriptor)

    def read(self, name: str) -> bytes:
        """Read a whole file."""
        with self._naming(name), open(self.open(name, os.O_RDONLY), "rb") as file:
            return file.read()

    def write_atomically(self, name: str, data: bytes, *, is_flushed: bool = True) -> None:
        """Write a file under another name, and rename it; raises as the function `write_atomically`."""
        draft = new_draft_name(name)
        try:
            with self._naming(name), open(self.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(data)
                if is_flushed:
                    file.flush()
                    os.fsync(file.fileno())
            self.move(draft, self, name)
        except BaseException:
            with suppress(OSError):
                os.unlink(disk_name(draft), dir_fd=self.descriptor)
            raise
        if is_flushed:
            self.flush()

    def move(self, name: str, target: OpenFolder, new_name: str) -> None:
        """Rename a file, within this folder or into another folder; an existing file of that name is replaced."""
        with target._naming(new_name):
            os.replace(disk_name(name), disk_name(new_name), src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file; do nothing if it does not exist."""
        with self._naming(name), suppress(FileNotFoundError):
            os.unlink(disk_name(name), dir_fd=self.descriptor)

    def status(self, name: str) -> os.stat_result | None:
        """Describe a file, or the link of this name; None if there is neither."""
        try:
            with self._naming(name):
                return os.stat(disk_name(name), dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """List the names in the folder."""
        with self._naming(""):
            return [text_of(name) for name in os.listdir(self.descriptor)]

    def flush(self) -> None:
        """Flush new names to the disk."""
        with suppress(OSError):  # some network file systems have no such call
            os.fsync(self.descriptor)

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Put the whole path into an error, because the operating system only sees the name."""
        try:
            yield
        except OSError as error:
            error.filename, error.filename2 = os.path.join(self.path, name) if name else self.path, None
            raise


def are_in_one_another(path: str, other: str) -> bool:
    """Say whether two paths name the same folder, or one lies in the other, even through links.

    Two folders are the same if device and inode are equal. The texts of paths are not compared, because links and
    mounts change where a path leads. If a path does not exist yet, its last existing folder is used.

    Example:
        >>> are_in_one_another("/usr", "/usr/none/such"), are_in_one_another("/usr", "/etc")
        (True, False)
    """
    own, others = _lineage(path), _lineage(other)
    return (os.path.isdir(path) and own[0] in others) or (os.path.isdir(other) and others[0] in own)


def _lineage(path: str) -> list[tuple[int, int]]:
    """Identify the last existing folder of a path and all folders above it, up to the root or an inaccessible one."""
    while not os.path.isdir(path or os.curdir):
        path = os.path.dirname(path.rstrip("/"))
    descriptor = os.open(path or os.curdir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    lineage: list[tuple[int, int]] = []
    try:
        # The parent (..) of the root is the root itself.
        while (here := _identity(descriptor)) not in lineage[-1:] and len(lineage) < MOST_PARENTS:
            lineage.append(here)
            with suppress(PermissionError):
                upper = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = upper
    finally:
        os.close(descriptor)
    return lineage


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
