"""Bounds of a load: bytes and time of a server's answers, because an answer may never end, and the time of all of it.

Each store enforces the bounds by its own means; `Options` gives their reasons.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from streamer.core.errors import LoadCancelledError, StorageError, TransferTimeoutError
from streamer.core.options.options import Options

_DEFAULTS = Options()


class Limits(NamedTuple):
    """How large a server's answers may be, and how long they may take; the fields of `Options` with these names."""

    answer_bytes: int = _DEFAULTS.answer_bytes  # maximum number of bytes in the body of one answer
    listing_entries: int = _DEFAULTS.listing_entries  # maximum number of entries of one folder
    listing_empty_pages: int = _DEFAULTS.listing_empty_pages  # maximum number of pages without an entry in one listing
    connect_timeout_s: float = _DEFAULTS.connect_timeout_s  # time until a connection is established
    # Time from the connection until the headers of an answer are complete. One request, with its retries and redirects,
    # has the sum of both times. An option of the storage itself wins.
    first_byte_timeout_s: float = _DEFAULTS.first_byte_timeout_s
    stall_timeout_s: float = _DEFAULTS.stall_timeout_s  # time that a body may be slower than `stall_bytes_per_s`
    stall_bytes_per_s: float = _DEFAULTS.stall_bytes_per_s  # a slower transfer has stalled
    block_deadline_s: float = _DEFAULTS.block_deadline_s  # time until a block has all its bytes
    # Says whether the load still waits for the answer; called before each further page.
    is_wanted: Callable[[], bool] = lambda: True


class ListingCount:
    """Counts the entries of one listing while it arrives, page by page."""

    def __init__(self, limits: Limits, uri: str) -> None:
        self._limits, self._uri = limits, uri
        self._entries = self._empty_pages = 0

    def add(self, entries: int) -> None:
        """Count a page with this number of entries, including skipped ones."""
        if not self._limits.is_wanted():
            raise LoadCancelledError("the load no longer waits for the listing", uri=self._uri)
        self._entries += entries
        self._empty_pages += entries == 0
        if self._entries > self._limits.listing_entries:
            raise StorageError(
                f"The listing has more than {self._limits.listing_entries} entries",
                uri=self._uri,
                hint="Name the file or the index, or raise listing_entries in Options",
            )
        if self._empty_pages > self._limits.listing_empty_pages:
            raise StorageError(
                f"The listing has no end: {self._empty_pages} pages of it bring nothing",
                uri=self._uri,
                hint="Name the file or the index, or raise listing_empty_pages in Options",
            )


class Deadline(NamedTuple):
    """The time at which a load must have ended."""

    began: float  # begin of the load, by `time.monotonic`
    limit_s: float | None  # how long the load may take (`Options.deadline_s`); None for no limit

    @property
    def elapsed_s(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self.began

    @property
    def ends_at(self) -> float | None:
        """The end by `time.monotonic`, or None."""
        return None if self.limit_s is None else self.began + self.limit_s

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.limit_s is not None and self.elapsed_s > self.limit_s

    def error(self, message: str, uri: str) -> TransferTimeoutError:
        """Make the error for a load whose time is up."""
        assert self.limit_s is not None
        hint = f"Raise deadline_s in Options ({self.limit_s:g} s)"
        return TransferTimeoutError(message, uri=uri, elapsed_s=self.elapsed_s, hint=hint)
