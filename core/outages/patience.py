"""How Python's requests outlast the outage of a server: for listings, sizes, digests and places of objects.

The rules are the engine's (docs/reliability.md, "Outages"; native/net/outage.h): an outage of a server is one event for
all loads of the process. While it lasts, one request at a time is sent as a probe, after growing pauses; the others
wait for its answer. A failure is no outage if the server answered another request meanwhile, or just before: then this
request alone waits, for a moment. A server that never answered in this process is not waited for.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable
from typing import TypeVar

from streamer.core.errors import ConnectError, CredentialsError, StorageError, StreamerError
from streamer.core.outages.answered import one_question
from streamer.core.outages.news import BULLETIN
from streamer.core.outages.received import ReceivedBytes, counting
from streamer.core.outages.servers import Outage, Server, server_of
from streamer.core.outages.transient import is_away, is_transient, is_transport_failure

__all__ = ["Patience"]

Answer = TypeVar("Answer")

LONGEST_PAUSE_ALONE_S = 0.5  # while others are answered; as in native/net/retry.cc
ANSWERED_LATELY_S = 1.0
MOST_BY_CHANCE = 8  # failures in a row; if half of all requests fail, this happens once in 256
LIMIT_OF_ONE_REQUEST_S = 10.0  # for a status that may be the fault of one request: 408, 500
LOOK_S = 0.2  # between two checks whether the caller still wants the answer


class _Wait:
    """One request, from its first attempt on; `is_waiting` once it has to be sent again."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.began_at = time.monotonic()
        self.is_waiting = False
        self.pause_s = 0.0  # before the next attempt, if the server answers others
        self.received = ReceivedBytes()

    def story(self) -> str:
        """Describe in a sentence what the server has answered so far."""
        if self.server.outage is not None:
            return self.server.outage.story(self.server.name)
        elapsed_s, count = time.monotonic() - self.began_at, self.received.count
        if count:
            return f"{self.server.name} has sent {count} bytes in {elapsed_s:.1f} s, and no end of its answer"
        return f"{self.server.name} has not answered for {elapsed_s:.1f} s"


class Patience:
    """How long the requests of one load wait for their servers. Thread-safe.

    Args:
        limit_s: Longest time for one request, from its first attempt.

    Attributes:
        waited_s: Seconds during which at least one request waited for its server.
        probes: Requests it sent to servers that were away.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_over = threading.Event()
        self._guard = threading.Lock()
        self._met: set[Outage] = set()
        self._open: set[_Wait] = set()
        self._waiting = 0
        self._waiting_since = 0.0
        self.waited_s = 0.0
        self.probes = 0

    @property
    def outages(self) -> int:
        """Number of outages this load waited for."""
        return len(self._met)

    def stats(self) -> dict[str, int]:
        """Give the counters under the engine's names."""
        return {"outages": self.outages, "waited_us": round(self.waited_s * 1e6), "probes": self.probes}

    def story(self) -> str:
        """Describe the servers that have not answered yet; empty where all have."""
        with self._guard:
            waits = sorted(self._open, key=lambda each: each.began_at)
        stories = {each.server.name: f"; {each.story()}" for each in reversed(waits)}
        return "".join(stories.values())

    def is_wanted(self) -> bool:
        """Whether the load still waits for answers."""
        return not self._is_over.is_set()

    def end(self) -> None:
        """Stop waiting for servers: the load needs no answer any more."""
        self._is_over.set()

    def ask(self, server_name: str, request: Callable[[], Answer], route: Hashable = None) -> Answer:
        """Send a request until it is answered, also where the server is away for a while.

        Args:
            server_name: ``scheme://host:port``, or whatever names it in a message; without secrets.
            request: Called for each attempt; returns the answer. `answered_so_far` is the same in all of them.
            route: What leads to the server, such as a proxy: that it answered by one says nothing of another.

        Raises:
            BaseException: what `request` raises, if that is not transient, or lasts longer than the limit.
        """
        wait = _Wait(server_of(server_name, route))
        with self._guard:
            self._open.add(wait)
        try:
            with one_question():
                return self._ask(wait, request)
        finally:
            self._finish(wait)

    def _ask(self, wait: _Wait, request: Callable[[], Answer]) -> Answer:
        server = wait.server
        while True:
            outage = self._wait_for_turn(wait, wait.began_at + self._limit_s)
            sent_at = time.monotonic()
            try:
                with counting(wait.received):
                    answer = request()
            except BaseException as error:
                if not _note_failure(wait, outage, error, sent_at):
                    raise
                limit_s = min(self._limit_s, LIMIT_OF_ONE_REQUEST_S) if not is_away(error) else self._limit_s
                soonest = time.monotonic() + getattr(error, "retry_after_s", 0.0)
                if soonest >= wait.began_at + limit_s or self._is_over.is_set():
                    raise _with_story(error, server) from error.__cause__
                self._begin(wait, sent_at)
                self._is_over.wait(wait.pause_s)
            else:
                _note_answer(server)
                return answer

    def _wait_for_turn(self, wait: _Wait, give_up_at: float) -> Outage | None:
        """Wait until the request may be sent; return the outage that it probes, or None."""
        server = wait.server
        with server.changed:
            while (outage := server.outage) is not None:
                now = time.monotonic()
                if now >= give_up_at or self._is_over.is_set():
                    return None
                self._begin(wait, now)
                is_probe = not outage.is_probing and now >= outage.ask_at
                with self._guard:
                    self._met.add(outage)
                    self.probes += is_probe
                if is_probe:
                    outage.is_probing = True
                    return outage
                BULLETIN.away(server.name, now - outage.began, outage.requests, outage.last_failure)
                server.changed.wait(LOOK_S)
        return None

    def _begin(self, wait: _Wait, since: float) -> None:
        """Count the time that requests wait for servers; several that wait at a time count once."""
        with self._guard:
            if not wait.is_waiting:
                wait.is_waiting = True
                self._waiting_since = since if self._waiting == 0 else min(since, self._waiting_since)
                self._waiting += 1

    def _finish(self, wait: _Wait) -> None:
        with self._guard:
            self._open.discard(wait)
            if wait.is_waiting:
                self._waiting -= 1
                if self._waiting == 0:
                    self.waited_s += time.monotonic() - self._waiting_since


def _note_failure(wait: _Wait, outage: Outage | None, error: BaseException, sent_at: float) -> bool:
    """Enter a failed request into the server's state; return whether it may be sent again."""
    server = wait.server
    with server.changed:
        server.changed.notify_all()
        if outage is not None:
            outage.is_probing = False
        was_not_sent = isinstance(error, CredentialsError) and error.status is None
        if isinstance(error, StorageError) and not is_transport_failure(error) and not was_not_sent:
            server.has_answered = True
        if wait.received.count and isinstance(error, ConnectError):  # between several answers
            server.has_answered = True
        if not isinstance(error, Exception) or not is_transient(error):
            if isinstance(error, StorageError):
                _end(server)  # it works; the request was wrong
            return False
        if not server.has_answered:
            return False
        failure = error.message if isinstance(error, StreamerError) else str(error)
        status = getattr(error, "status", None)
        failure += f" (HTTP {status})" if status else ""
        wait.pause_s = _pause_alone_s(server, error, sent_at)
        if wait.pause_s:
            return True
        if server.outage is None:
            server.outage = Outage(sent_at, failure)
            server.outage.note(failure, error)
        elif server.outage is outage:
            outage.note(failure, error)
        return True


def _pause_alone_s(server: Server, error: BaseException, sent_at: float) -> float:
    """Return how long a failed request waits that is no sign of an outage, or 0."""
    is_of_outage, demands_pause = server.outage is not None, getattr(error, "retry_after_s", 0.0) > 0
    if is_of_outage or demands_pause:
        return 0.0
    server.failed_since += 1
    are_others_answered = server.answered_well_at >= min(sent_at, time.monotonic() - ANSWERED_LATELY_S)
    if not are_others_answered or server.failed_since > MOST_BY_CHANCE:
        return 0.0
    return random.uniform(0.1, 1.0) * LONGEST_PAUSE_ALONE_S  # noqa: S311 (no secret)


def _note_answer(server: Server) -> None:
    with server.changed:
        server.has_answered = server.has_answered_well = True
        server.answered_well_at, server.failed_since = time.monotonic(), 0
        _end(server)


def _end(server: Server) -> None:
    if server.outage is not None:
        server.outage = None
        server.changed.notify_all()
        BULLETIN.again(server.name)


def _with_story(error: BaseException, server: Server) -> BaseException:
    """Add to an error how long its server has been away."""
    outage = server.outage
    if not isinstance(error, StreamerError):
        return error
    if server.has_answered_well and not is_away(error):
        error.message += ", for this request alone: it answers others"
        error.hint = "Look at this object there, and at the server's log; upload it again if it is damaged"
    elif outage is not None:
        error.message += f"; {outage.story(server.name)}"
        error.hint = error.hint or "Wait until the server works again, or raise block_deadline_s in Options"
    if outage is not None and isinstance(error, StorageError):
        error.attempts, error.elapsed_s = outage.requests, time.monotonic() - outage.began
    return error
