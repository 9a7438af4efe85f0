"""What a load asks its peers: which of them holds which ranges, and from whom it reads each.

All peers are asked at the same time, once; who has not answered within `ANSWER_S` is left out, and so is what holders
disagree on. Neighbouring ranges go to one holder until they are `RUN_BYTES` together; among holders, the one with the
fewest bytes to give is chosen. Guarantees: an answer is data, of a bounded size, that is checked; no peer, however
broken, fails a load or delays it longer than that; no proxy is between peers, and none of them gets a login.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from threading import Lock, Thread
from typing import Any

from streamer.core.engine.plan import Offer
from streamer.core.peers.discovery import split_address
from streamer.core.peers.names import wire_name
from streamer.core.store.sources import HttpSource

ANSWER_S = 0.8  # of all together; a peer on the same network needs some milliseconds
MOST_ASKED = 64  # of a thousand peers, some hold what is wanted
RUN_BYTES = 8 << 20  # a request for many small tensors is one request
LEAST_BYTES = 1 << 20  # the storage gives less than this as quickly as peers say what they hold
MOST_ANSWER_BYTES = 64 << 20
DIRECT = "direct:"  # to the engine: no proxy, whatever the environment names (native/net/proxy.h)


class Peers:
    """The peers of one load."""

    def __init__(self, addresses: Sequence[str], token: str) -> None:
        few = random.sample(addresses, MOST_ASKED) if len(addresses) > MOST_ASKED else addresses
        self._addresses, self._token = list(few), token
        self._received: Counter[str] = Counter()

    def offers(self, wanted: Sequence[tuple[str, int, int]]) -> list[Offer | None]:
        """Choose a source for each wanted range: the digest of its object, begin and end; None if no peer holds it."""
        if sum(end - begin for _, begin, end in wanted) < LEAST_BYTES or not self._addresses:
            return [None] * len(wanted)
        names = {digest: wire_name(digest, self._token) for digest in {each[0] for each in wanted}}
        held = self._asked([(names[digest], begin, end) for digest, begin, end in wanted])
        return [
            None if holder is None else self._offer(holder, names[digest], held[holder][position])
            for position, ((digest, _, _), holder) in enumerate(zip(wanted, chosen(wanted, held), strict=True))
        ]

    def note(self, received: Mapping[str, int]) -> None:
        """Count what sessions got, by the URL of the source."""
        for url, size_bytes in received.items():
            self._received[url.split("/")[2]] += size_bytes

    def received(self) -> dict[str, int]:
        """Return the bytes that each peer gave, and that were right."""
        return dict(self._received)

    def _offer(self, address: str, name: str, crc: int | None) -> Offer:
        assert crc is not None
        headers = {"Authorization": f"Bearer {self._token}"}
        url = f"http://{address}/v1/objects/{name}"
        return Offer(HttpSource(url, headers=headers, version_header=None, proxy=DIRECT), crc)

    def _asked(self, ranges: Sequence[tuple[str, int, int]]) -> dict[str, list[int | None]]:
        """Ask all peers; return the CRC32C of each range by peer."""
        objects: dict[str, list[list[int]]] = {}
        for name, begin, end in ranges:
            objects.setdefault(name, []).append([begin, end])
        body, found, lock = json.dumps({"objects": objects}), dict[str, list[int | None]](), Lock()

        def ask(address: str) -> None:
            with suppress(OSError, ValueError, http.client.HTTPException, RecursionError):
                answer = _answer(address, body, self._token)
                crcs = {name: iter(_checked(answer[name], len(each))) for name, each in objects.items()}
                with lock:
                    found[address] = [next(crcs[name]) for name, _, _ in ranges]

        threads = [Thread(target=ask, args=(each,), name="streamer-ask", daemon=True) for each in self._addresses]
        until = time.monotonic() + ANSWER_S
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        with lock:
            return dict(found)


def chosen(wanted: Sequence[tuple[str, int, int]], held: Mapping[str, Sequence[int | None]]) -> list[str | None]:
    """Choose a holder for each range.

    Example:
        >>> chosen([("a", 0, 4), ("a", 4, 8), ("a", 8, 9)], {"x": [1, 2, None], "y": [None, 3, None]})
        ['x', None, None]
    """
    holders, load = [], Counter(dict.fromkeys(held, 0))
    names = random.sample(sorted(held), len(held))  # so that not all loads begin with the same
    for position in range(len(wanted)):
        having = [each for each in names if held[each][position] is not None]
        agreed = len({held[each][position] for each in having}) == 1
        holders.append(having if agreed else [])
    choice: list[str | None] = []
    run_bytes, before = 0, ("", 0, 0)
    for each, having in zip(wanted, holders, strict=True):
        digest, begin, end = each
        last = choice[-1] if choice else None
        continues = last in having and digest == before[0] and begin >= before[2] and run_bytes < RUN_BYTES
        holder = last if continues else min(having, key=lambda name: load[name], default=None)
        run_bytes = (run_bytes if continues else 0) + end - begin
        if holder is not None:
            load[holder] += end - begin
        choice.append(holder)
        before = each
    return choice


def _answer(address: str, body: str, token: str) -> Mapping[str, Any]:
    connection = http.client.HTTPConnection(*split_address(address), timeout=ANSWER_S)
    with closing(connection):
        connection.request("POST", "/v1/held", body, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        text = answer.read(MOST_ANSWER_BYTES + 1)
    told = json.loads(text) if answer.status == 200 and len(text) <= MOST_ANSWER_BYTES else {}
    objects = told.get("objects") if isinstance(told, dict) else None
    if not isinstance(objects, dict):
        raise ValueError("no answer")
    return objects


def _checked(crcs: Any, count: int) -> list[int | None]:
    is_list = isinstance(crcs, list) and len(crcs) == count
    if is_list and all(each is None or (type(each) is int and 0 <= each < 1 << 32) for each in crcs):
        return list(crcs)
    raise ValueError("no answer")
