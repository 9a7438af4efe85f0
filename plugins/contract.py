"""The behaviour every storage backend must show; ours run it, and so should yours.

Subclass `BackendContract` in a test module, say where your storage is and how a test puts an object there, and run
pytest. Objects are read through the real engine, so the suite also proves the sources the store gives:

    from streamer.plugins.contract import BackendContract

    class TestAcme(BackendContract):
        folder_uri = "acme://127.0.0.1:7000/contract"
        storage_options = {"password": "…"}

        def put(self, name: str, data: bytes) -> None:
            client.put(f"contract/{name}", data)

        def delete(self, name: str) -> None:
            client.delete(f"contract/{name}")

Needs pytest. Nothing here is a timed assertion, but every wait ends.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
import threading
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from streamer import _native
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.engine.small_reads import read_ranges
from streamer.core.errors import (
    AccessDeniedError,
    ChangedError,
    CredentialsError,
    ObjectNotFoundError,
    RangeResponseError,
    StorageError,
    TruncatedError,
)
from streamer.core.options.options import MIB, Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.store.digests import CHECKSUMS, NoDigest
from streamer.core.store.sources import DigestingStore, ObjectInfo, Store, WritableStore
from streamer.plugins.registry import open_store

__all__ = ["BackendContract"]

SMALL_BLOCK_BYTES = 64 << 10  # many requests for few bytes
LARGE_BYTES = 12 * MIB + 12345  # several blocks of any default size, and not a multiple of one
JOIN_S = 30.0


class BackendContract:
    """The suite. A subclass whose name starts with ``Test`` is collected by pytest.

    Attributes:
        folder_uri: URL of a folder that is the suite's own; no slash at its end.
        storage_options: Options with which it may be listed and read.
        denied_options: Options with which it may not be read, or None: then that is not tested.
        secrets: Texts that must never be shown: keys, tokens, passwords among the options.
        is_shared: Another process sees the same objects.
        tells_replacement: An object that was replaced is told from the one it was, even at the same size.
        keeps_versions: An open store goes on giving the objects as they were when it was opened, as a commit does.
        odd_names: Names of objects that need quoting somewhere.
    """

    folder_uri: str
    storage_options: Mapping[str, Any] = {}
    denied_options: Mapping[str, Any] | None = None
    secrets: tuple[str, ...] = ()
    is_shared = True
    tells_replacement = True
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

    # --- what the tests share -----------------------------------------------------------------------------------------

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
        return open_store(uri, self.storage_options)

    def _object(self, uri: str) -> SourceObject:
        return _opened_object(self._open(uri))

    # --- listing and stat ---------------------------------------------------------------------------------------------

    def test_listing_gives_the_objects_of_one_folder_sorted_and_with_sizes(self) -> None:
        """Listing gives exactly the objects directly in a folder."""
        self._put("b.safetensors", b"12345")
        self._put("a.safetensors", b"123")
        store = self._open(self._uri())
        found = store.find(store.root)
        assert [(self.name(info), info.size_bytes) for info in found] == [("a.safetensors", 3), ("b.safetensors", 5)]

    def test_listing_is_never_older_than_the_call(self) -> None:
        """An object put after a listing is in the next one, also of another store."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri())
        assert len(store.find(store.root)) == 1
        self._put("b.safetensors", b"123")
        if not self.keeps_versions:
            assert len(store.find(store.root)) == 2
        assert len(self._open(self._uri()).find(store.root)) == 2

    def test_listing_an_absent_folder_gives_nothing(self) -> None:
        """An absent folder is an empty one."""
        store = self._open(self._uri())
        assert store.find(store.root) == []

    def test_listed_objects_read_like_named_ones(self) -> None:
        """What `find` says of an object is enough to read it, whatever its name."""
        for number, name in enumerate(self.odd_names):
            self._put(name, f"object {number}".encode())
        store = self._open(self._uri())
        found = {self.name(info): info for info in store.find(store.root)}
        assert set(found) == set(self.odd_names)
        for number, name in enumerate(self.odd_names):
            assert _read_whole(_as_object(store, found[name])) == f"object {number}".encode()
            assert _read_whole(self._object(self._uri(name))) == f"object {number}".encode()

    def test_stat_gives_the_size(self) -> None:
        """`info` tells size and URL."""
        uri = self._put("a.safetensors", bytes(4321))
        store = self._open(uri)
        info = store.info(store.root)
        assert info.size_bytes == 4321
        assert self.name(info) == "a.safetensors"
        assert info.uri.endswith("a.safetensors")

    def test_version_stays_until_the_object_is_replaced(self) -> None:
        """A version is the same when asked again, and another after the object was replaced."""
        uri = self._put("a.safetensors", b"old")
        store = self._open(uri)
        first, again = store.info(store.root).version, self._open(uri).info(store.root).version
        assert first == again
        self._put("a.safetensors", b"new")
        if self.tells_replacement and first is not None:
            assert self._open(uri).info(store.root).version != first

    # --- reading ------------------------------------------------------------------------------------------------------

    def test_ranges_at_edges_are_exact(self) -> None:
        """First, last, middle, single bytes and the whole object."""
        data = _pattern(300_000)
        known = self._object(self._put("a.safetensors", data))
        size = len(data)
        edges = [(0, 1), (1, 2), (65_535, 65_537), (131_072, 131_072 + 65_536), (size - 1, size)]
        found, _ = read_ranges([known], [(0, *edge) for edge in edges], _settings())
        assert [bytes(each) for each in found] == [data[begin:end] for begin, end in edges]
        assert _read_whole(known) == data

    def test_an_empty_object_has_no_bytes(self) -> None:
        """An object of no bytes is listed, has size 0 and can be asked for."""
        uri = self._put("empty.safetensors", b"")
        store = self._open(self._uri())
        assert [info.size_bytes for info in store.find(store.root)] == [0]
        assert self._object(uri).size_bytes == 0

    def test_a_large_object_is_read_in_parallel_and_in_order(self) -> None:
        """Every byte of several blocks is in its place."""
        data = _pattern(LARGE_BYTES)
        assert _read_whole(self._object(self._put("large.safetensors", data))) == data

    def test_concurrency_many_threads_read_many_objects(self) -> None:
        """Stores, sources and sessions of several threads do not disturb each other."""
        contents = {f"{number}.safetensors": _pattern(200_000, seed=number) for number in range(8)}
        uris = [self._put(name, data) for name, data in contents.items()]
        with ThreadPoolExecutor(len(uris)) as pool:
            found = list(pool.map(lambda uri: _read_whole(self._object(uri)), uris * 2))
        assert found == [*contents.values()] * 2

    def test_cancellation_ends_every_thread(self) -> None:
        """A session closed while it reads leaves no thread behind."""
        known = self._object(self._put("large.safetensors", _pattern(LARGE_BYTES)))
        before = set(threading.enumerate())
        items = [Item(0, begin, begin + 100_000) for begin in range(0, LARGE_BYTES - 100_000, 100_000)]
        session = ReadSession([known], plan_reads(items, 0), _settings(memory_limit_bytes=1 * MIB))
        assert session.next_items()
        session.close()
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("streamer"):
                thread.join(JOIN_S)
                assert not thread.is_alive()

    # --- what can go wrong --------------------------------------------------------------------------------------------

    def test_a_missing_object_is_not_found(self) -> None:
        """`info` of what is not there raises `ObjectNotFoundError` that names it."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri("b.safetensors"))
        with pytest.raises(ObjectNotFoundError, match=r"b\.safetensors"):
            store.info(store.root)

    def test_a_folder_is_not_an_object(self) -> None:
        """`info` of a folder raises `ObjectNotFoundError`."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri())
        with pytest.raises(ObjectNotFoundError):
            store.info(store.root)

    def test_denied_access_says_so(self) -> None:
        """Other credentials get `AccessDeniedError` or `CredentialsError`, and no bytes."""
        if self.denied_options is None:
            pytest.skip("this storage has no access control")
        uri = self._put("a.safetensors", b"123")
        with pytest.raises((AccessDeniedError, CredentialsError)):
            _read_whole(_opened_object(open_store(uri, self.denied_options)))

    def test_a_replaced_object_is_never_mixed_with_the_old_one(self) -> None:
        """Bytes of two versions never meet: a later read of the same size raises, or still gives the old bytes."""
        old, new = _pattern(500_000, seed=1), _pattern(500_000, seed=2)
        uri = self._put("a.safetensors", old)
        _, pinned = read_ranges([self._object(uri)], [(0, 0, 1000)], _settings())
        self._put("a.safetensors", new)
        if not self.tells_replacement:
            pytest.skip("this storage has no versions")
        try:
            found = _read_whole(pinned[0])
        except ChangedError:
            return
        assert found == old

    def test_a_truncated_object_is_an_error(self) -> None:
        """An object that became shorter raises; it is never taken for whole."""
        old = _pattern(500_000)
        known = self._object(self._put("a.safetensors", old))
        self._put("a.safetensors", _pattern(400_000))
        if self.keeps_versions:
            assert _read_whole(known) == old
            return
        with pytest.raises((ChangedError, TruncatedError, RangeResponseError)):
            _read_whole(known)

    def test_an_object_deleted_meanwhile_is_an_error(self) -> None:
        """An object that vanished raises."""
        old = _pattern(500_000)
        known = self._object(self._put("a.safetensors", old))
        self.delete(self._names.pop())
        if self.keeps_versions:
            assert _read_whole(known) == old
            return
        with pytest.raises(StorageError):
            _read_whole(known)

    # --- options ------------------------------------------------------------------------------------------------------

    def test_options_can_be_pickled_and_used_by_another_process(self) -> None:
        """Workers get the same options by pickle, and read the same bytes with them."""
        if not self.is_shared:
            pytest.skip("these objects are this process's own")
        uri = self._put("a.safetensors", b"read elsewhere")
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            assert pool.submit(_read_elsewhere, uri, pickle.dumps(dict(self.storage_options))).result(JOIN_S * 4) == (
                b"read elsewhere"
            )

    def test_no_secret_is_shown(self) -> None:
        """No secret is in the text of a store, an object, a source or an error, causes included."""
        uri = self._put("a.safetensors", b"123")
        store = self._open(uri)
        info = store.info(store.root)
        shown = [repr(each) for each in (store, info, store.source(info))] + [store.root]
        absent = self._open(self._uri("absent.safetensors"))
        with pytest.raises(ObjectNotFoundError) as caught:
            absent.info(absent.root)
        shown.append("".join(traceback.format_exception(caught.value)))
        for secret in self.secrets:
            assert not [text for text in shown if secret in text]

    # --- what a store may do beside -----------------------------------------------------------------------------------

    def test_a_digest_it_tells_is_that_of_the_bytes(self) -> None:
        """A store with `digest` tells one of the whole object, or of all its parts, or why it has none."""
        data = _pattern(2 * MIB + 3)
        store = self._open(self._put("a.safetensors", data))
        if not isinstance(store, DigestingStore):
            pytest.skip("this store tells no digests")
        told = store.digest(store.info(store.root))
        if isinstance(told, NoDigest):
            assert told.reason
            return
        assert told.parts[-1].end == len(data)
        begin = 0
        for part in told.parts:
            assert part.value == _digest(told.algorithm, data[begin : part.end])
            begin = part.end

    def test_what_is_written_is_read_and_replaced(self) -> None:
        """A store with `write` puts a small file whole, also over one that is there."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri())
        if not isinstance(store, WritableStore):
            pytest.skip("this store cannot be written")
        for data in (b"first", b"and second"):
            try:
                store.write(f"{store.root}/written.json", data)
            except AccessDeniedError:
                pytest.skip("these options allow reading only")
            self._names.append(f"{self._folder}/written.json")
            assert _read_whole(self._object(self._uri("written.json"))) == data


def _digest(algorithm: str, data: bytes) -> str:
    if algorithm in CHECKSUMS:
        return f"{_native.crc(algorithm, data):0{2 * CHECKSUMS[algorithm]}x}"
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()


def _settings(**given: Any) -> Settings:
    return resolve(Options(block_bytes=SMALL_BLOCK_BYTES, **given))


def _opened_object(store: Store) -> SourceObject:
    return _as_object(store, store.info(store.root))


def _as_object(store: Store, info: ObjectInfo) -> SourceObject:
    if info.size_bytes is None:  # which a listing need not tell
        info = store.info(info.path)
    assert info.size_bytes is not None
    return SourceObject(info.uri, store.source(info), info.size_bytes)


def _read_whole(known: SourceObject) -> bytes:
    found, _ = read_ranges([known], [(0, 0, known.size_bytes)], _settings())
    return bytes(found[0])


def _read_elsewhere(uri: str, options: bytes) -> bytes:
    return _read_whole(_opened_object(open_store(uri, pickle.loads(options))))  # noqa: S301 (the test's own)


def _pattern(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)  # noqa: S311 (data, not a secret)
