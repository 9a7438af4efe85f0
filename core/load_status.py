"""What the loads of this process do at the moment, on a page of shared memory, for ``python -m streamer ps``.

Guarantees: no function here raises or waits; if the page cannot be made, nothing is written. The page is a file of this
user alone, of a fixed size, and goes with the process. A load that ends soon writes no more than its stages.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path("/dev/shm")  # noqa: S108  the file is made for this user, and must not exist before
# Stages: waits for bytes; the consumer has the tensors; waits for other ranks; looks the checkpoint up.
READING, CONSUMER, RANKS, LOCATING = 1, 2, 3, 4
BOOT = Path("/proc/sys/kernel/random/boot_id")
SLOTS, SLOT_BYTES, HEAD_BYTES = 16, 1024, 64  # further loads of a process are not shown
PAGE_BYTES = HEAD_BYTES + SLOTS * SLOT_BYTES
SHOWN_AFTER_S = 0.2
WRITTEN_EVERY_S = 0.05  # one text takes 10 µs
SHORTEST_US = 100  # what a consumer does in less time is not in a trace
LEAST_BYTES = 1 << 20  # smaller reads, such as headers, are shown only if they take longer than `SHOWN_AFTER_S`
_HEAD = struct.Struct("<8sQ")  # the magic bytes, and the time at which the process began, by the kernel
_STAGE = struct.Struct("<Bxxxxxxxd")  # the stage, 0 for an empty slot, and its begin by the monotonic clock
_TEXT = struct.Struct("<QI")  # even if the text is complete, and the bytes of the text
_MAGIC = b"streamr1"
_TEXT_AT = _STAGE.size + _TEXT.size


def now_us() -> int:
    """Return the time of this moment in microseconds, as the events of a trace have it."""
    return time.monotonic_ns() // 1000


class LoadStatus:
    """The status of one load, or of a step of one.

    Args:
        label: What is loaded, without secrets.
        total_bytes: The bytes that are read.
        stage: The first stage. A load that locates its checkpoint is shown at once.
        is_shown: False if the load has a status elsewhere.
        watchers: They are told of each stage, too (see streamer/core/trace/watcher.py).
    """

    def __init__(
        self, label: str, total_bytes: int, stage: int = READING, *, is_shown: bool = True, watchers: Sequence[Any] = ()
    ) -> None:
        self._watchers, self._is_shown = watchers, is_shown
        self._facts: dict[str, Any] = {"uri": label[:300], "total_bytes": total_bytes}
        self.total_bytes = total_bytes
        self._written = self._since = time.monotonic()
        self._stage = stage
        self._at: int | None = None
        self._page: mmap.mmap | None = None
        self._process = os.getpid()
        if is_shown and (total_bytes >= LEAST_BYTES or stage == LOCATING):
            self._claim()

    def enter(self, stage: int, since: float | None = None) -> None:
        """Note that a stage begins, or goes on since then."""
        if self._watchers and self._process == os.getpid():
            for each in self._watchers:
                each.enter(stage)
        if stage != self._stage and self._process == os.getpid():
            self._stage, self._since = stage, since or time.monotonic()
            if self._page is not None and self._at is not None:
                _STAGE.pack_into(self._page, self._at, stage, self._since)

    @contextmanager
    def during(self, stage: int) -> Iterator[None]:
        """Show a stage during a block; the former one goes on after it."""
        before = self._stage, self._since
        self.enter(stage)
        try:
            yield
        finally:
            self.enter(*before)

    def update(self, facts: Callable[[], dict[str, Any]]) -> None:
        """Write facts, if it is time; the function is called only then."""
        for each in self._watchers:
            each.look()
        now = time.monotonic()
        if now < self._written + (WRITTEN_EVERY_S if self._at is not None else SHOWN_AFTER_S):
            return
        self._written = now
        if self._at is None and self._is_shown and self._process == os.getpid():
            self._claim()
        if self._at is not None and self._process == os.getpid():
            self.note(facts())

    def note(self, facts: Mapping[str, Any]) -> None:
        """Write facts at once."""
        self._facts |= facts
        if self._at is not None and self._process == os.getpid():
            self._write()

    def fail(self, error: BaseException) -> None:
        """Note the error that ends the load."""
        for each in self._watchers:
            each.fail(error)

    def close(self) -> None:
        """Free the slot; it may be called again."""
        watchers, self._watchers = self._watchers, ()
        for each in watchers if self._process == os.getpid() else ():
            each.end()
        at, self._at = self._at, None
        if at is not None and self._page is not None and self._process == os.getpid():
            _STAGE.pack_into(self._page, at, 0, 0.0)
            _PAGES.free(at)
        self._process = 0  # nothing is written any more

    def _claim(self) -> None:
        claimed = _PAGES.claim()
        if claimed is not None:
            self._page, self._at = claimed
            self._write()
            _STAGE.pack_into(self._page, self._at, self._stage, self._since)

    def _write(self) -> None:
        assert self._page is not None
        assert self._at is not None
        text = json.dumps(self._facts).encode()
        if len(text) > SLOT_BYTES - _TEXT_AT:
            facts = {name: each for name, each in self._facts.items() if isinstance(each, int)}
            text = json.dumps({**facts, "uri": f"…{self._facts['uri'][-60:]}"}).encode()
        number = _TEXT.unpack_from(self._page, self._at + _STAGE.size)[0] | 1
        _TEXT.pack_into(self._page, self._at + _STAGE.size, number, len(text))
        self._page[self._at + _TEXT_AT : self._at + _TEXT_AT + len(text)] = text
        _TEXT.pack_into(self._page, self._at + _STAGE.size, number + 1, len(text))


class _Pages:
    """The page of this process, made with its first load; a forked child makes its own."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._process = 0
        self._page: mmap.mmap | None = None
        self._free: list[int] = []

    def claim(self) -> tuple[mmap.mmap, int] | None:
        if not self._guard.acquire(timeout=0.01):  # it may have been held during a fork
            return None
        try:
            if self._process != os.getpid():
                self._process, self._page = os.getpid(), _made()
                self._free = [HEAD_BYTES + number * SLOT_BYTES for number in range(SLOTS)]
            return (self._page, self._free.pop(0)) if self._page is not None and self._free else None
        finally:
            self._guard.release()

    def free(self, at: int) -> None:
        self._free.append(at)


_PAGES = _Pages()


def _made() -> mmap.mmap | None:
    path = page_of(os.getpid())
    try:
        with suppress(FileNotFoundError):  # of an earlier process with this number
            os.unlink(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, PAGE_BYTES)  # a write to a page without room would end the process
            page = mmap.mmap(descriptor, PAGE_BYTES)
        finally:
            os.close(descriptor)
        _HEAD.pack_into(page, 0, _MAGIC, began_at(os.getpid()) or 0)
    except (OSError, ValueError):
        _remove(os.getpid())
        return None
    atexit.register(_remove, os.getpid())
    return page


def _remove(process: int) -> None:
    if process == os.getpid():  # not in a forked child
        with suppress(OSError):
            os.unlink(page_of(process))


def page_of(process: int) -> Path:
    """Return the path of a process's page."""
    return FOLDER / f"streamer-status-{os.geteuid()}-{process}"


def began_at(process: int) -> int | None:
    """Return when a process began, in ticks of the kernel; None if there is none."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def machine() -> str:
    """Name the machine and the PID namespace in which a number names a process; empty if that is not known."""
    with suppress(OSError):
        return f"{BOOT.read_text().strip()}-{os.stat('/proc/self/ns/pid').st_ino}"
    return ""


class Load(NamedTuple):
    """One load on a page."""

    slot: int  # where on the page; another load may have the same one later
    stage: int
    since: float  # when the stage began, by the monotonic clock
    facts: dict[str, Any]


def read_page(data: bytes) -> tuple[int, list[Load]] | None:
    """Return when the process of a page began, and its loads; None if it is no page."""
    if len(data) != PAGE_BYTES or data[:8] != _MAGIC:
        return None
    loads = []
    for at in range(HEAD_BYTES, PAGE_BYTES, SLOT_BYTES):
        stage, since = _STAGE.unpack_from(data, at)
        number, size = _TEXT.unpack_from(data, at + _STAGE.size)
        if not stage:
            continue
        try:
            facts = json.loads(data[at + _TEXT_AT : at + _TEXT_AT + size]) if number % 2 == 0 else {}
        except ValueError:  # it was being written
            facts = {}
        loads.append(Load(at, stage, since, facts if isinstance(facts, dict) else {}))
    return _HEAD.unpack_from(data)[1], loads
