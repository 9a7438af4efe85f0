"""The storage that the contract tests: what a subclass defines, and helpers of all tests. Each test checks one rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.native_session import SourceObject
from streamer.core.options.limits import Limits
from streamer.core.options.options import MIB, Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.store.sources import ObjectInfo, Store
from streamer.plugins.guard import unguarded
from streamer.plugins.registry import open_store

Test = TypeVar("Test", bound=Callable[..., None])

SMALL_BLOCK_BYTES = 64 << 10  # makes many requests for few bytes
LARGE_BYTES = 12 * MIB + 12345  # several blocks of any default size, and no multiple of a block
JOIN_S = 30.0  # for a thread or a process to end; only a failing suite waits as long as this


def rule(test: Test) -> Test:
    """Decorate a test, so that its failure begins with the broken rule: the first line of the test's docstring."""
    text = (test.__doc__ or test.__name__).partition("\n")[0]

    @wraps(test)
    def named(*arguments: Any, **fixtures: Any) -> None:
        try:
            test(*arguments, **fixtures)
        except (Exception, pytest.fail.Exception) as error:
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise AssertionError(f'This breaks the rule "{text}" {said}') from error

    return named  # type: ignore[return-value]


class ContractStorage:
    """The storage of the suite; a subclass defines the attributes and methods.

    Attributes:
        folder_uri: URL of a folder that only the suite uses; no slash at its end.
        storage_options: Options that allow listing and reading the folder.
        denied_options: Options that do not allow reading it, or None to skip this test.
        secrets: Texts that must never be shown: keys, tokens, passwords among the options.
        is_shared: Another process sees the same objects.
        tells_replacement: A replaced object has another version than before, even at the same size.
        timeout_s: Longest time that one `read_into` of a `PythonSource` may take, with the `confirm` after it.
        keeps_versions: An open store still returns the objects as they were when it was opened, as of a commit.
        odd_names: Names of objects that must be quoted in URLs.
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
        """Write an object at ``folder_uri/name``, replacing an existing one; `name` may hold one ``/``."""
        raise NotImplementedError

    def delete(self, name: str) -> None:
        """Delete the object of this name. Only called for objects that `put` wrote."""
        raise NotImplementedError

    def uri(self, path: str) -> str:
        """Return the URL of a path below the folder; override it if the URL is not ``folder_uri/path``."""
        return f"{self.folder_uri}/{path}"

    def name(self, info: ObjectInfo) -> str:
        """Return the name of an object as passed to `put`; override it if paths spell names in another way."""
        return info.path.rpartition("/")[2]

    @pytest.fixture(autouse=True)
    def _own_folder(self) -> Iterator[None]:
        """Set a separate folder for each test, and empty it afterwards."""
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
        """List the folder of a store, with all sizes; a listing may leave sizes out."""
        listed = store.find(store.root)
        own = list(unguarded(store).find(store.root))  # the guard removes objects that are not in the folder
        assert [info.path for info in own] == [info.path for info in listed], (
            f"find gave {[info.path for info in own]} in place of {[info.path for info in listed]}"
        )
        return [info if info.size_bytes is not None else store.info(info.path) for info in listed]

    def _object(self, uri: str) -> SourceObject:
        return opened_object(self._open(uri))


def settings(**options: Any) -> Settings:
    """Resolve some options, with small blocks, so that few bytes take many requests."""
    return resolve(Options(block_bytes=SMALL_BLOCK_BYTES, **options))


def opened_object(store: Store) -> SourceObject:
    """Return the object that a store was opened for, in the engine's form."""
    return as_object(store, store.info(store.root))


def as_object(store: Store, info: ObjectInfo) -> SourceObject:
    """Return an object of a store in the engine's form."""
    if info.size_bytes is None:  # a listing may leave sizes out
        info = store.info(info.path)
    assert info.size_bytes is not None
    return SourceObject(info.uri, store.source(info), info.size_bytes)


def read_whole(source_object: SourceObject) -> bytes:
    """Read all bytes of an object through the engine."""
    contents, _ = read_ranges([source_object], [(0, 0, source_object.size_bytes)], settings())
    return bytes(contents[0])


def pattern(size_bytes: int, seed: int = 0) -> bytes:
    """Return random bytes, so that no two ranges are alike."""
    return Random(seed).randbytes(size_bytes)  # noqa: S311 (data, not a secret)
