"""Objects as files on a disk: whole under their names, or not there.

Guarantees: a file gets its name when all its bytes are in it; a download that fails leaves nothing. What is no regular
file (a pipe, a device) is written to as it is. Of a link, the file that it leads to is replaced, or
written to where only the kernel can follow the link (``/proc/PID/fd/3``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from streamer.backends.posix.atomic_write import draft_of
from streamer.backends.posix.links import followed
from streamer.integrations.fsspec.pinned_object import PinnedObject
from streamer.integrations.fsspec.ranges import read_ranges

if TYPE_CHECKING:
    from fsspec.callbacks import Callback

__all__ = ["download", "download_small", "is_small", "write_to"]

AT_A_TIME = 32  # small objects: 128 MiB at most
SMALL_BYTES = 4 << 20  # larger ones are worth a session of their own


def download(pinned: PinnedObject, path: str, callback: Callback) -> None:
    """Write an object to a file; its folder is made where it is missing.

    Raises:
        ChangedError: the object was replaced meanwhile.
        StorageError: and its kinds, from the storage.
        OSError: the file cannot be written.
    """
    callback.set_size(pinned.size_bytes)
    with _destination(path) as name, open(name, "wb", buffering=0) as file:
        is_seekable = file.seekable()
        with closing(pinned.stream(0, in_order=not is_seekable)) as stream:
            for offset, piece in stream.pieces():
                if is_seekable:
                    file.seek(offset)
                _write(file, piece)
                callback.relative_update(piece.nbytes)


def is_small(pinned: PinnedObject) -> bool:
    """Whether an object is better read together with others."""
    return pinned.size_bytes <= SMALL_BYTES


def download_small(objects: Mapping[str, PinnedObject]) -> Iterator[str]:
    """Write small objects to files, some of them in each session of the engine; give each path when it is written.

    Args:
        objects: By the paths of their files.

    Raises:
        StorageError: and its kinds, from the storage.
        OSError: a file cannot be written.
    """
    for first in range(0, len(objects), AT_A_TIME):
        some = dict(list(objects.items())[first : first + AT_A_TIME])
        for path, content in zip(some, read_ranges(some, [(path, None, None) for path in some], None), strict=True):
            if not isinstance(content, bytes):
                raise content
            with _destination(path) as name, open(name, "wb", buffering=0) as file:
                _write(file, memoryview(content))
            yield path


def write_to(pinned: PinnedObject, file: Any, callback: Callback) -> None:
    """Write an object to an open file, in order; raises as `download`."""
    callback.set_size(pinned.size_bytes)
    with closing(pinned.stream(0)) as stream:
        for _, piece in stream.pieces():
            file.write(bytes(piece))  # a file of somebody's own may keep what it gets
            callback.relative_update(piece.nbytes)


@contextmanager
def _destination(path: str) -> Iterator[str]:
    target = followed(path)
    if folder := os.path.dirname(target):
        os.makedirs(folder, exist_ok=True)
    if os.path.exists(target) and (not os.path.isfile(target) or os.path.islink(target)):
        yield target
        return
    with draft_of(target, is_flushed=False) as draft:
        yield draft


def _write(file: Any, piece: memoryview) -> None:
    while piece.nbytes:  # a system call writes 2 GiB at most, and what there is room for
        piece = piece[file.write(piece) :]
