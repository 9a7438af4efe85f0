"""Lets a load join the peers: it reads from them, and this process serves its cache to them.

The server of a process is started by its first load with peers, and runs until the process ends. If another process of
this machine has the port already, it serves the same cache, and loads tell it what they read from the storage.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

from streamer.core.cache.cache import Cache
from streamer.core.errors import OptionError, StorageError
from streamer.core.options.settings import Settings
from streamer.core.peers.asking import Peers
from streamer.core.peers.discovery import addresses_of, is_of_this_machine, own_ports
from streamer.core.peers.names import token_of
from streamer.core.peers.server import PeerServer

_lock = Lock()
_servers: dict[tuple[int, str], PeerServer] = {}  # by process and folder: a forked child has no threads of its parent


def join_peers(cache: Cache, settings: Settings) -> None:
    """Give the places of a cache the peers of the settings, and serve the cache."""
    assert settings.peers
    if not settings.cache_dir:
        hint = "Name a folder, for them and for what they give: on a node without a disk, one in /dev/shm"
        raise OptionError("peers need a cache: peers= is set, and cache_dir= is not", hint=hint)
    token = token_of()
    if all(each.cache is None for each in cache.objects):
        return
    cache_dir, rate = os.fspath(settings.cache_dir), settings.max_serving_bytes_per_second or 0
    server = serving(cache_dir, own_ports(settings.peers), token, rate)
    addresses = addresses_of(settings.peers, None if server is None else server.port)
    own = (each for each in addresses if is_of_this_machine(each))
    told = next(own, None) if server is None else server.local_address
    saves_egress = settings.prefer == "egress"
    peers = Peers(addresses, token, server, told=told, cache_dir=cache_dir, saves_egress=saves_egress)
    cache.peers = peers
    for each in cache.objects:
        if each.cache is not None:
            each.cache.peers = peers


def serving(cache_dir: str, ports: Sequence[int], token: str, max_bytes_per_second: int = 0) -> PeerServer | None:
    """Return the server of this process for a folder, on the first port that is free, 0 for any; None if none is."""
    with _lock:
        key = os.getpid(), cache_dir
        server = _servers.get(key)
        if server is not None:
            server.use_token(token)
            return server
        for port in ports:
            with suppress(StorageError):  # taken by another process, or for another folder
                _servers[key] = PeerServer(cache_dir, "", port, token, max_bytes_per_second)
                return _servers[key]
        return None


def leave_peers() -> None:
    """Close the servers of this process."""
    with _lock:
        for key in [each for each in _servers if each[0] == os.getpid()]:
            _servers.pop(key).close()


atexit.register(leave_peers)
