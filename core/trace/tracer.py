"""Collects what this process did for a trace, and writes it to the file now and then.

Guarantees: nothing here fails a load after it has begun; a file that cannot be written is logged once. The number of
events is bounded, and those left out are counted. No text has a secret: names are of `redact`, and errors are ours.
Times are those of CLOCK_MONOTONIC in microseconds, which are the same in all processes of a machine.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from streamer.core import VERSION
from streamer.core.bounds import advice_on
from streamer.core.folders.paths import followed
from streamer.core.load_status import CONSUMER, RANKS, READING, SHORTEST_US, began_at, now_us
from streamer.core.log import OwnLogger
from streamer.core.trace.file import NO_ROOM, Part, add, check_path, unwritable
from streamer.core.trace.watcher import STAGES, SessionWatcher, Watcher, error_text

if TYPE_CHECKING:
    from streamer import _native

MOST_EVENTS = 200_000  # 60 MB, and what a viewer shows well
MOST_LOADS = 1000
WRITTEN_EVERY_S = 2.0
WRITES_SHARE = 50  # writing takes a fiftieth of the time at most
SMALL_BYTES = 1 << 20  # a smaller file is written after each load: that takes a few milliseconds
ROUNDING_US = 2
PHASES = ("dns", "connect", "tls", "first_byte", "transfer")
_log = OwnLogger()
_text = json.dumps


class Tracer(Watcher):
    """The events of this process for one file. Thread-safe."""

    def __init__(self, path: str, most_events: int, rank: int | None) -> None:
        self.path, self.most_events, self._rank = path, most_events, rank
        # Garbage collection may end a session, and so add events, in the middle of any of this.
        self._lock, self._writing = threading.RLock(), threading.Lock()
        self._writer = 0
        self._begin()

    def _begin(self) -> None:
        self._process, self._id, self._began_us = os.getpid(), secrets.token_hex(4), now_us()
        ticks = began_at(self._process) or 0
        asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        self._process_began_us = int((ticks / os.sysconf("SC_CLK_TCK") - asleep_s) * 1e6)
        self._events: list[tuple[int, str]] = []
        self._loads: list[dict[str, Any]] = []
        self._lanes: dict[
            tuple[str, int], int
        ] = {}  # by name and number of a thread; those of an engine have no number
        self._free_at: dict[str, list[tuple[int, int]]] = {}
        self.dropped = self._size = self._changes = self._written = 0
        self._written_at = self._write_s = 0.0
        self._has_warned = False

    def open(self) -> None:
        """Check the path and write what there is: a load that cannot be traced does not begin."""
        check_path(self.path)
        try:
            self._write()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise unwritable(self.path, error) from error
            self._warn(error)

    def span(self, category: str, name: str, began_us: int, ended_us: int | None = None, **args: Any) -> None:
        """Add what the calling thread did until now."""
        ended_us = now_us() if ended_us is None else ended_us
        thread = threading.current_thread().name, threading.get_native_id()
        with self._lock:
            self._add((began_us, ended_us), category, name, self._lane(*thread), _text(args))

    @contextmanager
    def during(self, category: str, name: str, **args: Any) -> Iterator[None]:
        """Add what the calling thread does in a block."""
        began_us = now_us()
        try:
            yield
        finally:
            if category != "hand_over" or now_us() - began_us >= SHORTEST_US:
                self.span(category, name, began_us, **args)

    def instant(self, name: str, **args: Any) -> None:
        """Add something that happened now on the calling thread."""
        thread = threading.current_thread().name, threading.get_native_id()
        with self._lock:
            self._add_line(now_us(), f'"ph": "i", "s": "t", "name": {_text(name)}', self._lane(*thread), _text(args))

    def session(
        self, engine: _native.Session | None = None, names: Sequence[str] = (), shared: Collection[int] = ()
    ) -> SessionWatcher:
        """Return what traces a session of an engine, or of a group without one."""
        return SessionTrace(self, engine, names, shared)

    def native(self, engine: _native.Session, names: Sequence[str], shared: Collection[int] = ()) -> None:
        """Take the events of an engine, whose objects have these names; the `shared` ones are copied out of memory."""
        rows, dropped = engine.take_trace()
        with self._lock:
            self.dropped += dropped
            for row in sorted(rows, key=itemgetter(3)):
                is_shared = row[0] == "request" and row[5] in shared
                self._add_native(("shared", *row[1:]) if is_shared else row, names)

    def end(self, facts: Mapping[str, Any], shares: Mapping[str, float], error: BaseException | None) -> None:
        """Note what has ended, and write the file."""
        bounds = [{"what": word, "share": share} for word, share in shares.items()]
        advice = advice_on(shares, is_limited="max_bytes_per_second" in facts)
        facts = facts if error is None else {**facts, "error": error_text(error)}
        with self._lock:
            self._check_process()
            self._changes += 1
            if len(self._loads) < MOST_LOADS:
                self._loads.append({**facts, "bound_by": bounds, "advice": advice})
        if self._size < SMALL_BYTES or self._is_due():
            self.write()

    def tick(self) -> None:
        """Write the file if it is time."""
        if time.monotonic() > self._written_at + WRITTEN_EVERY_S and self._is_due():
            self.write()

    def write(self) -> None:
        """Write all events so far; a failure is logged."""
        try:
            self._write()
        except Exception as error:
            self._warn(error)

    def write_rest(self) -> None:
        """Write what was not written yet."""
        if self._changes != self._written and self._process == os.getpid():
            self.write()

    def remarks(self) -> list[str]:
        """Return what a report says about the trace."""
        dropped = f"the trace has room for {self.most_events} events: {self.dropped} others were left out"
        return [dropped] if self.dropped else []

    def _is_due(self) -> bool:
        return time.monotonic() > self._written_at + WRITES_SHARE * self._write_s

    def _check_process(self) -> None:
        if self._process != os.getpid():  # a forked child has the parent's events
            self._begin()

    def _lane(self, thread: str, number: int) -> int:
        self._check_process()
        return self._lanes.setdefault((thread, number), len(self._lanes) + 1)

    def _free_lane(self, thread: str, began_us: int, ended_us: int) -> tuple[int, int]:
        """Return the lane of an engine's thread, or another one while it is taken; and when it is free."""
        lanes = self._free_at.setdefault(thread, [])
        at = next((at for at, (free_us, _) in enumerate(lanes) if free_us <= began_us + ROUNDING_US), len(lanes))
        if at == len(lanes):
            lanes.append((0, self._lane(thread if at == 0 else f"{thread} #{at + 1}", 0)))
        began_us = max(began_us, lanes[at][0])
        lanes[at] = (ended_us, lanes[at][1])
        return lanes[at][1], began_us

    def _add_native(self, row: tuple[Any, ...], names: Sequence[str]) -> None:
        category, thread, overlaps, began, ended, source, offset, size, *request, failure = row
        lane, began = self._free_lane(f"{thread} requests" if overlaps else thread, began, ended)
        name = names[source] if source < len(names) else ""
        args = f'{{"object": {_text(name)}, "offset": {offset}, "bytes": {size}'
        if category == "request":
            attempt, status, is_reused, phases = request
            args += f', "attempt": {attempt}'
            if any(phases):  # else its reader is in Python
                times = ", ".join(f'"{phase}": {us}' for phase, us in zip(PHASES, phases, strict=True))
                args += f', "status": {status or "null"}, "connection_reused": {_text(is_reused)}, {times}'
        if failure:
            args += f', "error": {_text(failure)}'
        self._add((began, ended), category, os.path.basename(name) or category, lane, args + "}")
        if failure and category == "request":
            what = "request cancelled" if failure.startswith("cancelled") else "request failed"
            self._add_line(ended, f'"ph": "i", "s": "t", "name": "{what}"', lane, f'{{"error": {_text(failure)}}}')

    def _add(self, times: tuple[int, int], category: str, name: str, lane: int, args: str) -> None:
        began_us, ended_us = times
        dur = max(0, ended_us - began_us)
        self._add_line(began_us, f'"ph": "X", "cat": "{category}", "name": {_text(name)}, "dur": {dur}', lane, args)

    def _add_line(self, at_us: int, head: str, lane: int, args: str) -> None:
        self._changes += 1
        if len(self._events) < self.most_events:
            self._events.append((at_us, f'"tid": {lane}, "ts": {at_us}, {head}, "args": {args}}}'))
        else:
            self.dropped += 1

    def _lines(self) -> list[str]:
        self._events = sorted(self._events, key=lambda event: event[0])
        rank = f"rank {self._rank}, " if self._rank is not None else ""
        lines = [f'"tid": 0, "ph": "M", "name": "process_name", "args": {{"name": "{rank}pid {self._process}"}}}}']
        for (thread, _), lane in self._lanes.items():
            lines.append(f'"tid": {lane}, "ph": "M", "name": "thread_name", "args": {{"name": {_text(thread)}}}}}')
        return [*lines, *(line for _, line in self._events)]

    def _write(self) -> None:
        if self._writer == threading.get_ident():
            return
        with self._writing:
            self._writer, began = threading.get_ident(), time.monotonic()
            with self._lock:
                self._check_process()
                changes, lines = self._changes, self._lines()
                facts = {
                    "id": self._id,
                    "pid": self._process,
                    "process_began_us": self._process_began_us,
                    "ended_us": now_us(),
                    "dropped_events": self.dropped,
                    "loads": [*self._loads],
                }
            most = self.most_events + len(lines) - len(self._events)
            try:
                if not add(self.path, Part(facts, lines), most, _summary):
                    raise TimeoutError("another process keeps it locked")
            finally:
                self._writer = 0
            self._size, self._written = sum(map(len, lines)), changes
            self._written_at = time.monotonic()
            self._write_s = self._written_at - began

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("the trace %s is not complete: %s", self.path, error)


def _summary(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the file says of its loads: of the one that took longest, and of each."""
    loads = [{"pid": each["pid"], **load} for each in processes for load in each["loads"]]
    longest = max(loads, key=lambda load: load["seconds"], default={})
    dropped = sum(each["dropped_events"] for each in processes)
    return {"version": VERSION, **longest, "dropped_events": dropped, "processes": processes}


class SessionTrace(SessionWatcher):
    """What one session adds: its engine's events, and what its consumer waits for."""

    def __init__(
        self, tracer: Tracer, engine: _native.Session | None, names: Sequence[str], shared: Collection[int]
    ) -> None:
        self.tracer, self._engine, self._names, self._shared = tracer, engine, names, shared
        self._stage, self._since_us = 0, now_us()
        self._away: set[str] = set()

    def enter(self, stage: int) -> None:
        """Note that a stage begins, and the one before it ends; 0 is no stage."""
        if stage == self._stage:
            return
        before, began_us = self._stage, self._since_us
        self._stage, self._since_us = stage, now_us()
        if before == CONSUMER and self._since_us - began_us >= SHORTEST_US:
            self.tracer.span("consumer", "consumer", began_us, self._since_us)
        elif before in (READING, RANKS):
            what = "bytes" if before == READING else "another process"
            self.tracer.span("wait", STAGES[before], began_us, self._since_us, **{"for": what})

    def look(self) -> None:
        """Take the engine's events, and note servers that have stopped serving."""
        with suppress(Exception):  # no memory; or a forked child, which has no engine
            if self._engine is not None:
                self.tracer.native(self._engine, self._names, self._shared)
                away = {each.server for each in self._engine.outages()}
                for server in away - self._away:
                    self.tracer.instant("outage", server=server)
                self._away = away
            self.tracer.tick()

    def fail(self, error: BaseException) -> None:
        """Note the error that ends the session."""
        self.tracer.instant("failed", error=error_text(error))

    def end(self) -> None:
        """Take what is left."""
        self.enter(0)
        self.look()


_TRACERS: dict[str, Tracer] = {}


def tracer_of(path: str, ranks: int, rank: int | None) -> Tracer:
    """Return this process's tracer of a file.

    Raises:
        OptionError: no trace can be written to the path.
    """
    path = followed(os.path.abspath(path))
    tracer = _TRACERS.get(path)
    if tracer is None:
        tracer = Tracer(path, MOST_EVENTS // ranks, rank)
        tracer.open()
        tracer = _TRACERS.setdefault(path, tracer)
        atexit.register(tracer.write_rest)
    return tracer
