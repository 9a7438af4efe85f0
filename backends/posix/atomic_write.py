"""Writes files atomically: a reader sees the old file or the new file, never a part of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["draft_of", "sync_folder", "write_atomically"]


def write_atomically(path: str, data: bytes) -> None:
    """Write a file beside `path`, flush it to the disk, and rename it to `path`.

    Raises:
        OSError: the folder may not be written, or the disk is full; no file is left behind.
    """
    with draft_of(path) as draft, open(draft, "xb") as file:
        file.write(data)
    sync_folder(os.path.dirname(path))


@contextmanager
def draft_of(path: str, *, is_flushed: bool = True) -> Iterator[str]:
    """Yield a new name in the folder of `path`; at the end, the file of that name is flushed and renamed to `path`.

    Args:
        path: Path of the file.
        is_flushed: Without it, a crash of the machine may leave a partial file; a crash of this process never does.

    Raises:
        OSError: the disk is full, or failed. After this and any other exception the draft is removed.
    """
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name[:100]}-{secrets.token_hex(4)}")  # a name has 255 bytes at most
    try:
        yield draft
        if is_flushed:
            with open(draft, "rb") as file:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def sync_folder(folder: str) -> None:
    """Flush the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems have no such call
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
