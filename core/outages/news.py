"""Shows the user which servers the loads wait for: in the log, and in a line for the progress bar.

The log names a server after a second, because most outages are over by then, and again every ten seconds until it
answers. These lines appear once for the whole process, however many loads wait for the server.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamer.core.log import OwnLogger
from streamer.core.quoting import printable

if TYPE_CHECKING:
    from streamer import _native

_log = OwnLogger()

LOOK_S = 0.5
WARNED_AFTER_S = 1.0
WARNED_AGAIN_S = 10.0
SAME_OUTAGE_S = 1.0  # an outage that begins this much later is new, even if no request noticed the end of the first


@dataclass
class _Warning:
    since: float  # monotonic time at which the outage began
    away_s: float  # how long the outage had lasted at the last line of the log


class OutageLog:
    """Writes the process's log lines about servers that are away. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._warnings: dict[str, _Warning] = {}

    def away(self, server: str, waited_s: float, requests: int, last_failure: str) -> None:
        """Log that a server is away, if a line is due; to be called often."""
        if waited_s < WARNED_AFTER_S:
            return
        with self._guard:
            last, since = self._warnings.get(server), time.monotonic() - waited_s
            if last is not None and since > last.since + SAME_OUTAGE_S:
                last = None
            if last is not None and last.away_s <= waited_s < last.away_s + WARNED_AGAIN_S:
                return
            self._warnings[server] = _Warning(since if last is None else last.since, waited_s)
        attempts = f", asked {requests} times" if requests > 1 else ""
        _log.warning("%s%s: %s", line_of(server, waited_s), attempts, printable(last_failure))

    def again(self, server: str) -> None:
        """Log that a server answers again, if a line said that it is away."""
        with self._guard:
            last = self._warnings.pop(server, None)
        if last is not None:
            _log.warning("%s answers again, after %.0f s", printable(server), time.monotonic() - last.since)

    def forget(self) -> None:
        """Start over in a forked child: a thread of the parent may hold the lock."""
        self._guard = threading.Lock()
        self._warnings.clear()


OUTAGE_LOG = OutageLog()
os.register_at_fork(after_in_child=OUTAGE_LOG.forget)


class OutageNews:
    """Watches the servers of one session; see the module's docstring."""

    def __init__(
        self, engine: _native.Session, on_wait: Callable[[str], None] | None, outage_log: OutageLog | None = None
    ) -> None:
        self._engine = engine
        self._on_wait = on_wait
        self._outage_log = outage_log or OUTAGE_LOG
        self._next_look = 0.0
        self._away: set[str] = set()

    def look(self) -> None:
        """Log and show what has changed; cheap, and to be called often."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        waited_for = {each.server: each for each in self._engine.outages() if each.waited_s >= WARNED_AFTER_S}
        for server, outage in waited_for.items():
            self._outage_log.away(server, outage.waited_s, outage.probes, outage.last_failure)
        for server in self._away - waited_for.keys():
            self._outage_log.again(server)
        if waited_for or self._away:
            self._show("; ".join(line_of(server, outage.waited_s) for server, outage in waited_for.items()))
        self._away = set(waited_for)

    def end(self) -> None:
        """Log which outages are over; the last call of a session."""
        away, self._away = self._away, set()
        if away:
            for server in away - {each.server for each in self._engine.outages()}:
                self._outage_log.again(server)

    def _show(self, text: str) -> None:
        if self._on_wait is not None:
            self._on_wait(text)


def line_of(server: str, waited_s: float) -> str:
    """Describe in a few words the server that requests wait for."""
    return f"waiting for {printable(server)}, away for {waited_s:.0f} s"
