"""The points of a load at which somebody may give up, each by name: a load that reaches the point and stays there.

A point is a function of a folder with a checkpoint of two shards; it returns a `Load` that is not begun. Nothing goes
on behind the point until `Load.stop`, so whatever ends earlier was ended by the one who gave up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers.raw_tcp import FullQueue

import streamer
from faults.stopping_server import HOLD_S, StoppingServer
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource, PythonSource

SIZE = 1 << 20
OPTIONS = streamer.Options(
    block_bytes=256 << 10, http_reactors=1, http_in_flight=2, header_bytes=1024, coalesce_gap_bytes=0
)


@dataclass
class Load:
    """A load that will get stuck.

    Attributes:
        run: Loads as a whole, on the calling thread.
        begin: Starts reading in the background and gives what can be iterated and closed; None where the point comes
            before there is such a thing.
        reached: Set at the point.
        stop: Ends what holds the load up.
    """

    run: Callable[[], object]
    begin: Callable[[], Any] | None
    reached: threading.Event
    stop: Callable[[], None] = field(default=lambda: None)


POINTS: dict[str, Callable[[Path], Load]] = {}


def point(make: Callable[[Path], Load]) -> Callable[[Path], Load]:
    """Enter a point under the name of its function."""
    POINTS[make.__name__] = make
    return make


def _from_store(folder: Path, at: str, how: str, *, after: int = 0, names: Any = None) -> Load:
    server = StoppingServer(folder, at, how, after)
    server.__enter__()
    given: dict[str, Any] = {
        "storage_options": {**server.storage_options(), "skip_instance_cache": True},
        "framework": "np",
        "names": names,
        "options": OPTIONS,
        "progress": False,
    }
    url = server.url()
    begins = at == "data"
    return Load(
        lambda: streamer.load(url, **given),
        (lambda: streamer.stream(url, **given)) if begins else None,
        server.reached,
        lambda: server.__exit__(None, None, None),
    )


@point
def before_the_listing(folder: Path) -> Load:
    """The store does not answer the first question."""
    return _from_store(folder, "list", "silence")


@point
def during_the_listing(folder: Path) -> Load:
    """The listing breaks off without an end."""
    return _from_store(folder, "list", "half")


@point
def looking_up_shards(folder: Path) -> Load:
    """The index names shards that the listing does not show: each is asked for, at the same time."""
    return _from_store(folder, "head", "silence")


@point
def reading_the_index(folder: Path) -> Load:
    """The index does not come."""
    return _from_store(folder, "index", "silence")


@point
def reading_headers(folder: Path) -> Load:
    """The header of the second shard does not come."""
    return _from_store(folder, "header", "half", after=1)


@point
def between_header_and_data(folder: Path) -> Load:
    """The caller's own function, which chooses tensors, takes its time."""
    reached, released = threading.Event(), threading.Event()

    def choose(name: str) -> bool:
        reached.set()
        released.wait(HOLD_S)
        return True

    load = _from_store(folder, "nothing", "silence", names=choose)
    return Load(load.run, None, reached, lambda: (released.set(), load.stop())[1])


@point
def waiting_for_the_first_block(folder: Path) -> Load:
    """No data comes at all."""
    return _from_store(folder, "data", "silence")


@point
def in_the_middle_of_a_block(folder: Path) -> Load:
    """A block stays a half."""
    return _from_store(folder, "data", "half")


@point
def waiting_for_the_last_block(folder: Path) -> Load:
    """Everything has come but the end."""
    return _from_store(folder, "data", "silence", after=4)


@point
def waiting_for_a_retry(folder: Path) -> Load:
    """The server failed, and the block waits for its next attempt."""
    return _from_store(folder, "data", "failure")


@point
def waiting_for_a_throttled_server(folder: Path) -> Load:
    """The server asked for patience."""
    return _from_store(folder, "data", "throttle")


@point
def renewing_credentials(folder: Path) -> Load:
    """The signature expired, and the new one does not come; this happens on the consumer's own thread."""
    load = _from_store(folder, "data", "expire")
    return Load(load.run, None, load.reached, load.stop)


def _from_source(source: Any, reached: threading.Event, stop: Callable[[], None], **options: Any) -> Load:
    def begin() -> _Iterable:
        items = [Item(0, at, at + SIZE // 4) for at in range(0, SIZE, SIZE // 4)]
        settings = resolve(streamer.Options(**{"http_reactors": 1, "http_in_flight": 2, **options}))
        return _Iterable(ReadSession([SourceObject("test://object", source, SIZE)], plan_reads(items, 0), settings))

    return Load(lambda: list(begin()), begin, reached, stop)


class _Iterable:
    """A session as a stream: iterated, closed, and let go."""

    def __init__(self, session: ReadSession) -> None:
        self.session = session
        self.close = session.close

    def __iter__(self) -> Iterable[memoryview]:  # type: ignore[misc]
        while items := self.session.next_items():
            for item in items:
                yield memoryview(self.session.take(item))  # type: ignore[arg-type]


class _Listener:
    """Takes connections, reads what comes, and never answers."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._taken.append(connection)
            if connection.recv(1):
                self.reached.set()

    def stop(self) -> None:
        """Close everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in [self._listener, *self._taken]:
            each.close()


@point
def in_the_tls_handshake(folder: Path) -> Load:
    """The server takes the connection and does not shake hands."""
    del folder
    listener = _Listener()
    return _from_source(HttpSource(f"https://127.0.0.1:{listener.port}/x"), listener.reached, listener.stop)


@point
def while_connecting(folder: Path) -> Load:
    """The server's queue of connections is full: the kernel answers nothing."""
    del folder
    queue = FullQueue()
    reached, ended = threading.Event(), threading.Event()

    def look() -> None:
        while not ended.wait(0.005) and not _ports_asking(queue.port) - queue.own_ports:
            pass
        reached.set()

    threading.Thread(target=look, daemon=True).start()

    def stop() -> None:
        ended.set()
        queue.close()

    return _from_source(HttpSource(f"http://127.0.0.1:{queue.port}/x"), reached, stop)


def _ports_asking(port: int) -> set[int]:
    """Find the local ports of connections to `port`: the kernel's table has the only sign of one that waits."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[2].endswith(f":{port:04X}")}


@point
def in_a_python_source(folder: Path) -> Load:
    """A plug-in's `read_into` does not come back."""
    del folder
    reached, released = threading.Event(), threading.Event()

    def read_into(buffer: memoryview, offset: int) -> int:
        del offset
        reached.set()
        released.wait(HOLD_S)
        return len(buffer)

    return _from_source(PythonSource(read_into), reached, released.set, python_threads=2)


@point
def waiting_for_memory(folder: Path) -> Load:
    """The consumer keeps the engine waiting: what was read fills the limit."""
    del folder
    reached, released = threading.Event(), threading.Event()
    calls = []

    def read_into(buffer: memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            released.wait(HOLD_S)
        reached.set()
        return len(buffer)

    return _from_source(PythonSource(read_into), reached, released.set, python_threads=1, memory_limit_bytes=1)


@point
def in_the_consumers_loop(folder: Path) -> Load:
    """The consumer is busy with a tensor."""
    reached, released = threading.Event(), threading.Event()

    def run() -> None:
        with streamer.stream(folder, framework="np", progress=False) as tensors:
            for _ in tensors:
                reached.set()
                released.wait(HOLD_S)

    return Load(run, None, reached, released.set)
