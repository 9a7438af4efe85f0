"""A FUSE mount that answers direct reads with less than was asked for, as it may, or counts reads of the page cache.

It speaks the kernel's protocol (linux/fuse.h, version 7) through ``/dev/fuse``: one folder with one file, read-only; no
library is needed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

__all__ = ["FILE", "fuse_mount"]

FILE = "model.safetensors"
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, INIT, OPENDIR, READDIR = 1, 2, 3, 14, 15, 17, 18, 26, 27, 28
BATCH_FORGET, FLUSH, RELEASEDIR = 42, 25, 29
REQUEST, ANSWER = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
MOST_BYTES = 1 << 20  # of a read
MOST_AT_ONCE = 64
ASYNC_READ = 1  # FUSE_ASYNC_READ: the kernel sends several requests for read-ahead of a file
MNT_DETACH = 2
DIRECT_IO = 1  # FOPEN_DIRECT_IO: no read passes through the page cache, so that answers may be short
KEEP_CACHE = 2  # FOPEN_KEEP_CACHE: a process that opens the file later finds the pages of the others, as with NFS


@contextmanager
def fuse_mount(
    folder: Path,
    data: bytes,
    most_bytes: int = MOST_BYTES,
    on_cache_read: Callable[[int, int], object] | None = None,
    *,
    latency_s: float = 0.0,
    read_ahead_requests: int = 0,
) -> Iterator[Path]:
    """Mount at `folder`, and give the path of the file.

    Args:
        folder: An empty folder.
        data: Content of the file.
        most_bytes: Of an answer to a read, however much is asked for.
        on_cache_read: Called with the offset and the bytes of each answer; reads then pass through the page cache.
        latency_s: Time that each read takes; others are answered meanwhile.
        read_ahead_requests: Most requests of the kernel's read-ahead at a time; 0 for one of each file.

    Raises:
        OSError: there is no FUSE here, or no right to mount.
    """
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"short", str(folder).encode(), b"fuse", 0, options) != 0:
        os.close(descriptor)
        raise OSError(ctypes.get_errno(), "FUSE cannot be mounted")
    answer = partial(_answer, data=data, most_bytes=most_bytes, on_cache_read=on_cache_read)
    flags = ASYNC_READ if read_ahead_requests else 0
    limits = (read_ahead_requests or 16,) * 2
    init = struct.pack("=IIIIHHIIHHI28x", 7, 31, MOST_BYTES, flags, *limits, MOST_BYTES, 1, 256, 0, 0)
    answers = _Answers(descriptor, lambda code, *rest: init if code == INIT else answer(code, *rest), latency_s)
    thread = threading.Thread(target=answers.serve, name="fuse", daemon=True)
    thread.start()
    try:
        yield folder / FILE
    finally:
        libc.umount2(str(folder).encode(), MNT_DETACH)
        thread.join(10)
        os.close(descriptor)


class _Answers:
    def __init__(self, descriptor: int, answer_to: Callable[[int, int, bytes], bytes | int], latency_s: float) -> None:
        self._descriptor, self._answer_to, self._latency_s = descriptor, answer_to, latency_s

    def serve(self) -> None:
        """Answer until the file system is unmounted."""
        with ThreadPoolExecutor(MOST_AT_ONCE, "fuse") as pool:
            while (request := self._next()) is not None:
                _, code, unique, node, *_ = REQUEST.unpack_from(request)
                body = request[REQUEST.size :]
                if code in (FORGET, BATCH_FORGET):  # which have no answer
                    continue
                if code == READ and self._latency_s:
                    pool.submit(self._answer_later, code, unique, node, body)
                else:
                    self._answer(code, unique, node, body)

    def _next(self) -> bytes | None:
        """Return the next request; None if the file system is unmounted, or was used for longer than its end waits."""
        while True:
            try:
                return os.read(self._descriptor, MOST_BYTES + 4096)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.EBADF):
                    return None
                if error.errno not in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # ENOENT: an interrupted request
                    raise

    def _answer_later(self, code: int, unique: int, node: int, body: bytes) -> None:
        time.sleep(self._latency_s)
        self._answer(code, unique, node, body)

    def _answer(self, code: int, unique: int, node: int, body: bytes) -> None:
        answer = self._answer_to(code, node, body)
        content = answer if isinstance(answer, bytes) else b""
        failure = 0 if isinstance(answer, bytes) else -answer
        with suppress(OSError):  # nobody waits any more: the request was interrupted, or the file system is unmounted
            os.write(self._descriptor, ANSWER.pack(ANSWER.size + len(content), failure, unique) + content)


def _answer(
    code: int, node: int, body: bytes, data: bytes, most_bytes: int, on_cache_read: Callable[[int, int], object] | None
) -> bytes | int:
    """Return the body of an answer, or an errno."""
    if code == LOOKUP:
        if body.rstrip(b"\0").decode() != FILE:
            return errno.ENOENT
        return struct.pack("=QQQQII", 2, 0, 60, 60, 0, 0) + _attributes(2, data)
    if code == GETATTR:
        return struct.pack("=QII", 60, 0, 0) + _attributes(node, data)
    if code in (OPEN, OPENDIR):
        flags = KEEP_CACHE if on_cache_read else DIRECT_IO
        return struct.pack("=QII", 1, flags if code == OPEN else 0, 0)
    if code == READ:
        _, offset, size = struct.unpack_from("=QQI", body)
        content = data[offset : offset + min(size, most_bytes)]
        if on_cache_read:
            on_cache_read(offset, len(content))
        return content
    if code == READDIR:
        _, offset = struct.unpack_from("=QQ", body)
        name = FILE.encode()
        entry = struct.pack("=QQII", 2, 1, len(name), stat.S_IFREG >> 12) + name
        return b"" if offset else entry + bytes(-len(entry) % 8)
    if code == STATFS:
        return struct.pack("=QQQQQIIII24x", 0, 0, 0, 0, 0, 512, 255, 0, 0)
    if code in (RELEASE, RELEASEDIR, FLUSH):
        return b""
    return errno.ENOSYS


def _attributes(node: int, data: bytes) -> bytes:
    mode, size = (stat.S_IFDIR | 0o755, 0) if node == 1 else (stat.S_IFREG | 0o644, len(data))
    times = (1_700_000_000,) * 3
    return struct.pack("=QQQQQQIIIIIIIIII", node, size, size // 512, *times, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
