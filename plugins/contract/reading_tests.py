"""Listing a folder, describing an object, and reading ranges: exact, in parallel, and cancelled."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.options.options import MIB
from streamer.plugins.contract.storage import (
    JOIN_S,
    LARGE_BYTES,
    ContractStorage,
    as_object,
    opened_object,
    pattern,
    read_whole,
    rule,
    settings,
)


class ListingContract(ContractStorage):
    """See the module's docstring."""

    @rule
    def test_listing_gives_the_objects_of_one_folder_sorted_and_with_sizes(self) -> None:
        """Listing returns exactly the objects directly in a folder."""
        self._put("b.safetensors", b"12345")
        self._put("a.safetensors", b"123")
        listed = [(self.name(info), info.size_bytes) for info in self._listed(self._open(self._uri()))]
        assert listed == [("a.safetensors", 3), ("b.safetensors", 5)], f"find gave {listed}"

    @rule
    def test_listing_leaves_out_the_objects_of_sub_folders(self) -> None:
        """Listing a folder returns none of the objects of its sub-folders: they are other checkpoints."""
        self._put("a.safetensors", b"123")
        beside = f"{self._folder}.bin"
        self.put(beside, b"12345")
        self._names.append(beside)
        names = [self.name(info) for info in self._listed(self._open(self.folder_uri))]
        assert beside in names, f"find gave {names}, without {beside}"
        assert "a.safetensors" not in names, f"find gave {names}, of which one is in the sub-folder {self._folder}"

    @rule
    def test_listing_is_never_older_than_the_call(self) -> None:
        """After an object is written or replaced, the next listing shows its new state, also in another store."""
        self._put("a.safetensors", b"123")
        store = self._open(self._uri())
        assert [info.size_bytes for info in self._listed(store)] == [3]
        self._put("a.safetensors", b"12345")
        self._put("b.safetensors", b"1")
        for each in (store, self._open(self._uri())):
            if each is store and self.keeps_versions:
                continue
            listed = self._listed(each)
            sizes = [info.size_bytes for info in listed]
            assert sizes == [5, 1], f"find gave sizes {sizes} for objects of 5 and 1 bytes"
            assert each.info(listed[0].path).size_bytes == 5

    @rule
    def test_listing_an_absent_folder_gives_nothing(self) -> None:
        """A missing folder has an empty listing."""
        listed = self._listed(self._open(self._uri()))
        assert listed == [], f"find gave {listed}"

    @rule
    def test_listed_objects_read_like_named_ones(self) -> None:
        """An object can be read with its description from `find`, whatever its name is."""
        for number, name in enumerate(self.odd_names):
            self._put(name, f"object {number}".encode())
        store = self._open(self._uri())
        listed = {self.name(info): info for info in store.find(store.root)}
        assert set(listed) == set(self.odd_names)
        for number, name in enumerate(self.odd_names):
            assert read_whole(as_object(store, listed[name])) == f"object {number}".encode()
            assert read_whole(self._object(self._uri(name))) == f"object {number}".encode()

    @rule
    def test_stat_gives_the_size(self) -> None:
        """`info` returns the size in bytes, and the URL."""
        uri = self._put("a.safetensors", bytes(4321))
        store = self._open(uri)
        info = store.info(store.root)
        assert info.size_bytes == 4321, f"info gave {info.size_bytes} for 4321 bytes"
        assert self.name(info) == "a.safetensors"
        assert info.uri.endswith("a.safetensors")

    @rule
    def test_version_stays_until_the_object_is_replaced(self) -> None:
        """A version stays the same until the object is replaced, and is then another."""
        uri = self._put("a.safetensors", b"old")
        store = self._open(uri)
        first, again = store.info(store.root).version, self._open(uri).info(store.root).version
        assert first == again, f"the version of the same object was {first}, then {again}"
        self._put("a.safetensors", b"new")
        if self.tells_replacement and first is not None:
            assert self._open(uri).info(store.root).version != first, f"the version is still {first}"


class ReadingContract(ContractStorage):
    """See the module's docstring."""

    @rule
    def test_ranges_at_edges_are_exact(self) -> None:
        """A range gives exactly its bytes: the first, the last, the middle, one, all."""
        data = pattern(300_000)
        source_object = self._object(self._put("a.safetensors", data))
        size = len(data)
        edges = [(0, 1), (1, 2), (65_535, 65_537), (131_072, 131_072 + 65_536), (size - 1, size)]
        ranges, _ = read_ranges([source_object], [(0, *edge) for edge in edges], settings())
        wrong = [edge for edge, each in zip(edges, ranges, strict=True) if bytes(each) != data[slice(*edge)]]
        assert not wrong, f"wrong bytes were read from {wrong} of {size}"
        assert read_whole(source_object) == data

    @rule
    def test_an_empty_object_has_no_bytes(self) -> None:
        """An object without bytes is listed, has size 0 and can be opened."""
        uri = self._put("empty.safetensors", b"")
        assert [info.size_bytes for info in self._listed(self._open(self._uri()))] == [0]
        assert self._object(uri).size_bytes == 0

    @rule
    def test_a_large_object_is_read_in_parallel_and_in_order(self) -> None:
        """Every byte of several blocks is in its place."""
        data = pattern(LARGE_BYTES)
        got = read_whole(self._object(self._put("large.safetensors", data)))
        first = next((place for place in range(len(data)) if data[place] != got[place]), None)
        assert first is None, f"byte {first} is wrong"

    @rule
    def test_sources_outlive_the_store_that_gave_them(self) -> None:
        """Sources can be read after their store is closed. Closing one store closes no other."""
        data = pattern(200_000)
        uri = self._put("a.safetensors", data)
        store, other = self._open(uri), self._open(uri)
        closed, kept = opened_object(store), opened_object(other)
        store.close()
        del store
        assert read_whole(closed) == data
        assert read_whole(kept) == data
        assert other.info(other.root).size_bytes == len(data)
        other.close()

    @rule
    def test_concurrency_many_threads_read_many_objects(self) -> None:
        """Stores, sources and sessions of several threads do not disturb each other."""
        contents = {f"{number}.safetensors": pattern(200_000, seed=number) for number in range(8)}
        uris = [self._put(name, data) for name, data in contents.items()]
        with ThreadPoolExecutor(len(uris)) as pool:
            loaded = list(pool.map(lambda uri: read_whole(self._object(uri)), uris * 2))
        mixed = [uri for uri, got, data in zip(uris * 2, loaded, [*contents.values()] * 2, strict=True) if got != data]
        assert not mixed, f"wrong bytes were read from {mixed}"

    @rule
    def test_cancellation_ends_every_thread(self) -> None:
        """A session closed while it reads leaves no thread behind."""
        source_object = self._object(self._put("large.safetensors", pattern(LARGE_BYTES)))
        before = set(threading.enumerate())
        items = [Item(0, begin, begin + 100_000) for begin in range(0, LARGE_BYTES - 100_000, 100_000)]
        session = ReadSession([source_object], plan_reads(items, 0), settings(memory_limit_bytes=1 * MIB))
        assert session.next_items()
        session.close()
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("streamer"):
                thread.join(JOIN_S)
                assert not thread.is_alive()
