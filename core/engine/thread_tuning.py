"""Chooses the number of threads for sources whose connections limit the throughput: NFS without a mount, and Python.

Each thread waits for a server, or for a file system in Python, most of its time. A few threads are enough for a small
load. More threads pay off in a large load, up to a limit: an NFS server is not faster with more than 16 connections,
and more threads in Python mostly wait for the interpreter.
"""

from __future__ import annotations

from streamer.core.options.settings import Settings

__all__ = ["choose_nfs_threads", "choose_python_threads"]

FEW_NFS_THREADS = 4
FEW_PYTHON_THREADS = 8
MOST_THREADS = 16
BYTES_PER_THREAD = 512 << 20  # one connection transfers them in some seconds


def choose_nfs_threads(settings: Settings, wanted_bytes: int) -> int:
    """Return the number of NFS threads for a load of `wanted_bytes`; an option of the user wins.

    Example:
        >>> from streamer.core.options.settings import resolve
        >>> choose_nfs_threads(resolve(None), 10**9), choose_nfs_threads(resolve(None), 10**11)
        (4, 16)
    """
    return settings.nfs_threads or _follow(FEW_NFS_THREADS, wanted_bytes)


def choose_python_threads(settings: Settings, wanted_bytes: int) -> int:
    """Return the number of Python threads for a load of `wanted_bytes`; an option of the user wins."""
    return settings.python_threads or _follow(FEW_PYTHON_THREADS, wanted_bytes)


def _follow(few: int, wanted_bytes: int) -> int:
    return max(few, min(MOST_THREADS, wanted_bytes // BYTES_PER_THREAD))
