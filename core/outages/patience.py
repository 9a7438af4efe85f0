"""Servers that are away while Python asks them something: listings, sizes, digests, new places of objects.

The same rules as the engine's (docs/reliability.md, "Outages"): an outage of a server is one event for all loads of the
process. While it lasts one question at a time is sent, after pauses that grow; the others wait for its answer. A server
that never answered in this process is not waited for. native/net/outage.h has the same for what the engine reads.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from streamer.core.errors import CredentialsError, StorageError, StreamerError
from streamer.core.outages.heard import Heard, hearing
from streamer.core.outages.news import BULLETIN
from streamer.core.outages.transient import is_away, is_transient, is_transport_failure

__all__ = ["Patience"]

Answer = TypeVar("Answer")

PAUSE_S = 0.5  # after the first failure; the clients below have made attempts of their own by then
LONGEST_PAUSE_S = 5.0
LIMIT_OF_ONE_REQUEST_S = 10.0  # for what may be the fault of one question: 408, 500
LOOK_S = 0.2  # between two looks at whether somebody still wants the answer
MOST_SERVERS = 1024  # that are remembered; a process talks to a handful


@dataclass(eq=False)
class _Outage:
    began: float
    first_failure: str
    last_failure: str = ""
    questions: int = 0
    pause_s: float = field(default_factory=lambda: PAUSE_S)
    ask_at: float = 0.0
    is_asking: bool = False

    def note(self, failure: str, error: BaseException) -> None:
        """Count a question that failed, and put off the next one."""
        self.last_failure = failure
        self.questions += max(1, getattr(error, "attempts", 1))  # of the storage's library
        jitter = 0.5 + random.random() / 2  # noqa: S311 (no secret)
        asked_for_s = getattr(error, "retry_after_s", 0.0)
        self.ask_at = time.monotonic() + max(self.pause_s * jitter, asked_for_s)
        self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)

    def story(self, server: str) -> str:
        """Tell in a sentence how long it lasts, how often the server was asked, and what it said at first."""
        times = f"{self.questions} time{'' if self.questions == 1 else 's'}"
        at_first = "" if self.first_failure == self.last_failure else f"; at first: {self.first_failure}"
        return f"{server} has been failing for {time.monotonic() - self.began:.1f} s and was asked {times}{at_first}"


@dataclass(eq=False)
class _Server:
    """What the process knows of one server; guarded by `changed`."""

    name: str
    changed: threading.Condition = field(default_factory=threading.Condition)
    has_answered: bool = False
    outage: _Outage | None = None


class _Wait:
    """One question, from its first attempt; `is_waiting` from when it has to be asked again."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.asked_at = time.monotonic()
        self.is_waiting = False
        self.heard = Heard()

    def story(self) -> str:
        """Tell in a sentence what the server has done so far."""
        if self.server.outage is not None:
            return self.server.outage.story(self.server.name)
        asked_for_s, received = time.monotonic() - self.asked_at, self.heard.received_bytes
        if received:
            return f"{self.server.name} has sent {received} bytes in {asked_for_s:.1f} s, and no end of its answer"
        return f"{self.server.name} has not answered for {asked_for_s:.1f} s"


class Patience:
    """How one load asks servers, and for how long it waits for them. Thread-safe.

    Args:
        limit_s: Longest time for one question, from its first attempt.

    Attributes:
        waited_s: For how long at least one question waited for its server.
        probes: Questions it sent to servers that were away.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_over = threading.Event()
        self._guard = threading.Lock()
        self._met: set[_Outage] = set()
        self._asking: set[_Wait] = set()
        self._waiting = 0
        self._waiting_since = 0.0
        self.waited_s = 0.0
        self.probes = 0

    @property
    def outages(self) -> int:
        """How many outages this load had to wait for."""
        return len(self._met)

    def stats(self) -> dict[str, int]:
        """Count as the engine does."""
        return {"outages": self.outages, "waited_us": round(self.waited_s * 1e6), "probes": self.probes}

    def story(self) -> str:
        """Tell of the servers that have not answered yet; empty where there are none."""
        with self._guard:
            asking = sorted(self._asking, key=lambda each: each.asked_at)
        told = {}
        for each in reversed(asking):
            told[each.server.name] = f"; {each.story()}"
        return "".join(told.values())

    def is_wanted(self) -> bool:
        """Whether anybody still waits for an answer."""
        return not self._is_over.is_set()

    def end(self) -> None:
        """Wait for no server any more: nobody wants its answer."""
        self._is_over.set()

    def ask(self, server_name: str, question: Callable[[], Answer]) -> Answer:
        """Return the answer to a question, also where the server is away for a while.

        Args:
            server_name: ``scheme://host:port``, or whatever names it in a message; without secrets.
            question: May be asked any number of times.

        Raises:
            BaseException: what the question raises, if that will not pass, or lasts longer than the limit.
        """
        wait = _Wait(_server(server_name))
        with self._guard:
            self._asking.add(wait)
        try:
            return self._ask(wait, question)
        finally:
            self._finish(wait)

    def _ask(self, wait: _Wait, question: Callable[[], Answer]) -> Answer:
        server = wait.server
        while True:
            outage = self._turn(wait, wait.asked_at + self._limit_s)
            asked_at = time.monotonic()
            try:
                with hearing(wait.heard):
                    answer = question()
            except BaseException as error:
                if not _note_failure(server, outage, error, asked_at):
                    raise
                limit_s = min(self._limit_s, LIMIT_OF_ONE_REQUEST_S) if not is_away(error) else self._limit_s
                if time.monotonic() >= wait.asked_at + limit_s or self._is_over.is_set():
                    raise _told(error, server) from error.__cause__
                self._begin(wait, asked_at)
            else:
                _note_answer(server)
                return answer

    def _turn(self, wait: _Wait, give_up_at: float) -> _Outage | None:
        """Wait until the server may be asked; return the outage for which this question is the probe."""
        server = wait.server
        with server.changed:
            while (outage := server.outage) is not None:
                now = time.monotonic()
                if now >= give_up_at or self._is_over.is_set():
                    return None
                self._begin(wait, now)
                is_probe = not outage.is_asking and now >= outage.ask_at
                with self._guard:
                    self._met.add(outage)
                    self.probes += is_probe
                if is_probe:
                    outage.is_asking = True
                    return outage
                BULLETIN.away(server.name, now - outage.began, outage.questions, outage.last_failure)
                server.changed.wait(LOOK_S)
        return None

    def _begin(self, wait: _Wait, since: float) -> None:
        """The question has to wait for its server; several that wait at a time count once."""
        with self._guard:
            if not wait.is_waiting:
                wait.is_waiting = True
                self._waiting_since = since if self._waiting == 0 else min(since, self._waiting_since)
                self._waiting += 1

    def _finish(self, wait: _Wait) -> None:
        with self._guard:
            self._asking.discard(wait)
            if wait.is_waiting:
                self._waiting -= 1
                if self._waiting == 0:
                    self.waited_s += time.monotonic() - self._waiting_since


def _note_failure(server: _Server, outage: _Outage | None, error: BaseException, asked_at: float) -> bool:
    """Tell whether the server is away, and worth waiting for."""
    with server.changed:
        server.changed.notify_all()
        if outage is not None:
            outage.is_asking = False
        is_of_us = isinstance(error, CredentialsError) and error.status is None  # nobody was asked anything
        if isinstance(error, StorageError) and not is_transport_failure(error) and not is_of_us:
            server.has_answered = True
        if not isinstance(error, Exception) or not is_transient(error):
            if isinstance(error, StorageError):
                _end(server)  # it works; what was asked of it was wrong
            return False
        if not server.has_answered:
            return False
        failure = error.message if isinstance(error, StreamerError) else str(error)
        status = getattr(error, "status", None)
        failure += f" (HTTP {status})" if status else ""
        if server.outage is None:
            server.outage = _Outage(asked_at, failure)
            server.outage.note(failure, error)
        elif server.outage is outage:
            outage.note(failure, error)
        return True


def _note_answer(server: _Server) -> None:
    with server.changed:
        server.has_answered = True
        _end(server)


def _end(server: _Server) -> None:
    if server.outage is not None:
        server.outage = None
        server.changed.notify_all()
        BULLETIN.again(server.name)


def _told(error: BaseException, server: _Server) -> BaseException:
    outage = server.outage
    if outage is not None and isinstance(error, StreamerError):
        error.message += f"; {outage.story(server.name)}"
        error.hint = error.hint or "Wait until the server works again, or raise block_deadline_s in Options"
        if isinstance(error, StorageError):
            error.attempts, error.elapsed_s = outage.questions, time.monotonic() - outage.began
    return error


_SERVERS: OrderedDict[str, _Server] = OrderedDict()  # the ones used last at the end
_servers_guard = threading.Lock()


def _server(name: str) -> _Server:
    with _servers_guard:
        known = _SERVERS.setdefault(name, _Server(name))
        _SERVERS.move_to_end(name)
        while len(_SERVERS) > MOST_SERVERS:
            _SERVERS.popitem(last=False)
        return known


def _forget_all() -> None:
    """In a forked child: the parent's threads, which may hold these locks, are not there."""
    global _servers_guard  # noqa: PLW0603
    _servers_guard = threading.Lock()
    _SERVERS.clear()


os.register_at_fork(after_in_child=_forget_all)
