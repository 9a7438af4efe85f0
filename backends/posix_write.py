"""A small file written whole or not at all: whoever opens its name finds the old one or the new one."""

from __future__ import annotations

import os
from contextlib import suppress
from tempfile import mkstemp

__all__ = ["write_atomically"]

MODE = 0o666  # before the umask, as for any new file; mkstemp's own would keep it from every other user


def write_atomically(path: str, data: bytes) -> None:
    """Write a file beside `path`, bring it to the disk, and rename it to `path`.

    Raises:
        OSError: the folder may not be written, or the disk is full; nothing is left behind.
    """
    folder, name = os.path.split(path)
    descriptor, made = mkstemp(prefix=f".{name[:100]}-", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), MODE & ~_umask())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(made)
        raise
    _sync_folder(folder)


def _umask() -> int:
    """Read the umask without changing it, even for a moment that another thread could see (proc(5), Linux 4.7)."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next((int(line.split()[1], 8) for line in file if line.startswith("Umask:")), 0o022)


def _sync_folder(folder: str) -> None:
    """The new name itself must reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems have no such call
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
