"""Reads the requests of one streamer, on its own threads.

Two reads run at a time, so that the second begins while the first ends. Requests that arrive meanwhile are read
together by the next read. A thread lives as long as there are requests. Guarantees: after `end` returns, nothing writes
to the caller's memory. It does not wait for a storage that does not answer a look-up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from streamer.compat.runai.codes import Code
from streamer.compat.runai.objects import Objects
from streamer.compat.runai.range_reads import Reading
from streamer.compat.runai.submissions import Range
from streamer.compat.runai.variables import options_from_environment
from streamer.core.engine.plan import ReadPlan
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.errors import LoadCancelledError
from streamer.core.options.settings import Settings, resolve

__all__ = ["Reader"]

AT_A_TIME = 2
JOIN_S = 1.0  # a thread in a look-up may outlive it: it does not use the caller's memory

_log = logging.getLogger("streamer")

AnswerRange = Callable[[int, int, int, int], None]  # submission, file, range and code
AnswerRest = Callable[[int, int], None]  # submission and code


class Reader:
    """Reads the requests of one streamer.

    Args:
        answer: Called for each range.
        answer_rest: Called for each request when no more of it is read, to answer ranges without an answer.
    """

    def __init__(self, answer: AnswerRange, answer_rest: AnswerRest) -> None:
        self._answer, self._answer_rest = answer, answer_rest
        self._objects = Objects()
        self._changed = threading.Condition()
        self._waiting: dict[int, list[Range]] = {}  # by request; `_changed` guards this and all below
        self._threads: list[threading.Thread] = []
        self._sessions: set[ReadSession] = set()
        self._is_ended = False

    def set_credentials(self, credentials: Mapping[str, str]) -> Code:
        """Set credentials; refuse them if other credentials were set before."""
        with self._changed:
            if self._objects.credentials and credentials != self._objects.credentials:
                return Code.OTHER_CREDENTIALS
            self._objects.credentials = credentials
        return Code.SUCCESS

    @property
    def credentials(self) -> Mapping[str, str]:
        """The credentials of `set_credentials`."""
        return self._objects.credentials

    def request(self, submission: int, ranges: list[Range]) -> Code:
        """Queue ranges; they are read as soon as a thread is free."""
        with self._changed:
            if self._is_ended:
                return Code.FINISHED
            self._waiting[submission] = ranges
            if len(self._threads) < AT_A_TIME:
                thread = threading.Thread(target=self._work, name=f"streamer-runai{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return Code.SUCCESS

    def end(self) -> None:
        """Stop reading; when it returns, nothing writes to the caller's memory."""
        with self._changed:
            self._is_ended = True
            self._waiting.clear()
            sessions, threads = list(self._sessions), list(self._threads)
        for session in sessions:
            session.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._sessions)
        for thread in threads:
            thread.join(JOIN_S)

    def _work(self) -> None:
        while requests := self._next_requests():
            code = Code.UNKNOWN
            try:
                settings = replace(resolve(options_from_environment()), began=None)
                reading = Reading(self._objects, settings, self._session, self._answer_one)
                reading.read(each for ranges in requests.values() for each in ranges)
            except LoadCancelledError:
                code = Code.FINISHED
            except BaseException:
                _log.exception("reading for Run:ai's interface failed")
            for submission in requests:  # does nothing for requests whose ranges were all answered
                self._answer_rest(submission, code)

    def _next_requests(self) -> dict[int, list[Range]]:
        with self._changed:
            requests, self._waiting = self._waiting, {}
            if not requests:
                self._threads.remove(threading.current_thread())
            return requests

    def _answer_one(self, wanted: Range, code: Code) -> None:
        self._answer(wanted.submission, wanted.file, wanted.position, code)

    @contextmanager
    def _session(self, objects: Sequence[SourceObject], plan: ReadPlan, settings: Settings) -> Iterator[ReadSession]:
        with self._changed:
            if self._is_ended:
                raise LoadCancelledError("the streamer was ended before it was read")
            session = ReadSession(objects, plan, settings, items="ranges")
            self._sessions.add(session)
        try:
            yield session
        finally:
            session.close()
            with self._changed:
                self._sessions.discard(session)
                self._changed.notify_all()
