"""Writes files under another name until they are complete: a reader sees the old file or the new one, never a part.

There are two kinds of drafts. Several processes need a `LockedDraft`, and one of them writes it; a single upload writes
an `OwnDraft`. Both are locked. Guarantees: a reader finds a complete file under the name, or none. If a process dies,
its lock ends, and the next process starts the draft again or removes it. If the file system has locks, no process
removes a draft that another process still writes. If it has none, each process writes its own draft.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from streamer.core.folders.paths import followed, is_replaceable
from streamer.core.format.shard_names import is_usual_shard

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of network file systems without locks

LONGEST_STEM_BYTES = 100
# Other tools have such names without this word.
_DRAFT = re.compile(r"\.(.+)-streamer-[0-9a-f]{8}", re.DOTALL)


def new_draft_name(name: str) -> str:
    """Return a new name for the draft of a file."""
    return f".{_stem_of(name)}-{secrets.token_hex(4)}"


def _stem_of(name: str) -> str:
    """Return as many whole characters of a name as have 100 bytes at most: the name of a file has 255."""
    while len(os.fsencode(name)) > LONGEST_STEM_BYTES:
        name = name[:-1]
    return name


def write_atomically(path: str, data: bytes) -> None:
    """Write a file beside `path`, flush it to the disk, and rename it to `path`."""
    with draft_of(path) as draft, open(draft, "xb") as file:
        file.write(data)
    sync_folder(os.path.dirname(path))


@contextmanager
def draft_of(path: str, *, is_flushed: bool = True) -> Iterator[str]:
    """Yield a new name in the folder of `path`; at the end, the file of that name is flushed and renamed to `path`."""
    folder, name = os.path.split(path)
    draft = os.path.join(folder, new_draft_name(name))
    try:
        yield draft
        if is_flushed:
            with open(draft, "rb") as file:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(draft)
        if isinstance(error, OSError) and error.filename == draft:
            error.filename = path  # a user knows no drafts
        raise


@contextmanager
def output_of(path: str) -> Iterator[str]:
    """Yield the name under which a user's output is written: a draft; for a device, a FIFO or a socket, its own path.

    A link is followed, so that the file to which it leads is replaced, and the link stays.
    """
    target = followed(path)
    if not is_replaceable(target):
        yield target
        return
    with draft_of(target, is_flushed=False) as draft:
        yield draft


def sync_folder(folder: str) -> None:
    """Flush the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems have no such call
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        """Begin a draft beside a file."""
        folder, own_name = os.path.split(target)
        name = os.path.join(folder, f".{_stem_of(own_name)}-draft")
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

    def finish(self, *, is_flushed: bool = True) -> None:
        """Flush the draft to the disk, and rename it to the file."""
        if is_flushed:
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
    """Exclude other processes that lock the same folder while a block runs; no effect if there are no locks."""
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
    """Say whether the name still belongs to the open file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(name, follow_symlinks=False))
    return False


class OwnDraft:
    """A new file that one upload writes; call `close` after the file is renamed or removed.

    Attributes:
        path: The path of the draft.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._descriptor = -1
        while self._descriptor < 0:
            own_name = f".{_stem_of(name)}-streamer-{secrets.token_hex(4)}"
            self.path = os.path.join(folder, own_name)
            self._descriptor = _locked(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)

    @property
    def open_path(self) -> str:
        """A path that leads to the file until `close`, whatever its name is then."""
        return f"/proc/self/fd/{self._descriptor}"

    def take_permissions(self, path: str, *, and_of_owner: bool = False) -> None:
        """Give the draft the permissions of another file, if the file system has any."""
        with suppress(OSError):
            os.fchmod(self._descriptor, os.stat(path).st_mode & 0o777 | (0o600 if and_of_owner else 0))

    def flush(self) -> None:
        """Flush the bytes of the draft to the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    @staticmethod
    def remove_left(folder: str, name: str) -> None:
        """Remove the drafts of this file, and of shards, that killed processes have left."""
        stem = _stem_of(name)
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                match = _DRAFT.fullmatch(entry.name)
                if match is None or not (match[1] == stem or is_usual_shard(match[1])):
                    continue
                with suppress(OSError):  # another process writes it, or has removed it
                    descriptor = _locked(entry.path, os.O_WRONLY | os.O_NOFOLLOW, needs_lock=True)
                    if descriptor >= 0:
                        os.unlink(entry.path)
                        os.close(descriptor)


def _locked(path: str, flags: int, *, needs_lock: bool = False) -> int:
    """Open and lock a file; return -1 if another process has locked it."""
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
