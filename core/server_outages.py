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

from streamer.core.errors import StorageError, StreamerError
from streamer.core.outage_news import BULLETIN
from streamer.core.transient import is_away, is_transport_failure

__all__ = ["Patience"]

Answer = TypeVar("Answer")

PAUSE_S = 0.5  # after the first failure; the clients below have made attempts of their own by then
LONGEST_PAUSE_S = 5.0
LOOK_S = 0.2  # between two looks at whether somebody still wants the answer
MOST_SERVERS = 1024  # that are remembered; a process talks to a handful


@dataclass(eq=False)
class _Outage:
    began: float
    first_failure: str
    last_failure: str
    questions: int = 1
    pause_s: float = field(default_factory=lambda: PAUSE_S)
    ask_at: float = 0.0
    is_asking: bool = False

    def put_off(self, failure: str) -> None:
        self.last_failure = failure
        jitter = 0.5 + random.random() / 2  # noqa: S311 (no secret)
        self.ask_at = time.monotonic() + self.pause_s * jitter
        self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)


@dataclass(eq=False)
class _Server:
    """What the process knows of one server; guarded by `changed`."""

    name: str
    changed: threading.Condition = field(default_factory=threading.Condition)
    has_answered: bool = False
    outage: _Outage | None = None


class Patience:
    """How one load asks servers, and for how long it waits for them. Thread-safe.

    Args:
        limit_s: Longest time for one question, from its first attempt.

    Attributes:
        waited_s: How long all its questions together waited.
        probes: Questions it sent to servers that were away.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_over = threading.Event()
        self._guard = threading.Lock()
        self._met: set[_Outage] = set()
        self._waiting_for: set[_Server] = set()
        self.waited_s = 0.0
        self.probes = 0

    @property
    def outages(self) -> int:
        """How many outages this load had to wait for."""
        return len(self._met)

    def story(self) -> str:
        """Tell of the servers that are waited for at this moment; empty where there are none."""
        with self._guard:
            waiting_for = [(server, server.outage) for server in self._waiting_for]
        now = time.monotonic()
        stories = [(server.name, now - outage.began) for server, outage in waiting_for if outage is not None]
        return "".join(f"; {name} has been failing for {away_s:.1f} s" for name, away_s in stories)

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
        server = _server(server_name)
        give_up_at = time.monotonic() + self._limit_s
        while True:
            outage = self._turn(server, give_up_at)
            asked_at = time.monotonic()
            try:
                answer = question()
            except BaseException as error:
                if not _note_failure(server, outage, error, asked_at):
                    raise
                if time.monotonic() >= give_up_at or self._is_over.is_set():
                    raise _told(error, server) from error.__cause__
            else:
                _note_answer(server)
                return answer

    def _turn(self, server: _Server, give_up_at: float) -> _Outage | None:
        """Wait until the server may be asked; return the outage for which this question is the probe."""
        began = time.monotonic()
        with server.changed:
            while (outage := server.outage) is not None:
                now = time.monotonic()
                if now >= give_up_at or self._is_over.is_set():
                    break
                if not outage.is_asking and now >= outage.ask_at:
                    outage.is_asking = True
                    outage.questions += 1
                    break
                with self._guard:
                    self._met.add(outage)
                    self._waiting_for.add(server)
                BULLETIN.away(server.name, now - outage.began, outage.questions, outage.last_failure)
                server.changed.wait(LOOK_S)
        with self._guard:
            self.waited_s += time.monotonic() - began
            self.probes += outage is not None
            if outage is None:
                self._waiting_for.discard(server)
        return outage


def _note_failure(server: _Server, outage: _Outage | None, error: BaseException, asked_at: float) -> bool:
    """Tell whether the server is away, and worth waiting for."""
    with server.changed:
        server.changed.notify_all()
        if outage is not None:
            outage.is_asking = False
        if isinstance(error, StorageError) and not is_transport_failure(error):
            server.has_answered = True
        if not isinstance(error, Exception) or not is_away(error):
            if isinstance(error, StorageError):
                _end(server)  # it works; what was asked of it was wrong
            return False
        if not server.has_answered:
            return False
        failure = error.message if isinstance(error, StreamerError) else str(error)
        if server.outage is None:
            server.outage = _Outage(asked_at, failure, failure, getattr(error, "attempts", 1))
            server.outage.put_off(failure)
        elif server.outage is outage:
            outage.put_off(failure)
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
        seconds = time.monotonic() - outage.began
        error.message += (
            f"; {server.name} has been failing for {seconds:.1f} s and was asked {_times(outage.questions)}"
            f"; at first: {outage.first_failure}"
        )
        if isinstance(error, StorageError):
            error.attempts, error.elapsed_s = outage.questions, seconds
    return error


def _times(count: int) -> str:
    return f"{count} time{'' if count == 1 else 's'}"


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
