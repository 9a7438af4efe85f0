"""The folder that a pull fills: its lock, its files, whether they are complete, and how they get their final names.

``.streamer-pull/`` holds the lock, the parts of unfinished files, and ``complete.json``, the record of a complete pull.
The file ``.streamer-pull-incomplete`` lies in the folder while files may be missing.

While the engine reads, threads write files: one thread writes a file, in order. Guarantees: the first failure stops all
writing, and is raised by `put` or `finish`. `close` waits at most a second for a disk that hangs. A hanging thread does
not delay the exit of the interpreter.

While `place` moves files to their final names, the folder has the mark that it is incomplete. For readers that do not
check the mark, the files by which models are found (configurations, indexes) are removed first and placed last. The
next pull finishes an interrupted `place`, and needs no byte of the storage for this.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from types import TracebackType
from typing import Protocol, TypeAlias

from streamer._pull.listing import STATE
from streamer._pull.record import PulledFolder, parse_record, render_record
from streamer._pull.resumed_file import NOTE_SUFFIX, PartFile, name_of_part
from streamer.core.folders.drafts import NO_LOCKS
from streamer.core.folders.open_folder import OpenFolder
from streamer.core.log import OwnLogger
from streamer.core.quoting import printable, quoted, size_text
from streamer.core.shards.missing import INCOMPLETE
from streamer.core.store.parallel import no_thread_error

NOTE = b"python -m streamer pull has not finished here: files may be missing. Run it again with the same URI.\n"

_log = OwnLogger()

READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

FOUND_BY = ("config.json", "model_index.json", ".index.json")  # suffixes of the files by which models are found


class Folder:
    """An open folder on a disk, with its sub-folders for the pull's state and for parts; names are relative to it."""

    is_read_only = False

    def __init__(self, path: str) -> None:
        self.path = path  # the path that the caller passed
        with ExitStack() as opened:
            self._root = opened.enter_context(OpenFolder(path))
            self._state = opened.enter_context(self._root.inner(STATE, is_made=True))
            self.parts = opened.enter_context(self._state.inner("parts", is_made=True))  # the sub-folder of parts
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
            # Whether the lock file could be read, but not written.
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


class _FolderToBe(Folder):
    """A folder that no pull has filled yet, and that may not exist; nothing is opened or written."""

    def __init__(self, path: str) -> None:
        self.path = path

    def close(self) -> None:
        pass

    def record(self, name: str = "complete") -> None:
        del name

    def changed_ns(self, name: str, size_bytes: int) -> None:
        del name, size_bytes


def folder_to_look_at(path: str) -> Folder:
    """Open a folder for a plan, which writes nothing into it."""
    return Folder(path) if os.path.isdir(os.path.join(path, STATE, "parts")) else _FolderToBe(path)


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


def place(folder: Folder, record: PulledFolder, gone: Iterable[str], parts: Iterable[PartFile]) -> None:
    """Move complete parts to their final names, and remove files that an older pull left."""
    folder.mark()
    whole = {part.name for part in parts}
    # A part of another version must not replace a file. Without its note, a whole part would be read again.
    for name in folder.parts.names():
        if name.removesuffix(NOTE_SUFFIX) not in whole:
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


THREADS = 4  # while one thread waits for a flush, others write
WAITING = 2  # pieces of at most 8 MiB in the queue of each thread
CLOSE_TIMEOUT_S = 1.0
SHOWN_EVERY_S = 0.2  # the interval at which progress is shown


class FileWriter(Protocol):
    """One file that is written."""

    def write(self, data: memoryview) -> None:
        """Write the next bytes."""

    def finish(self) -> None:
        """Finish the file: all bytes are written."""

    def close(self) -> None:
        """Close the file."""


_Task: TypeAlias = tuple[FileWriter, memoryview | None] | None  # None ends the thread


class Writers:
    """Writes pieces in the order of `put`; one thread writes all pieces of a file."""

    def __init__(self, files: Sequence[FileWriter], on_wait: Callable[[], None]) -> None:
        self._files, self._on_wait = files, on_wait
        self._queues = [queue.Queue[_Task](WAITING) for _ in range(THREADS)]
        self._failure: BaseException | None = None
        self._is_stopped = False
        self._threads = [
            threading.Thread(target=self._work, args=(each,), name=f"streamer-write{number}", daemon=True)
            for number, each in enumerate(self._queues)
        ]
        for started, thread in enumerate(self._threads):
            try:
                thread.start()
            except RuntimeError as error:
                self._threads = self._threads[:started]
                self.close()
                raise no_thread_error() from error

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def put(self, number: int, data: memoryview | None) -> None:
        """Queue a piece for writing, or with None the end of the file."""
        self._check()
        self._put(self._queues[number % THREADS], (self._files[number], data))

    def finish(self) -> None:
        """Wait until everything is written; raises as `put`."""
        for each in self._queues:
            self._put(each, None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(SHOWN_EVERY_S)
                self._on_wait()
        self._check()

    def close(self) -> None:
        """Stop the threads, and close the files."""
        self._is_stopped = True
        for each in self._queues:
            try:
                each.put_nowait(None)
            except queue.Full:  # the thread is busy, and checks `_is_stopped` afterwards
                continue
        end = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            for file in self._files:
                file.close()

    def _put(self, tasks: queue.Queue[_Task], task: _Task) -> None:
        """Put a task into a queue; wait for room, which takes long while a thread reads kept bytes."""
        while True:
            try:
                tasks.put(task, timeout=SHOWN_EVERY_S)
            except queue.Full:
                self._on_wait()
            else:
                return

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self, tasks: queue.Queue[_Task]) -> None:
        while not self._is_stopped and (task := tasks.get()) is not None:
            if self._failure is not None:
                continue
            file, data = task
            del task
            try:
                if data is None:
                    file.finish()
                else:
                    file.write(data)
            except BaseException as error:  # raised again in `put` or `finish`
                self._failure = error
            del file, data
