"""Frees what the process keeps between loads: pinned memory for copies to devices, and connections to servers."""

from __future__ import annotations

from streamer import _native


def release() -> None:
    """Close the connections to HTTP servers and free the pinned host memory that the process keeps between loads.

    Loads in progress keep theirs. Without this call, a connection is closed once no load has used it for a minute;
    pinned memory is kept until the process ends. The next load connects and pins again.

    Example:
        >>> release()
    """
    _native.release_connections()
    _native.cuda_release_pinned()


def release_pinned_memory() -> int:
    """Free the pinned host memory that the process keeps between loads to CUDA devices.

    Memory of a load in progress is not freed. The next load pins its memory again, at about 3 GB/s.

    Returns:
        The bytes that were freed.

    Example:
        >>> release_pinned_memory()
        0
    """
    return _native.cuda_release_pinned()
