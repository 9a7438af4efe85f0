"""The file that one upload writes before it has its name: under a lock, so that what a killed process left is found.

Guarantees: a draft that a process still writes is never removed by another, on a file system with locks.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from contextlib import suppress

from streamer.backends.posix.locked_draft import NO_LOCKS, is_at
from streamer.core.checkpoint.sharding import is_usual_shard

__all__ = ["OwnDraft"]

_DRAFT = re.compile(r"\.(.+)-[0-9a-f]{8}")


class OwnDraft:
    """A new file; it ends with `close`, once it has its name or is removed.

    Args:
        folder: Where it lies.
        name: That it will have.

    Attributes:
        path: Of the draft.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._descriptor = -1
        while self._descriptor < 0:
            self.path = os.path.join(folder, f".{name[:100]}-{secrets.token_hex(4)}")  # a name has 255 bytes at most
            self._descriptor = _locked(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)

    def flush(self) -> None:
        """Flush its bytes to the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Give the lock up."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    @staticmethod
    def remove_left(folder: str, name: str) -> None:
        """Remove the drafts of this file, and of shards, that processes have left which were killed."""
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                match = _DRAFT.fullmatch(entry.name)
                if match is None or not (match[1] == name[:100] or is_usual_shard(match[1])):
                    continue
                with suppress(OSError):  # another process writes it, or has removed it
                    descriptor = _locked(entry.path, os.O_WRONLY | os.O_NOFOLLOW, needs_lock=True)
                    if descriptor >= 0:
                        os.unlink(entry.path)
                        os.close(descriptor)


def _locked(path: str, flags: int, *, needs_lock: bool = False) -> int:
    """Open a file under a lock; return -1 if another process was quicker."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return -1
    except OSError as error:
        if needs_lock or error.errno not in NO_LOCKS:
            os.close(descriptor)
            raise
        return descriptor
    if is_at(descriptor, path):
        return descriptor
    os.close(descriptor)
    return -1
