"""A fleet of broken nodes for the soak: each load is of some nodes at the same time, which are each other's peers.

The server of each node lies about checksums, flips bytes, cuts answers short, dawdles, or closes in the middle, as is
drawn; caches and memory are small, some nodes begin late, and some loads are left early. Nothing that a peer does is an
excuse: a load ends as without peers.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import streamer
from faults.soak import OPTIONS, PATIENCE_S, Loaded, is_equal
from streamer import _native
from streamer.core.peers import asking, guide, joining
from streamer.core.peers.server import PeerServer

MIB = 1 << 20
TROUBLES = ("lies", "flips", "cuts", "dawdles", "is silent", "is gone", "is killed")
TROUBLE_SHARE = 0.15  # of answers of a broken node
BROKEN_SHARE = 0.6  # of nodes
# A node asks its peers for less than usual, and divides it: the checkpoint of the soak has 3 MiB.
SMALL = [
    (asking, {"LEAST_BYTES": 64 << 10}),
    (guide, {"LEAST_RUN_BYTES": 128 << 10, "RUN_BYTES": 256 << 10, "LEAST_PROBED_BYTES": 512 << 10}),
]


class BrokenPeer(PeerServer):
    """The server of a node, with troubles that are drawn for each of its answers."""

    troubles: ClassVar[Counter[str]] = Counter()  # of all of them
    of_folder: ClassVar[dict[str, BrokenPeer]] = {}  # the last one
    _guard = threading.Lock()

    def __init__(self, cache_dir: str, *where: Any, **how: Any) -> None:
        self._drawn = random.Random(Path(cache_dir).name)
        self._share = TROUBLE_SHARE if self._drawn.random() < BROKEN_SHARE else 0.0
        super().__init__(cache_dir, *where, **how)
        self.of_folder[cache_dir] = self

    def _trouble(self) -> str | None:
        with self._guard:
            trouble = self._drawn.choice(TROUBLES) if self._drawn.random() < self._share else None
            self.troubles.update([] if trouble is None else [trouble])
        return trouble

    def held(self, question: Any, **how: Any) -> dict[str, Any]:
        """Answer, if it lies, with checksums of other bytes."""
        answer, trouble = super().held(question, **how), self._trouble()
        if trouble == "lies":
            answer["objects"] = {
                name: [None if crc is None else crc ^ 1 for crc in crcs] for name, crcs in answer["objects"].items()
            }
        elif trouble == "is silent":
            self.closing.wait(2 * asking.ANSWER_S)
        elif trouble == "is killed":
            self.kill()
        return answer

    def opened(self, name: str) -> tuple[Any, int] | None:
        """Open the file, or what a broken node takes for it."""
        found, trouble = super().opened(name), self._trouble()
        if found is None or trouble in (None, "lies"):
            return found
        file, size = found
        if trouble == "dawdles":
            self.closing.wait(self._drawn.uniform(0.05, 0.7))
        elif trouble == "is silent":
            self.closing.wait(2.0)
        elif trouble == "is killed":
            self.kill()
        if trouble not in ("flips", "cuts", "is gone"):
            return found
        with file:
            data = bytearray(file.read())
        if trouble == "is gone":
            return None
        if trouble == "cuts":
            return io.BytesIO(data[: self._drawn.randrange(size)]), size
        for position in range(self._drawn.randrange(4096), size, 4096):
            data[position] ^= 1
        return io.BytesIO(data), size

    def kill(self) -> None:
        """Close from a thread of its own: closing joins the one that answers."""
        threading.Thread(target=self.close, name="killer", daemon=True).start()


class Fleet:
    """Loads on some nodes at the same time, in place of one load; see `faults.soak.Load`.

    Args:
        nodes: How many.
        seed: What decides the troubles.

    Attributes:
        peer_bytes: Bytes that peers gave, of all loads.
    """

    def __init__(self, nodes: int, seed: int) -> None:
        self._nodes, self._seed, self._loads = nodes, seed, 0
        self._guard = threading.Lock()
        self.peer_bytes = 0

    def load(self, url: str, storage_options: dict[str, Any], patience_s: float = PATIENCE_S) -> Loaded:
        """Return what one node loaded, and nothing if another got something else; raises what any of them raises."""
        with self._guard:
            self._loads += 1
            number = self._loads
        parent = Path(tempfile.mkdtemp(prefix="fleet-"))
        folders = [parent / f"{self._seed}-{number}-{node}" for node in range(self._nodes)]
        # A request without an answer is sent again long before ten seconds are over: then 500 is final for an object.
        options = replace(OPTIONS, block_deadline_s=patience_s, first_byte_timeout_s=5)
        peers = _free_addresses(self._nodes)

        def one(folder: Path) -> Loaded | None:
            drawn = random.Random(f"{folder.name}-load")
            time.sleep(drawn.choice([0, 0, 0.1, 0.4]))
            cache_bytes, memory_limit_bytes = drawn.choice([MIB, 2 * MIB, None, None]), drawn.choice([MIB, None])
            own = replace(
                options, cache_dir=folder, peers=peers, cache_bytes=cache_bytes, memory_limit_bytes=memory_limit_bytes
            )
            return self._stream(url, storage_options, own, drawn.choice([None, None, None, None, 2]))

        try:
            with ThreadPoolExecutor(self._nodes, thread_name_prefix="node") as pool:
                whole = [each for each in pool.map(one, folders) if each is not None]
            assert _native.finish_cache_writes(60)
            again = replace(options, cache_dir=folders[0])  # what its cache kept is right, too
            whole.append(self._stream(url, storage_options, again, None) or {})
            return whole[0] if all(is_equal(each, whole[0]) for each in whole[1:]) else {}
        finally:
            for folder in folders:
                if (server := BrokenPeer.of_folder.pop(os.fspath(folder), None)) is not None:
                    server.close()
            shutil.rmtree(parent, ignore_errors=True)

    def _stream(
        self, url: str, storage_options: dict[str, Any], options: streamer.Options, leaves_after: int | None
    ) -> Loaded | None:
        with streamer.stream(url, storage_options=storage_options, options=options, progress=False) as stream:
            loaded = {}
            for count, (name, tensor) in enumerate(stream):
                loaded[name] = tensor
                if count == leaves_after:
                    return None
        with self._guard:
            self.peer_bytes += sum(stream.report.peer_bytes.values())
        return loaded


@contextmanager
def broken_peers() -> Iterator[None]:
    """Make the servers of this process broken ones, and small loads worth asking for."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, STREAMER_PEERS_TOKEN="a-token-of-the-tests"))
        stack.enter_context(mock.patch.object(joining, "PeerServer", BrokenPeer))
        for module, sizes in SMALL:
            stack.enter_context(mock.patch.multiple(module, **sizes))
        stack.callback(joining.leave_peers)
        yield


def _free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        held = [stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(count)]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
