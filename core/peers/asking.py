"""What a load asks its peers: which of them holds which ranges, and what each has given.

All peers are asked at the same time, each over a line of its own that stays. A peer that does not answer in time is
left out. Guarantees: an answer is data, of a bounded size, that is checked; no peer, however broken, fails a load or
delays it longer than that; no proxy is between peers, and none of them gets a login. If the peers have certificates, a
peer without one of their authority gets not even the token.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from http.client import HTTPException
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from streamer.core.engine.plan import Missing
from streamer.core.log import OwnLogger
from streamer.core.peers.answers import OBJECTS
from streamer.core.peers.held import COMING, Claims, ToldLoad, folder_name, is_load_name
from streamer.core.peers.line import PATIENCE_S, Line, NoPeerError
from streamer.core.peers.names import tls_files, wire_name, zone
from streamer.core.store.sources import HttpSource

if TYPE_CHECKING:
    from streamer.core.peers.guide import LoadGuide
    from streamer.core.peers.server import PeerServer

_log = OwnLogger()
ANSWER_S = PATIENCE_S  # for the first answers of all together
MOST_LATE = 2  # a peer that is late so often is not asked again in this load
MOST_ASKED = 64  # of a thousand peers, some hold what is wanted
FEW_ANSWER_BYTES, ANSWER_BYTES = 1 << 18, 128  # of an answer: what it says besides, and for each range with its object
LEAST_BYTES = 1 << 20  # the storage gives less than this as quickly as peers say what they hold
DIRECT = "direct:"  # to the engine: no proxy, whatever the environment names (native/net/proxy.h)


class Answer(NamedTuple):
    """What one peer said."""

    loads: Collection[str]  # names of the loads that the peer knows, and that read one of the objects now
    is_near: bool  # whether it is in the zone of this node
    crcs: Sequence[int | None]  # of each range, in the order of the question
    coming: Collection[int]  # positions of ranges that these loads read from the storage now


class Peers:
    """The peers of one load.

    Args:
        addresses: Where they are.
        token: What they all have.
        server: The server of this process, or None if it serves nobody.
        told: The address of the server of this machine, of this process or another: it knows what its loads read.
        cache_dir: The folder that it is to serve.
        saves_egress: Whether the storage gives only what no peer gives, even if it is the faster one.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: str,
        server: PeerServer | None = None,
        *,
        told: str | None = None,
        cache_dir: str = "",
        saves_egress: bool = False,
    ) -> None:
        few = random.sample(addresses, MOST_ASKED) if len(addresses) > MOST_ASKED else addresses
        self.addresses = [*few] if told is None or told in few else [told, *few]
        self.server, self.saves_egress = server, saves_egress
        self._token, self._told, self._cache_dir = token, told, cache_dir
        self._is_served = server is not None  # else if the server that is told has this folder: it says so
        self._has_warned = False
        self._lines: dict[str, Line] = {}  # for the next question
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

    def ask(
        self, missing: Sequence[Missing], patience_s: float = ANSWER_S, load: ToldLoad | None = None
    ) -> dict[str, Answer]:
        """Ask all peers, and tell them of the load; return what those said that answered, by address."""
        objects: dict[str, list[list[int]]] = {}
        name_of = self.names_of(missing)
        for each in missing:
            objects.setdefault(name_of[each.digest], []).append([each.begin, each.end])
        load = load if self._is_served else None
        question = _question(objects, load, {})
        # The server of this process knows its loads already
        telling = _question(objects, None if self.server else load, load.claims if load else {})
        most_bytes = FEW_ANSWER_BYTES + ANSWER_BYTES * len(missing)
        found = dict[str, Answer]()

        def ask(address: str, line: Line) -> None:
            told = line.ask(telling if address == self._told else question, most_bytes)
            if address == self._told and not self._is_served:
                self._note_folder(address, told.get("folder"))
            crcs = {name: iter(_checked(told["objects"][name], len(each))) for name, each in objects.items()}
            said = [next(crcs[name_of[each.digest]]) for each in missing]
            found[address] = Answer(
                set(filter(is_load_name, _texts(told.get("loads")))),
                told.get("zone", "") == zone(),
                [None if each == COMING else each for each in said],
                {position for position, each in enumerate(said) if each == COMING},
            )

        self._ask_all(ask, patience_s)
        return dict(found)

    def _note_folder(self, address: str, folder: Any) -> None:
        """Note whether a server of another process of this machine serves the same folder."""
        own = folder_name(self._cache_dir, self._token)
        self._is_served = bool(own) and own == folder
        if not self._is_served and not self._has_warned:
            self._has_warned = True
            _log.warning("%s is not served to peers: %s serves another folder", self._cache_dir, address)

    def _ask_all(self, ask: Callable[[str, Line], None], patience_s: float) -> None:
        """Ask all peers at the same time, and leave those behind that are late."""
        answered = set[str]()

        def run(address: str, line: Line) -> None:
            try:
                ask(address, line)
                answered.add(address)
            except NoPeerError as error:
                self._late[address] = MOST_LATE
                _log.warning("%s is not used as a peer: %s", address, error)
            except (OSError, ValueError, KeyError, HTTPException, RecursionError) as error:
                _log.debug("%s did not answer as a peer: %s", address, error)
            finally:
                if line.is_cut or address not in answered:
                    line.close()

        asked = [each for each in self.addresses if self._late[each] < MOST_LATE]
        lines = {each: self._lines.pop(each) if each in self._lines else Line(each, self._token) for each in asked}
        threads = {
            each: Thread(target=run, args=(each, line), name="streamer-ask", daemon=True)
            for each, line in lines.items()
        }
        until = time.monotonic() + patience_s
        for thread in threads.values():
            thread.start()
        for address, thread in threads.items():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self._late[address] += 1
                lines[address].cut()
            elif address in answered and self._lines.setdefault(address, lines[address]) is not lines[address]:
                lines[address].close()  # another session of this load has asked meanwhile

    def hang_up(self) -> None:
        """Close the lines that were kept for the next question."""
        while self._lines:
            self._lines.popitem()[1].close()


def _question(objects: Mapping[str, Any], load: ToldLoad | None, claims: Claims) -> str:
    if load is None:
        return json.dumps({"objects": objects})
    reads = {name: [*claims.get(name, ())] for name in load.claims}
    return json.dumps({"objects": objects, "load": {"name": load.name, "again_s": load.again_s, "reads": reads}})


def _texts(values: Any) -> set[str]:
    return {each for each in values if type(each) is str} if isinstance(values, list) else set()


def _checked(crcs: Any, count: int) -> list[int | None]:
    is_list = isinstance(crcs, list) and len(crcs) == count
    if is_list and all(each is None or (type(each) is int and COMING <= each < 1 << 32) for each in crcs):
        return list(crcs)
    raise ValueError("no answer")
