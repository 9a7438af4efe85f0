"""Makes Python's requests wait out the outage of a server: for listings, sizes, digests and places of objects.

A folder of a web server takes an index page and a request for each shard; a folder of an object store takes several
pages. If one refused request restarted them all, a server that refuses each third request would never answer.

The engine records which servers are away (native/net/lookup.h; docs/reliability.md, "Outages"): an outage is one event
for all lookups and reads of the process. During an outage, a request waits here for its turn as the probe. If the
server answers other requests, only this request waits for a moment. Requests do not wait for a server that never
answered in this process.

The sender of a request reads the limit from the context, which asyncio and threads pass on.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, TypeVar

from streamer import _native
from streamer.core.conditions import Event
from streamer.core.errors import ConnectError, CredentialsError, StorageError, StreamerError
from streamer.core.outages.counters import ReceivedBytes, counting
from streamer.core.outages.news import OUTAGE_LOG
from streamer.core.outages.transient import is_away, is_transient, is_transport_failure
from streamer.core.quoting import printable

Answer = TypeVar("Answer")

LIMIT_OF_ONE_REQUEST_S = 10.0  # for statuses that one request may cause by itself: 408, 500
LIMIT_OF_LOGIN_S = 5.0  # for credentials that cannot be had: a token's file may be missing while it is rotated
LOGIN_PAUSE_S = 0.25  # before credentials are requested again
LOOK_S = 0.2  # time between two checks whether the caller still needs the answer

_limit_s: ContextVar[float] = ContextVar("first_byte_limit_s", default=inf)


class Answered:
    """The answers to parts of one question. Thread-safe if no two threads request the same part at the same time."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}

    def once(self, request: Callable[..., Answer], *part: Hashable) -> Answer:
        """Return the result of a function for a part (its arguments); call it only if it has not returned one yet."""
        if (request, part) not in self._answers:
            self._answers[request, part] = request(*part)
        answer: Answer = self._answers[request, part]
        return answer

    def forget(self) -> None:
        """Drop the answers and their functions."""
        self._answers.clear()


_of_question: ContextVar[Answered | None] = ContextVar("answered", default=None)


@contextmanager
def one_question() -> Iterator[None]:
    """Keep the answers that arrive inside the block."""
    answered = Answered()
    token = _of_question.set(answered)
    try:
        yield
    finally:
        _of_question.reset(token)
        answered.forget()  # asyncio keeps the context of a request as long as its connection lives


def answered_so_far() -> Answered:
    """Return the answers of the current question; an empty `Answered` if there is none."""
    return _of_question.get() or Answered()


class _Wait:
    """One request, from its first attempt on; `is_waiting` is set once it has to be retried."""

    def __init__(self, server: str, lookup: _native.Lookup) -> None:
        self.server, self.lookup = server, lookup
        self.began_at = time.monotonic()
        self.is_waiting = False
        self.received = ReceivedBytes()

    def describe(self) -> str:
        """Describe in a sentence what the server has answered so far."""
        outage = self.lookup.outage
        if outage is not None:
            return describe_outage(outage, self.server)
        elapsed_s, count = time.monotonic() - self.began_at, self.received.count
        if self.received.login:
            return f"{self.received.login} has not ended for {elapsed_s:.1f} s"
        if count:
            return f"{self.server} has sent {count} bytes in {elapsed_s:.1f} s, and no end of its answer"
        return f"{self.server} has not answered for {elapsed_s:.1f} s"


class OutageWaits:
    """How long the requests of one load wait for their servers. Thread-safe."""

    def __init__(self, limit_s: float, show: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        self._limit_s, self._show = limit_s, show
        self._is_over = Event()
        self._guard = threading.Lock()
        self._met: set[tuple[str, float]] = set()  # outages: the server and the begin
        self._lookups: dict[str, _native.Lookup] = {}  # keeps the engine's state of each server alive
        self._open: set[_Wait] = set()
        self._waiting = 0
        self._waiting_since = 0.0
        self.waited_s = 0.0  # seconds during which at least one request waited for its server
        self.probes = 0  # number of requests that this load sent to servers that were away

    @property
    def outages(self) -> int:
        """Number of outages that this load waited for."""
        return len(self._met)

    def stats(self) -> dict[str, int]:
        """Return the counters by the engine's names."""
        return {"outages": self.outages, "waited_us": round(self.waited_s * 1e6), "probes": self.probes}

    def describe(self) -> str:
        """Describe the servers that have not answered yet; empty if all have."""
        with self._guard:
            waits = sorted(self._open, key=lambda each: each.began_at)
        texts = {each.server: f"; {each.describe()}" for each in reversed(waits)}
        return "".join(texts.values())

    def is_wanted(self) -> bool:
        """Say whether the load still waits for answers."""
        return not self._is_over.is_set()

    def end(self) -> None:
        """Stop waiting for servers: the load needs no answer any more."""
        self._is_over.set()

    def ask(self, server: str, request: Callable[[], Answer], lookup: _native.Lookup) -> Answer:
        """Send a request until it is answered, even if the server is away for a while."""
        wait = _Wait(server, lookup)
        with self._guard:
            self._open.add(wait)
            self._lookups[server] = lookup
        try:
            with lookup, one_question():
                return self._ask(wait, request)
        finally:
            self._finish(wait)

    def _ask(self, wait: _Wait, request: Callable[[], Answer]) -> Answer:
        while True:
            self._wait_for_turn(wait)
            sent_at = time.monotonic()
            try:
                with counting(wait.received), limited(wait.lookup.first_byte_s):
                    answer = request()
            except BaseException as error:
                pause_s = _note_failure(wait, error)
                if pause_s is None:
                    raise
                if self._is_too_late(wait, error):
                    raise _with_outage(error, wait) from error.__cause__
                self._begin(wait, sent_at)
                self._is_over.wait(pause_s)
            else:
                _note_answer(wait)
                return answer

    def _is_too_late(self, wait: _Wait, error: BaseException) -> bool:
        """Say whether the next attempt would come after the time limit, or after the caller has given up."""
        of_one = LIMIT_OF_LOGIN_S if isinstance(error, CredentialsError) else LIMIT_OF_ONE_REQUEST_S
        limit_s = self._limit_s if is_away(error) else min(self._limit_s, of_one)
        soonest = time.monotonic() + getattr(error, "retry_after_s", 0.0)
        return soonest >= wait.began_at + limit_s or self._is_over.is_set()

    def _wait_for_turn(self, wait: _Wait) -> None:
        """Wait until the request may be sent: the server works, or this is the probe of its outage, or time is over."""
        give_up_at = wait.began_at + self._limit_s
        while (wait_s := wait.lookup.try_start()) is not None:
            now = time.monotonic()
            self._begin(wait, now)
            self._meet(wait)
            if now >= give_up_at or self._is_over.wait(min(wait_s, LOOK_S)):
                return
        if wait.lookup.is_probe:
            self._begin(wait, time.monotonic())
            self._meet(wait)
            with self._guard:
                self.probes += 1

    def _meet(self, wait: _Wait) -> None:
        """Count the outage of a server, and log it."""
        outage = wait.lookup.outage
        if outage is None:
            return
        with self._guard:
            self._met.add((wait.server, outage.began_s))
            self._show({"away": {wait.server: [round(outage.age_s, 1), printable(outage.last_failure)[:200]]}})
        OUTAGE_LOG.away(wait.server, outage.age_s, outage.failed, outage.last_failure)

    def _begin(self, wait: _Wait, since: float) -> None:
        """Count the time that requests wait for servers; requests that wait at the same time count once."""
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
                    self._show({"away": {}})
                    self.waited_s += time.monotonic() - self._waiting_since


def describe_outage(outage: _native.OutageRecord, server: str) -> str:
    """Describe in a sentence how long an outage lasts, how many requests failed, and how the first one failed."""
    return outage.told(server.encode("utf-8", "replace"))  # a URL may hold lone surrogates


def _note_failure(wait: _Wait, error: BaseException) -> float | None:
    """Report a failure; return seconds until a retry, 0 if the outage decides about it, None for none."""
    lookup = wait.lookup
    # If bytes arrived before the connection failed, the server answered an earlier request of this question.
    if _is_answer(error) or (wait.received.count and isinstance(error, ConnectError)):
        lookup.note_answer()
    if isinstance(error, CredentialsError) and error.may_come:  # no request was sent, so the server is not at fault
        lookup.cancel()
        return LOGIN_PAUSE_S if lookup.has_server_answered else None
    may_pass = isinstance(error, Exception) and is_transient(error)
    if not may_pass and not isinstance(error, StorageError):
        lookup.cancel()
        return None
    message = error.message if isinstance(error, StreamerError) else str(error)
    pause_s = lookup.finish_badly(
        message.encode("utf-8", "replace"),
        http_status=getattr(error, "status", None) or 0,
        storage_code=(isinstance(error, StorageError) and error.code) or "",
        is_transient=may_pass,
        is_of_proxy=isinstance(error, StorageError) and error.is_of_proxy,
        retry_after_s=getattr(error, "retry_after_s", 0.0),
        requests=max(1, getattr(error, "attempts", 1)),  # attempts of the storage's client
        random=random.random(),  # noqa: S311 (no secret)
    )
    if not may_pass:
        _log_return(wait)
    return (pause_s or 0.0) if may_pass and lookup.has_server_answered else None


def _is_answer(error: BaseException) -> bool:
    """Say whether the server itself answered; a refusal is an answer, too."""
    was_not_sent = isinstance(error, CredentialsError) and error.status is None
    return isinstance(error, StorageError) and not is_transport_failure(error) and not was_not_sent


def _note_answer(wait: _Wait) -> None:
    wait.lookup.finish_well()
    _log_return(wait)


def _log_return(wait: _Wait) -> None:
    if wait.lookup.outage is None:
        OUTAGE_LOG.again(wait.server)


def _with_outage(error: BaseException, wait: _Wait) -> BaseException:
    """Add to an error how long its server has been away."""
    outage = wait.lookup.outage
    if not isinstance(error, StreamerError):
        return error
    if wait.lookup.fails_alone and not is_away(error):
        error.message += ", for this request alone: it answers other requests"
        error.hint = "Check this object on the server, and its log; upload the object again if it is damaged"
    elif outage is not None:
        error.message += f"; {describe_outage(outage, wait.server)}"
        error.hint = error.hint or "Wait until the server works again, or raise block_deadline_s in Options"
    if outage is not None and isinstance(error, StorageError):
        error.attempts, error.elapsed_s = outage.failed, outage.age_s
    return error


@contextmanager
def limited(first_byte_s: float) -> Iterator[None]:
    """Limit the requests inside the block."""
    token = _limit_s.set(first_byte_s)
    try:
        yield
    finally:
        _limit_s.reset(token)


def first_byte_limit_s() -> float:
    """Return the limit of the current request in seconds; finite if it is a probe."""
    return _limit_s.get()
