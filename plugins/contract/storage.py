"""The storage that the contract is run against: what a subclass says of it, and what all its tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from streamer.core.engine.session import SourceObject
from streamer.core.engine.small_reads import read_ranges
from streamer.core.options.limits import Limits
from streamer.core.options.options import MIB, Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.store.sources import ObjectInfo, Store
from streamer.plugins.guard.store import unguarded
from streamer.plugins.registry import open_store

__all__ = [
    "JOIN_S",
    "LARGE_BYTES",
    "ContractStorage",
    "as_object",
    "opened_object",
    "pattern",
    "read_whole",
    "settings",
]

SMALL_BLOCK_BYTES = 64 << 10  # many requests for few bytes
LARGE_BYTES = 12 * MIB + 12345  # several blocks of any default size, and not a multiple of one
JOIN_S = 30.0  # for a thread or a process to end; only a suite that fails waits so long


class ContractStorage:
    """Where the suite finds its storage.

    Attributes:
        folder_uri: URL of a folder that is the suite's own; no slash at its end.
        storage_options: Options with which it may be listed and read.
        denied_options: Options with which it may not be read, or None: then that is not tested.
        secrets: Texts that must never be shown: keys, tokens, passwords among the options.
        is_shared: Another process sees the same objects.
        tells_replacement: A replaced object has another version than the one before it, even at the same size.
        timeout_s: Longest time that one call of the storage may take; what takes longer fails, and no test hangs.
        keeps_versions: An open store goes on giving the objects as they were when it was opened, as a commit does.
        odd_names: Names of objects that need quoting somewhere.
    """

    folder_uri: str
    storage_options: Mapping[str, Any] = {}
    denied_options: Mapping[str, Any] | None = None
    secrets: tuple[str, ...] = ()
    is_shared = True
    tells_replacement = True
    timeout_s = 60.0
    keeps_versions = False
    odd_names: tuple[str, ...] = ("a b.bin", "plus+percent%20.bin", "größe.bin")

    def put(self, name: str, data: bytes) -> None:
        """Write an object at ``folder_uri/name``, replacing what is there; `name` may hold one ``/``."""
        raise NotImplementedError

    def delete(self, name: str) -> None:
        """Delete that object. Only called for what was put."""
        raise NotImplementedError

    def uri(self, path: str) -> str:
        """Give the URL of a path below the folder; override it where that is not ``folder_uri/path``."""
        return f"{self.folder_uri}/{path}"

    def name(self, info: ObjectInfo) -> str:
        """Give the name of an object as `put` had it; override it where URLs spell names in another way."""
        return info.path.rpartition("/")[2]

    @pytest.fixture(autouse=True)
    def _own_folder(self) -> Iterator[None]:
        """Give each test a folder of its own, and empty it afterwards."""
        self._folder = uuid4().hex[:12]
        self._names: list[str] = []
        yield
        for name in dict.fromkeys(self._names):
            self.delete(name)

    def _put(self, name: str, data: bytes) -> str:
        """Put an object into this test's folder and return its URL."""
        inside = f"{self._folder}/{name}"
        self.put(inside, data)
        self._names.append(inside)
        return self._uri(name)

    def _uri(self, name: str = "") -> str:
        return self.uri(f"{self._folder}/{name}" if name else self._folder)

    def _open(self, uri: str) -> Store:
        return open_store(uri, self.storage_options, limits=Limits(block_deadline_s=self.timeout_s))

    def _listed(self, store: Store) -> list[ObjectInfo]:
        """List the folder that a store was opened for, with all sizes, which a listing need not tell."""
        listed = store.find(store.root)
        own = list(unguarded(store).find(store.root))  # the engine leaves out what does not belong there
        assert [info.path for info in own] == [info.path for info in listed], (
            f"find gave {[info.path for info in own]} in place of {[info.path for info in listed]}"
        )
        return [info if info.size_bytes is not None else store.info(info.path) for info in listed]

    def _object(self, uri: str) -> SourceObject:
        return opened_object(self._open(uri))


def settings(**options: Any) -> Settings:
    """Resolve some options, with blocks so small that few bytes take many requests."""
    return resolve(Options(block_bytes=SMALL_BLOCK_BYTES, **options))


def opened_object(store: Store) -> SourceObject:
    """Give the object that a store was opened for, as the engine reads it."""
    return as_object(store, store.info(store.root))


def as_object(store: Store, info: ObjectInfo) -> SourceObject:
    """Give an object of a store as the engine reads it."""
    if info.size_bytes is None:  # which a listing need not tell
        info = store.info(info.path)
    assert info.size_bytes is not None
    return SourceObject(info.uri, store.source(info), info.size_bytes)


def read_whole(source_object: SourceObject) -> bytes:
    """Read all bytes of an object through the engine."""
    contents, _ = read_ranges([source_object], [(0, 0, source_object.size_bytes)], settings())
    return bytes(contents[0])


def pattern(size_bytes: int, seed: int = 0) -> bytes:
    """Make bytes of which no two ranges are alike."""
    return Random(seed).randbytes(size_bytes)  # noqa: S311 (data, not a secret)
