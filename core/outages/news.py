"""Tells the user of servers that are waited for: in the log, and in a line for the progress bar.

A server is named after a second, as most outages are over by then, and again every ten seconds until it answers; once
for the whole process, however many loads wait for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamer.core.quoting import printable

if TYPE_CHECKING:
    from streamer import _native

__all__ = ["BULLETIN", "OutageNews"]

_log = logging.getLogger("streamer")

LOOK_S = 0.5
TOLD_AFTER_S = 1.0
TOLD_AGAIN_S = 10.0
SAME_OUTAGE_S = 1.0  # what began later is another one, though nobody said that the one before was over


@dataclass
class _Told:
    since: float
    at_s: float  # for how long it had been away when that was said last


class Bulletin:
    """What the process has said in its log about servers that are away. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._told: dict[str, _Told] = {}

    def away(self, server: str, waited_s: float, questions: int, last_failure: str) -> None:
        """Say so, where it is time to; to be called often."""
        if waited_s < TOLD_AFTER_S:
            return
        with self._guard:
            told, since = self._told.get(server), time.monotonic() - waited_s
            if told is not None and since > told.since + SAME_OUTAGE_S:
                told = None
            if told is not None and told.at_s <= waited_s < told.at_s + TOLD_AGAIN_S:
                return
            self._told[server] = _Told(since if told is None else told.since, waited_s)
        asked = f", asked {questions} times" if questions > 1 else ""
        _log.warning("%s%s: %s", line_of(server, waited_s), asked, printable(last_failure))

    def again(self, server: str) -> None:
        """Say that it answers again, where it was said that it does not."""
        with self._guard:
            told = self._told.pop(server, None)
        if told is not None:
            _log.warning("%s answers again, after %.0f s", printable(server), time.monotonic() - told.since)

    def forget(self) -> None:
        """Begin anew, in a forked child: a thread that is not there may hold the lock."""
        self._guard = threading.Lock()
        self._told.clear()


BULLETIN = Bulletin()
os.register_at_fork(after_in_child=BULLETIN.forget)


class OutageNews:
    """Looks at one session's servers; see the module's docstring.

    Args:
        engine: Knows which servers are waited for.
        on_wait: Called with one line when there is something to wait for, and with "" when there is not any more.
        bulletin: The process's own.
    """

    def __init__(
        self, engine: _native.Session, on_wait: Callable[[str], None] | None, bulletin: Bulletin | None = None
    ) -> None:
        self._engine = engine
        self._on_wait = on_wait
        self._bulletin = bulletin or BULLETIN
        self._next_look = 0.0
        self._away: set[str] = set()

    def look(self) -> None:
        """Tell what is new; cheap, and to be called often."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        waited_for = {each.server: each for each in self._engine.outages() if each.waited_s >= TOLD_AFTER_S}
        for server, outage in waited_for.items():
            self._bulletin.away(server, outage.waited_s, outage.probes, outage.last_failure)
        for server in self._away - waited_for.keys():
            self._bulletin.again(server)
        if waited_for or self._away:
            self._show("; ".join(line_of(server, outage.waited_s) for server, outage in waited_for.items()))
        self._away = set(waited_for)

    def end(self) -> None:
        """Say what is over, as nobody looks any more."""
        away, self._away = self._away, set()
        if away:
            for server in away - {each.server for each in self._engine.outages()}:
                self._bulletin.again(server)

    def _show(self, text: str) -> None:
        if self._on_wait is not None:
            self._on_wait(text)


def line_of(server: str, waited_s: float) -> str:
    """Say in a few words which server is waited for."""
    return f"waiting for {printable(server)}, away for {waited_s:.0f} s"
