"""Objects as files on a disk: whole under their names, or not there.

Guarantees: a file gets its name when all its bytes are in it; a download that fails leaves nothing. What is no regular
file (a pipe, a device) is written to as it is. Of a link, the file that it leads to is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from streamer.backends.posix.atomic_write import draft_of
from streamer.integrations.fsspec.pinned_object import PinnedObject

if TYPE_CHECKING:
    from fsspec.callbacks import Callback

__all__ = ["download", "write_to"]


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


def write_to(pinned: PinnedObject, file: Any, callback: Callback) -> None:
    """Write an object to an open file, in order; raises as `download`."""
    callback.set_size(pinned.size_bytes)
    with closing(pinned.stream(0)) as stream:
        for _, piece in stream.pieces():
            file.write(bytes(piece))  # a file of somebody's own may keep what it gets
            callback.relative_update(piece.nbytes)


@contextmanager
def _destination(path: str) -> Iterator[str]:
    target = os.path.realpath(path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.exists(target) and not os.path.isfile(target):
        yield target
        return
    with draft_of(target, is_flushed=False) as draft:
        yield draft


def _write(file: Any, piece: memoryview) -> None:
    while piece.nbytes:  # a system call writes 2 GiB at most, and what there is room for
        piece = piece[file.write(piece) :]
