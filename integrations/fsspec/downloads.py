"""Downloads objects to files on a disk, which get their names only when they are complete.

Guarantees: a file gets its name after all its bytes are written; a failed download leaves nothing. A pipe or a device
is written to directly. If the path is a link, the file that it leads to is replaced; it is written to directly if only
the kernel can follow the link (``/proc/PID/fd/3``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from streamer.core.folders.drafts import draft_of
from streamer.core.folders.paths import followed
from streamer.integrations.fsspec.pinned_object import PinnedObject
from streamer.integrations.fsspec.ranges import read_ranges

if TYPE_CHECKING:
    from fsspec.callbacks import Callback

__all__ = ["download", "download_small", "is_small", "write_to"]

AT_A_TIME = 32  # small objects in one session: 128 MiB at most
SMALL_BYTES = 4 << 20  # larger objects get a session of their own


def download(pinned: PinnedObject, path: str, callback: Callback) -> None:
    """Write an object to a file; create its folder if it is missing."""
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
    """Whether an object is read together with others."""
    return pinned.size_bytes <= SMALL_BYTES


def download_small(objects: Mapping[str, PinnedObject]) -> Iterator[str]:
    """Write small objects to files, several in each session of the engine; yield each path when it is written."""
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
            file.write(bytes(piece))  # another class of file may keep the object it gets
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
    while piece.nbytes:  # a system call writes at most 2 GiB, and may write less
        piece = piece[file.write(piece) :]
