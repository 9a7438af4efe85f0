"""What a load asks its peers: which of them holds which ranges, and what each has given.

All peers are asked at the same time. A peer that does not answer within the time is left out. Guarantees: an answer is
data, of a bounded size, that is checked; no peer, however broken, fails a load or delays it longer than that; no proxy
is between peers, and none of them gets a login. If the peers have certificates, a peer without one of their authority
gets not even the token.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from streamer.core.engine.plan import Missing
from streamer.core.log import OwnLogger
from streamer.core.peers.discovery import split_address
from streamer.core.peers.held import COMING
from streamer.core.peers.names import tls_files, wire_name
from streamer.core.peers.server import HELD, OBJECTS, PeerServer
from streamer.core.store.sources import HttpSource

if TYPE_CHECKING:
    from streamer.core.peers.guide import LoadGuide

_log = OwnLogger()
ANSWER_S = 0.8  # of all together; a peer on the same network needs some milliseconds
MOST_LATE = 2  # a peer that is late so often is not asked again in this load
MOST_ASKED = 64  # of a thousand peers, some hold what is wanted
LEAST_BYTES = 1 << 20  # the storage gives less than this as quickly as peers say what they hold
MOST_ANSWER_BYTES = 64 << 20
DIRECT = "direct:"  # to the engine: no proxy, whatever the environment names (native/net/proxy.h)


class Answer(NamedTuple):
    """What one peer said."""

    peer: str  # a name that the peer gave itself when it started
    is_loading: bool  # whether it loads one of the objects now
    crcs: Sequence[int | None]  # of each range, in the order of the question
    coming: Collection[int]  # positions of ranges that it reads from the storage now


class Peers:
    """The peers of one load.

    Args:
        addresses: Where they are.
        token: What they all have.
        server: The server of this process, or None if it serves nobody.
        saves_egress: Whether the storage gives only what no peer gives, even if it is the faster one.
    """

    def __init__(
        self, addresses: Sequence[str], token: str, server: PeerServer | None = None, *, saves_egress: bool = False
    ) -> None:
        few = random.sample(addresses, MOST_ASKED) if len(addresses) > MOST_ASKED else addresses
        self.addresses, self.server, self.saves_egress = list(few), server, saves_egress
        self._token = token
        self._received: Counter[str] = Counter()
        self._late: Counter[str] = Counter()  # how often a peer has not answered in time

    def guide(self, missing: Sequence[Missing], *, in_item_order: bool) -> LoadGuide | None:
        """Return who decides during the load which of them gives what; None if it is not worth a question."""
        if sum(each.end - each.begin for each in missing) < LEAST_BYTES or not self.addresses:
            return None
        from streamer.core.peers.guide import LoadGuide  # noqa: PLC0415 (a load without peers starts without it)

        return LoadGuide(self, missing, in_item_order=in_item_order)

    def source(self, address: str, digest: str) -> HttpSource:
        """Return the source of an object at a peer."""
        files = tls_files()
        url = f"{'https' if files else 'http'}://{address}{OBJECTS}{wire_name(digest, self._token)}"
        headers = {"Authorization": f"Bearer {self._token}"}
        plain = HttpSource(url, headers, version_header=None, proxy=DIRECT)
        if files is None:
            return plain
        own = replace(plain, client_cert=files.certificate, client_key=files.key)
        return replace(own, ca_file=files.ca, checks_host=False)

    def names_of(self, missing: Sequence[Missing]) -> dict[str, str]:
        """Return the name of each object between peers, by its digest."""
        return {digest: wire_name(digest, self._token) for digest in dict.fromkeys(each.digest for each in missing)}

    def note(self, received: Mapping[str, int]) -> None:
        """Count what sessions got, by the URL of the source."""
        for url, size_bytes in received.items():
            self._received[url.split("/")[2]] += size_bytes

    def received(self) -> dict[str, int]:
        """Return the bytes that each peer gave, and that were right."""
        return dict(self._received)

    def ask(self, missing: Sequence[Missing], patience_s: float = ANSWER_S) -> dict[str, Answer]:
        """Ask all peers; return what those said that answered, by address."""
        objects: dict[str, list[list[int]]] = {}
        name_of = self.names_of(missing)
        for each in missing:
            objects.setdefault(name_of[each.digest], []).append([each.begin, each.end])
        body, found, lock = json.dumps({"objects": objects}), dict[str, Answer](), Lock()
        kind, sockets = _kind_of_connection(), dict[str, socket.socket]()

        def ask(address: str) -> None:
            with suppress(OSError, ValueError, KeyError, http.client.HTTPException, RecursionError):
                with closing(kind(*split_address(address), timeout=ANSWER_S)) as connection:
                    self._connect(connection, address)
                    sockets[address] = connection.sock
                    told = self._told(connection, body)
                crcs = {name: iter(_checked(told["objects"][name], len(each))) for name, each in objects.items()}
                said = [next(crcs[name_of[each.digest]]) for each in missing]
                peer, loading = told.get("peer"), told.get("loading")
                answer = Answer(
                    str(peer)[:64],
                    isinstance(loading, list) and any(name in objects for name in loading if type(name) is str),
                    [None if each == COMING else each for each in said],
                    {position for position, each in enumerate(said) if each == COMING},
                )
                with lock:
                    found[address] = answer

        asked = [each for each in self.addresses if self._late[each] < MOST_LATE]
        threads = [Thread(target=ask, args=(each,), name="streamer-ask", daemon=True) for each in asked]
        until = time.monotonic() + patience_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        late = [each for each, thread in zip(asked, threads, strict=True) if thread.is_alive()]
        self._late.update(late)
        for address in late:  # else a peer that sends a byte now and then would keep the thread
            with suppress(OSError, KeyError):
                socket.socket.shutdown(sockets[address], socket.SHUT_RDWR)  # not that of TLS, which is the thread's
        with lock:
            return dict(found)

    def _connect(self, connection: http.client.HTTPConnection, address: str) -> None:
        """Connect to a peer. One whose TLS fails is not asked again in this load, and the log says why."""
        try:
            connection.connect()
        except OSError as error:
            if tls_files() is not None:
                from streamer.core.peers.tls import what_failed  # noqa: PLC0415 (imports ssl)

                if reason := what_failed(error):
                    self._late[address] = MOST_LATE
                    _log.warning("%s is not used as a peer: %s", address, reason)
            raise

    def _told(self, connection: http.client.HTTPConnection, body: str) -> Mapping[str, Any]:
        connection.request("POST", HELD, body, {"Authorization": f"Bearer {self._token}"})
        answer = connection.getresponse()
        text = answer.read(MOST_ANSWER_BYTES + 1)
        told = json.loads(text) if answer.status == 200 and len(text) <= MOST_ANSWER_BYTES else {}
        if not isinstance(told, dict) or not isinstance(told.get("objects"), dict):
            raise ValueError("no answer")
        return told


def _kind_of_connection() -> Callable[..., http.client.HTTPConnection]:
    files = tls_files()
    if files is None:
        return http.client.HTTPConnection
    from streamer.core.peers.tls import context_of  # noqa: PLC0415 (imports ssl)

    return partial(http.client.HTTPSConnection, context=context_of(files))


def _checked(crcs: Any, count: int) -> list[int | None]:
    is_list = isinstance(crcs, list) and len(crcs) == count
    if is_list and all(each is None or (type(each) is int and COMING <= each < 1 << 32) for each in crcs):
        return list(crcs)
    raise ValueError("no answer")
