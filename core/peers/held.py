"""What this machine has, and what its loads read now, by the names of objects between peers (`core/peers/names.py`)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

from streamer import _native
from streamer.core.cache.folder import DATA, CacheFolder
from streamer.core.errors import StorageError
from streamer.core.peers.names import wire_name

RESCAN_S = 0.2  # between two looks at which objects the folder has
COMING = -1  # in the place of a CRC32C: the peer reads this range from the storage now
_NAME = re.compile(r"[0-9a-f]{64}")

WRITES_S = 1.0  # for the writes of a load that has ended
MOST_TOLD = 4096  # loads of others
LONGEST_TOLD_S = 60.0

Claims: TypeAlias = dict[str, set[tuple[int, int]]]  # the ranges of each object that a load reads from the storage


class ToldLoad(NamedTuple):
    """A load, as it tells of itself with each question. What it reads, it tells only a server of its own machine."""

    name: str
    again_s: float  # until it asks again
    claims: Claims


class Loads:
    """The loads of this process, and those that others have told.

    Args:
        name: That of this process.
    """

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, Lock()
        self._own: list[Claims] = []
        self._ended: list[tuple[float, Claims]] = []
        self._told: dict[tuple[str, ...], tuple[float, Claims]] = {}  # until when they count, by name and objects

    def begin(self, names: Iterable[str]) -> Claims:
        """Note that a load of this process reads objects; it adds what it reads from the storage to the result."""
        claims: Claims = {name: set() for name in names}
        with self._lock:
            self._own.append(claims)
        return claims

    def finish(self, claims: Claims) -> None:
        """Note the end of such a load, whose last bytes are still to be written to the cache."""
        now = time.monotonic()
        with self._lock:
            self._own = [each for each in self._own if each is not claims]
            self._ended = [*(each for each in self._ended if each[0] > now), (now + WRITES_S, claims)]

    def note(self, load: ToldLoad) -> None:
        """Note another load, until some time after it should have asked again."""
        now, key = time.monotonic(), (load.name, *sorted(load.claims))
        with self._lock:
            self._told = {each: told for each, told in self._told.items() if told[0] > now}
            if key in self._told or len(self._told) < MOST_TOLD:
                self._told[key] = now + min(2 * load.again_s + 0.5, LONGEST_TOLD_S), load.claims

    def of(self, objects: Iterable[str], asker: str | None) -> tuple[set[str], list[Claims]]:
        """Return the names of those that load these objects, and what they read, without who asks."""
        now = time.monotonic()
        with self._lock:
            loads = [(self._name, each) for each in self._own]
            loads += [(key[0], each) for key, (until, each) in self._told.items() if until > now]
            ended = [each for until, each in self._ended if until > now]
        others = [each for each in loads if each[0] != asker and not each[1].keys().isdisjoint(objects)]
        return {name for name, _ in others}, [*(claims for _, claims in others), *ended]


class HeldObjects:
    """The objects of a cache, by their names between peers."""

    def __init__(self, cache_dir: str, token: str) -> None:
        self._cache_dir, self._token = cache_dir, token
        self._lock = Lock()
        self._scanned = -RESCAN_S
        self._paths: dict[str, str] = {}
        self._entries: dict[str, tuple[int, _native.CacheEntry]] = {}  # with the inode of the folder

    def answer(self, name: str, ranges: list[tuple[int, int]], loads: Iterable[Claims]) -> list[int | None]:
        """Return the CRC32C of each range; of one that is not whole, `COMING` if a load reads it, else None."""
        claims = [each[name] for each in loads if name in each]
        coming = [COMING if any(each in claimed for claimed in claims) else None for each in ranges]
        entry = self._entry(name)
        if entry is None:
            return coming
        entry.refresh()
        held = [entry.checksum(begin, end) if begin < end else None for begin, end in ranges]
        return [instead if crc is None else crc for crc, instead in zip(held, coming, strict=True)]

    def opened(self, name: str) -> tuple[Any, int] | None:
        """Open the file of an object; it can still be read if the cache removes it meanwhile."""
        path = self._path(name)
        with suppress(OSError):
            if path is not None:
                file = open(os.path.join(path, DATA), "rb", buffering=0)  # noqa: SIM115 (the caller closes it)
                return file, os.fstat(file.fileno()).st_size
        return None

    def _entry(self, name: str) -> _native.CacheEntry | None:
        path = self._path(name)
        if path is None:
            return None
        try:
            inode = os.stat(path).st_ino
            known = self._entries.get(name)
            if known is None or known[0] != inode:  # removed and made again
                size = os.stat(os.path.join(path, DATA)).st_size
                known = self._entries[name] = inode, _native.CacheEntry(os.fsencode(path), size)
        except OSError:
            self._entries.pop(name, None)
            return None
        return known[1]

    def _path(self, name: str) -> str | None:
        with self._lock:
            path = self._paths.get(name)
            is_due = time.monotonic() >= self._scanned + RESCAN_S
            if (path is None or not os.path.isdir(path)) and is_due and _NAME.fullmatch(name):
                with suppress(OSError, StorageError):  # the folder is not there yet, or others may write it
                    digests = CacheFolder.opened(self._cache_dir, makes=False).digests()
                    self._paths = {wire_name(digest, self._token): path for digest, path in digests.items()}
                self._scanned = time.monotonic()
                self._entries = {each: entry for each, entry in self._entries.items() if each in self._paths}
            return self._paths.get(name)


def checked(question: Any) -> tuple[dict[str, list[tuple[int, int]]], ToldLoad | None]:
    """Return the ranges that a client asks for, by object, and its load; raises ValueError for anything else."""
    asked = question if isinstance(question, dict) else {}
    objects, load = _ranges_of(asked.get("objects")), asked.get("load")
    if load is None:
        return objects, None
    if not isinstance(load, dict) or type(load.get("name")) is not str or type(load.get("again_s")) not in (int, float):
        raise ValueError("no load")
    claims = {name: set(ranges) for name, ranges in _ranges_of(load.get("reads")).items()}
    return objects, ToldLoad(load["name"][:64], load["again_s"], claims)


def _ranges_of(objects: Any) -> dict[str, list[tuple[int, int]]]:
    if not isinstance(objects, dict):
        raise ValueError("no objects")
    return {name: [_range(each) for each in ranges] for name, ranges in objects.items() if isinstance(ranges, list)}


def _range(value: Any) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(type(each) is int and 0 <= each < 1 << 62 for each in value):
        return value[0], value[1]
    raise ValueError("no range")
