"""A file that several processes need and one of them writes: a draft under a lock, renamed when it is complete.

Guarantees: a reader finds a complete file under the name, or none. If a process dies, its lock ends, and the next
process starts the draft again, so that at most one draft remains. On a file system without locks each process writes
its own draft.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["NO_LOCKS", "LockedDraft", "is_at", "locked_folder"]

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of network file systems without locks


class LockedDraft:
    """One draft; `take` makes it, `finish` or `discard` ends it.

    Attributes:
        name: The path of the draft.
        descriptor: Descriptor of the draft, open for reading and writing.
    """

    def __init__(self, target: str, name: str, descriptor: int) -> None:
        self.name, self.descriptor = name, descriptor
        self._target = target

    @classmethod
    def take(cls, target: str, *, waits: bool = True) -> LockedDraft | None:
        """Begin a draft beside a file.

        Args:
            target: Path of the file. Check whether it exists after this call: another process may just have
                finished it.
            waits: Wait while another process holds the draft; otherwise return None.

        Raises:
            OSError: the folder cannot be written.
        """
        folder, own_name = os.path.split(target)
        name = os.path.join(folder, f".{own_name[:100]}-draft")  # a name has 255 bytes at most
        while True:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except OSError as error:
                os.close(descriptor)
                if isinstance(error, BlockingIOError):
                    return None
                if error.errno not in NO_LOCKS:
                    raise
                name = f"{name}-{secrets.token_hex(4)}"
                descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                return cls(target, name, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            if is_at(descriptor, name):
                os.ftruncate(descriptor, 0)
                return cls(target, name, descriptor)
            os.close(descriptor)  # another process finished or discarded the draft while this process waited

    def finish(self) -> None:
        """Flush the draft to the disk, and rename it to the file."""
        os.fsync(self.descriptor)
        os.replace(self.name, self._target)
        self._close()

    def discard(self) -> None:
        """Remove the draft."""
        with suppress(OSError):
            os.unlink(self.name)
        self._close()

    def _close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


@contextmanager
def locked_folder(path: str) -> Iterator[None]:
    """Exclude other processes that lock the same folder while a block runs; no effect if there are no locks.

    Raises:
        OSError: there is no such folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def is_at(descriptor: int, name: str) -> bool:
    """Whether an open file is still the one that has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(name, follow_symlinks=False))
    return False
