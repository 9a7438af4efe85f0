"""Tells the user of servers that are waited for: in the log, and in a line for the progress bar.

A server is named after a second, as most outages are over by then, and again every ten seconds until it answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer import _native

__all__ = ["OutageNews"]

_log = logging.getLogger("streamer")

LOOK_S = 0.5
TOLD_AFTER_S = 1.0
TOLD_AGAIN_S = 10.0


class OutageNews:
    """See the module's docstring.

    Args:
        engine: Knows which servers are waited for.
        on_wait: Called with one line when there is something to wait for, and with "" when there is not any more.
    """

    def __init__(self, engine: _native.Session, on_wait: Callable[[str], None] | None) -> None:
        self._engine = engine
        self._on_wait = on_wait
        self._next_look = 0.0
        self._told_s: dict[str, float] = {}  # by server: for how long it had been waited for when that was told

    def look(self) -> None:
        """Tell what is new; cheap, and to be called often."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        waited_for = {each.server: each for each in self._engine.outages() if each.waited_s >= TOLD_AFTER_S}
        for server, outage in waited_for.items():
            told_s = self._told_s.get(server)
            if told_s is None or not told_s <= outage.waited_s < told_s + TOLD_AGAIN_S:
                self._told_s[server] = outage.waited_s
                _log.warning("%s, asked %d times: %s", _line(outage), outage.probes, outage.last_failure)
        for server in self._told_s.keys() - waited_for.keys():
            del self._told_s[server]
            _log.warning("%s answers again", server)
            self._show("")
        if waited_for:
            self._show("; ".join(_line(outage) for outage in waited_for.values()))

    def _show(self, text: str) -> None:
        if self._on_wait is not None:
            self._on_wait(text)


def _line(outage: _native.OpenOutage) -> str:
    return f"waiting for {outage.server}, away for {outage.waited_s:.0f} s"
