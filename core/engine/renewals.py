"""Renews expired credentials or URLs of objects, on the consumer's thread.

A request for credentials is retried like a request to the storage, so that a load outlasts an outage of either server.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from streamer.core.engine.native_session import SourceObject, http_target
from streamer.core.errors import CredentialsError, StreamerError
from streamer.core.outages.outage_waits import LIMIT_OF_LOGIN_S
from streamer.core.outages.transient import is_transient
from streamer.core.store.sources import HttpSource

if TYPE_CHECKING:
    from streamer import _native

__all__ = ["Renewals"]

PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


class Renewals:
    """The renewals of one session."""

    def __init__(self, engine: _native.Session, objects: Sequence[SourceObject], deadline_s: float) -> None:
        self._engine, self._objects, self._deadline_s = engine, objects, deadline_s
        self._waiting: dict[int, _Attempts] = {}  # by object

    def renew(self, sources: Iterable[int]) -> None:
        """Renew these objects, and all objects whose retry is due."""
        for source in sources:
            self._waiting.setdefault(source, _Attempts())
        now = time.monotonic()
        for source, attempts in list(self._waiting.items()):
            if attempts.due <= now:
                self._renew(source, attempts)

    def _renew(self, source: int, attempts: _Attempts) -> None:
        expired = self._objects[source].source
        assert isinstance(expired, HttpSource)
        assert expired.refresh is not None
        try:
            target = http_target(expired.refresh())
        except StreamerError as error:
            is_of_login = isinstance(error, CredentialsError)
            limit_s = min(self._deadline_s, LIMIT_OF_LOGIN_S) if is_of_login else self._deadline_s
            if not is_transient(error) or attempts.seconds > limit_s:
                raise
            attempts.delay()
        else:
            del self._waiting[source]
            self._engine.renew(source, target)


class _Attempts:
    def __init__(self) -> None:
        self._began = self.due = time.monotonic()
        self._pause_s = PAUSE_S

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def delay(self) -> None:
        self.due = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
