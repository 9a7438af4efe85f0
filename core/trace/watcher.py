"""Who is told what a load, a save or a copy does: the file of `Options.trace`, Nsight's ranges, OpenTelemetry.

Guarantees: a watcher never fails what it watches, and is told no secret. Without one, nothing of this is imported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from streamer.core.errors import StreamerError
from streamer.core.load_status import CONSUMER, RANKS, READING

if TYPE_CHECKING:
    from streamer import _native

STAGES = {READING: "wait for bytes", RANKS: "wait for another process", CONSUMER: "consumer"}


class SessionWatcher:
    """Is told of one session. `LoadStatus` calls it."""

    def enter(self, stage: int) -> None:
        """Note that a stage begins, and the one before it ends; 0 is no stage."""

    def look(self) -> None:
        """Look at the engine; called again and again while the session waits."""

    def fail(self, error: BaseException) -> None:
        """Note the error that ends the session."""

    def end(self) -> None:
        """Note that the session has ended."""


class Watcher(Protocol):
    """Is told of one load, save or copy, or of several after one another. Thread-safe."""

    def during(self, category: str, name: str, **facts: Any) -> AbstractContextManager[None]:
        """Note what the calling thread does in a block."""

    def session(
        self,
        engine: _native.Session | None = None,  # noqa: ARG002  for those that override it, as the others
        names: Sequence[str] = (),  # noqa: ARG002
        shared: Collection[int] = (),  # noqa: ARG002
    ) -> SessionWatcher:
        """Return what watches a session of an engine, or of a group without one; this one watches nothing.

        Args:
            engine: The engine of the session.
            names: The names of its objects.
            shared: The numbers of those that are copied out of memory that processes share.
        """
        return SessionWatcher()

    def end(self, facts: Mapping[str, Any], shares: Mapping[str, float], error: BaseException | None) -> None:
        """Note that a load, a save or a copy has ended, and with which error.

        Args:
            facts: ``kind``, ``uri``, ``bytes``, ``seconds``, ``is_complete``, and counts.
            shares: What bounded it, as `bound_by` returns it.
            error: The error that ended it, or None.
        """


def error_text(error: BaseException) -> str:
    """Return an error's text without secrets: other errors than ours may hold some."""
    return str(error) if isinstance(error, StreamerError) else type(error).__name__
