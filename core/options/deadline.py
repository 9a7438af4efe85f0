"""The time limit of a whole load, from the call to its last tensor."""

from __future__ import annotations

import time
from dataclasses import dataclass

from streamer.core.errors import TransferTimeoutError

__all__ = ["Deadline"]


@dataclass(frozen=True)
class Deadline:
    """The time at which a load must have ended.

    Attributes:
        began: Begin of the load, by `time.monotonic`.
        limit_s: How long the load may take (`Options.deadline_s`); None for no limit.
    """

    began: float
    limit_s: float | None

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
        """Make the error for a load whose time is up.

        Args:
            message: The step that was not done in time.
            uri: The object that was being read, without secrets.
        """
        assert self.limit_s is not None
        hint = f"Raise deadline_s in Options ({self.limit_s:g} s)"
        return TransferTimeoutError(message, uri=uri, elapsed_s=self.elapsed_s, hint=hint)
