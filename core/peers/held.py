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
MOST_LOADS, MOST_RANGES = 4096, 500_000  # that others have told, all together
LONGEST_PAUSE_S = 60.0
LONGEST_ANSWER_S = 2.0  # of a processor, for one question; what is left then counts as missing
_NAME, _LOAD_NAME = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{16}")

Claims: TypeAlias = dict[str, set[tuple[int, int]]]  # the ranges of each object that a load reads from the storage


class ToldLoad(NamedTuple):
    """A load, as it tells of itself."""

    name: str
    again_s: float  # until it does so again
    claims: Claims


class Loads:
    """The loads that have told of themselves: those of this process, and those that ask it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._told: dict[tuple[str, ...], tuple[float, Claims]] = {}  # until when they count, by name and objects

    def note(self, load: ToldLoad) -> None:
        """Note a load until some time after it should have told again: its last bytes are in the cache then."""
        now, key = time.monotonic(), (load.name, *sorted(load.claims))
        with self._lock:
            told = {each: told for each, told in self._told.items() if told[0] > now and each != key}
            ranges = _count(load.claims) + sum(_count(claims) for _, claims in told.values())
            claims: Claims = load.claims if ranges <= MOST_RANGES else {name: set() for name in load.claims}
            if len(told) < MOST_LOADS:
                told[key] = now + max(2 * load.again_s, 1) + 0.5, claims  # a busy machine may be late
            self._told = told

    def of(self, objects: Iterable[str], asker: str | None) -> tuple[set[str], list[Claims]]:
        """Return the names of those that load these objects, and what they read, without who asks."""
        now = time.monotonic()
        loads = [(key[0], claims) for key, (until, claims) in self._told.items() if until > now and key[0] != asker]
        others = [(name, claims) for name, claims in loads if not claims.keys().isdisjoint(objects)]
        return {name for name, _ in others}, [claims for _, claims in others]


def _count(claims: Claims) -> int:
    return sum(map(len, claims.values()))


class HeldObjects:
    """The objects of a cache, by their names between peers."""

    def __init__(self, cache_dir: str, token: str) -> None:
        self._cache_dir, self._token = cache_dir, token
        self._lock = Lock()
        self._scanned = -RESCAN_S
        self._paths: dict[str, str] = {}
        self._entries: dict[str, tuple[int, _native.CacheEntry]] = {}  # with the inode of the folder

    @property
    def folder(self) -> str:
        """Name the folder, as only processes of this machine can: "" if it is not there yet."""
        return folder_name(self._cache_dir, self._token)

    def checksums(self, name: str, ranges: list[tuple[int, int]], until: float) -> list[int | None]:
        """Return the CRC32C of each range that is whole; None for others, and for all after this time of the thread."""
        entry = self._entry(name)
        if entry is None:
            return [None] * len(ranges)
        entry.refresh()
        return [
            entry.checksum(begin, end) if begin < end and time.thread_time() < until else None for begin, end in ranges
        ]

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


def folder_name(cache_dir: str, token: str) -> str:
    """Return a name of a folder that two processes of a machine share; "" if it is not there.

    Example:
        >>> len(folder_name("/", "0123456789abcdef"))
        64
    """
    with suppress(OSError):
        found = os.stat(cache_dir)
        return wire_name(f"{found.st_dev}:{found.st_ino}", token)
    return ""


def is_load_name(name: Any) -> bool:
    """Whether something can be the name of a load, which its process has drawn."""
    return type(name) is str and _LOAD_NAME.fullmatch(name) is not None


def checked(question: Any) -> tuple[dict[str, list[tuple[int, int]]], ToldLoad | None]:
    """Return the ranges that a client asks for, by object, and its load; raises ValueError for anything else."""
    asked = question if isinstance(question, dict) else {}
    objects, load = _ranges_of(asked.get("objects")), asked.get("load")
    if load is None:
        return objects, None
    name, again_s = (load.get(each) if isinstance(load, dict) else None for each in ("name", "again_s"))
    if not isinstance(again_s, (int, float)) or not 0 <= again_s <= LONGEST_PAUSE_S or not is_load_name(name):
        raise ValueError("no load")
    claims = {each: set(ranges) for each, ranges in _ranges_of(load.get("reads")).items()}
    return objects, ToldLoad(str(name), again_s, claims)


def _ranges_of(objects: Any) -> dict[str, list[tuple[int, int]]]:
    if not isinstance(objects, dict):
        raise ValueError("no objects")
    return {name: [_range(each) for each in ranges] for name, ranges in objects.items() if isinstance(ranges, list)}


def _range(value: Any) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(type(each) is int and 0 <= each < 1 << 62 for each in value):
        return value[0], value[1]
    raise ValueError("no range")
