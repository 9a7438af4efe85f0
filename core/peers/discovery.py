"""Finds the addresses of peers: from a list, all addresses of a name, a TCPStore of torch, or the actors of Ray.

An address is ``host:port``, or ``[host]:port`` for IPv6. The own address of this process is left out. A look-up ends
after `LONGEST_LOOKUP_S`, and then gives what the last one gave: peers are an offer, and no load waits for a name.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from threading import Thread

from streamer.core.errors import OptionError
from streamer.core.log import OwnLogger

LONGEST_LOOKUP_S = 2.0
PORT = 7070  # on which a peer serves if nothing names another
RAY, TCP_STORE = "ray", "tcpstore://"
_log = OwnLogger()
_last_found: dict[str, list[str]] = {}  # by `peers` as text


def addresses_of(peers: str | Sequence[str], own_port: int | None = None) -> list[str]:
    """Return the addresses of all peers but this process, which serves on `own_port` or on none.

    Example:
        >>> addresses_of(["10.255.0.1:7070", "[fd00::2]:7070"])
        ['10.255.0.1:7070', '[fd00::2]:7070']
    """
    if not isinstance(peers, str):
        found = list(peers)
    elif peers == RAY or peers.startswith("dns:"):
        if peers == RAY:
            from streamer.core.peers.ray_actors import connected_ray  # noqa: PLC0415 (as needed)

            connected_ray()
        found = _in_time(peers)
    elif peers.startswith(TCP_STORE):
        from streamer.core.peers.tcp_store import addresses_in  # noqa: PLC0415 (as needed)

        found = addresses_in(*split_address(peers.removeprefix(TCP_STORE)), own_port)
    else:
        hint = "Give dns:NAME:PORT, tcpstore://HOST:PORT, ray, or a list of host:port"
        raise OptionError(f"unknown kind of peers: {peers[:80]!r}", hint=hint)
    return [each for each in dict.fromkeys(found) if not _is_own(each, own_port)]


def announce(peers: str | Sequence[str], own_port: int) -> None:
    """Tell a TCPStore, if peers meet there, that this process serves on a port; other peers look at names and lists."""
    if isinstance(peers, str) and peers.startswith(TCP_STORE):
        addresses_of(peers, own_port)


def own_ports(peers: str | Sequence[str]) -> list[int]:
    """Return the ports on which this process may serve, as the others expect it: of a list, those of its own hosts."""
    if isinstance(peers, str):
        if peers.startswith(TCP_STORE):
            return [PORT, 0]
        return [split_address(peers.partition(":")[2])[1]] if peers.startswith("dns:") else []
    return [port for host, port in map(split_address, peers) if any(map(is_local, _ips_of(host)))]


def split_address(address: str) -> tuple[str, int]:
    """Split an address into host and port; raises OptionError if it is none.

    Example:
        >>> split_address("[::1]:7070"), split_address("svc.ns:7070")
        (('::1', 7070), ('svc.ns', 7070))
    """
    host, _, port = address.rpartition(":")
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not host or is_bare_ipv6 or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise OptionError(f"{address[:80]!r} is no address of a peer", hint="Write host:port, or [host]:port for IPv6")
    return host.strip("[]"), int(port)


def joined_address(host: str, port: int) -> str:
    """Join host and port; see `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _in_time(peers: str) -> list[str]:
    """Look a name up on another thread, because the look-ups of the system and of Ray have no deadline."""
    thread = Thread(target=_look_up, args=(peers,), name="streamer-peerdns", daemon=True)
    thread.start()
    thread.join(LONGEST_LOOKUP_S)
    if peers not in _last_found:
        _log.warning("no peer is known: peers=%r gave no address within %.0f s", peers, LONGEST_LOOKUP_S)
    return _last_found.get(peers, [])


def _look_up(peers: str) -> None:
    """Remember every address of a name, in an order that is the same on each machine."""
    if peers == RAY:
        from streamer.core.peers.ray_actors import addresses_of_actors  # noqa: PLC0415 (as needed)

        _last_found[peers] = addresses_of_actors() or _last_found.get(peers, [])
        return
    host, port = split_address(peers.partition(":")[2])
    if ips := _ips_of(host):  # else the name server is away: the last answer stays
        _last_found[peers] = [joined_address(ip, port) for ip in ips]


def _ips_of(host: str) -> list[str]:
    with suppress(OSError, UnicodeError):
        return sorted({str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    return []


def is_of_this_machine(address: str) -> bool:
    """Whether an address is one of this machine.

    Example:
        >>> is_of_this_machine("127.0.0.1:7070")
        True
    """
    return any(map(is_local, _ips_of(split_address(address)[0])))


def _is_own(address: str, own_port: int | None) -> bool:
    return own_port is not None and split_address(address)[1] == own_port and is_of_this_machine(address)


@lru_cache(maxsize=4096)
def is_local(ip: str) -> bool:
    """Whether an address is one of this machine: only then a socket can be bound to it.

    Example:
        >>> is_local("127.0.0.1"), is_local("::ffff:127.0.0.1"), is_local("192.0.2.1")
        (True, True, False)
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((ip, 0))
        return True
    return False
