"""The actor of a node: it fills the cache of its node, serves it to other nodes, and knows the addresses of all.

It has a name, by which any process of the cluster finds it, and outlives the job that started it. It is given no secret
when it is created, because Ray keeps the arguments of a creation; those of calls go from process to process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from streamer._commands.warm import WarmReport
from streamer._commands.warm import warm as fill_cache
from streamer.core.errors import OptionError, UsageError
from streamer.core.options.options import Options
from streamer.core.options.settings import resolve
from streamer.core.peers.discovery import PORT, joined_address
from streamer.core.peers.joining import serving
from streamer.core.peers.names import token_of
from streamer.core.peers.ray_actors import Place
from streamer.core.peers.server import PeerServer
from streamer.core.request.request import Request


class NodeCache:
    """The actor. Ray starts it again if its process dies, with the same folder."""

    def __init__(self, cache_dir: str | None, ip: str) -> None:
        settings = resolve(Options(cache_dir=cache_dir))
        self._cache_dir = os.path.abspath(settings.cache_dir) if settings.cache_dir else ""
        self._server = _server(self._cache_dir, settings.max_serving_bytes_per_second or 0)
        self._address = joined_address(ip, self._server.port) if self._server else ""
        self._peers: tuple[str, ...] = ()
        self._done = (0, 0)

    def place(self) -> Place:
        """Say what this node offers."""
        return Place(self._cache_dir, self._address, self._peers)

    def meet(self, addresses: Sequence[str]) -> None:
        """Remember where all nodes serve."""
        self._peers = tuple(each for each in addresses if each != self._address)

    def warm(self, arguments: dict[str, Any], cache_dir: str | None, addresses: Sequence[str]) -> WarmReport:
        """Read what the cache lacks of a checkpoint; `cache_dir` is the folder of this actor, or None."""
        self.meet(addresses)
        if not self._cache_dir:
            hint = "Pass cache_dir=, a folder on a disk of each node, or set STREAMER_CACHE_DIR on the nodes"
            raise UsageError("no cache folder is set on this node", hint=hint)
        if cache_dir is not None and os.path.abspath(cache_dir) != self._cache_dir:
            hint = "Name that folder, or call streamer.ray.stop() first"
            raise UsageError(f"the cache of this node is in {self._cache_dir}, not in {cache_dir}", hint=hint)
        self._done = (0, 0)
        options = replace(arguments["options"] or Options(), cache_dir=self._cache_dir)
        if options.peers is None and self._peers and self._server:
            options = replace(options, peers=self._peers)
        return fill_cache(Request(**{**arguments, "options": options, "progress": self._note}))

    def done(self) -> tuple[int, int]:
        """Return how many of the missing bytes were read, and how many were missing."""
        return self._done

    def _note(self, done_bytes: int, total_bytes: int) -> None:
        self._done = (done_bytes, total_bytes)


def _server(cache_dir: str, max_bytes_per_second: int) -> PeerServer | None:
    """Serve a cache, on the usual port if it is free; None without a token."""
    with suppress(OptionError):
        return serving(cache_dir, (PORT, 0), token_of(), max_bytes_per_second) if cache_dir else None
    return None
