"""What the process remembers of each server that Python asks: whether it has answered, and its outage."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

__all__ = ["Outage", "Server", "server_of"]

PAUSE_S = 0.5  # after the first failure; the storage's client has retried by itself before
LONGEST_PAUSE_S = 5.0
MOST_SERVERS = 1024  # kept in memory; a process talks to a handful


@dataclass(eq=False)
class Outage:
    """When one server is away: since when, after which failures, and when to ask again."""

    began: float
    first_failure: str
    last_failure: str = ""
    requests: int = 0
    pause_s: float = field(default_factory=lambda: PAUSE_S)
    ask_at: float = 0.0
    asked_for_s: float = 0.0  # Retry-After of the last failure
    is_probing: bool = False

    def note(self, failure: str, error: BaseException) -> None:
        """Count a request that failed, and delay the next one."""
        self.last_failure = failure
        self.requests += max(1, getattr(error, "attempts", 1))  # those of the storage's library
        jitter = 0.5 + random.random() / 2  # noqa: S311 (no secret)
        self.asked_for_s = getattr(error, "retry_after_s", 0.0)
        self.ask_at = time.monotonic() + max(self.pause_s * jitter, self.asked_for_s)
        self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)

    def story(self, server: str) -> str:
        """Describe in a sentence how long it lasts, how many requests failed, and how the first one did."""
        requests = f"{self.requests} request{'' if self.requests == 1 else 's'}"
        at_first = "" if self.first_failure == self.last_failure else f"; at first: {self.first_failure}"
        story = f"{server} has been failing for {time.monotonic() - self.began:.1f} s and {requests}"
        if self.asked_for_s:
            story += f"; it wants to be left alone for {int(self.asked_for_s)} s"
        return story + at_first


@dataclass(eq=False)
class Server:
    """The state of one server in this process; guarded by `changed`."""

    name: str
    changed: threading.Condition = field(default_factory=threading.Condition)
    has_answered: bool = False
    has_answered_well: bool = False
    answered_well_at: float = 0.0  # the last time
    failed_since: int = 0  # requests that failed after that time, those of an outage not counted
    outage: Outage | None = None


SERVERS: OrderedDict[tuple[str, Hashable], Server] = OrderedDict()  # the most recently used one is last
_servers_guard = threading.Lock()


def server_of(name: str, route: Hashable) -> Server:
    """Return the state of the server that `route` leads to; what leads there counts, as Patience.ask says."""
    with _servers_guard:
        server = SERVERS.setdefault((name, route), Server(name))
        SERVERS.move_to_end((name, route))
        while len(SERVERS) > MOST_SERVERS:
            SERVERS.popitem(last=False)
        return server


def _forget_all() -> None:
    """Start over in a forked child: threads of the parent may hold these locks."""
    global _servers_guard  # noqa: PLW0603
    _servers_guard = threading.Lock()
    SERVERS.clear()


os.register_at_fork(after_in_child=_forget_all)
