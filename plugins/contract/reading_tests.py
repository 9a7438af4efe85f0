"""Reading ranges: exact, in parallel, and cancelled."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.engine.small_reads import read_ranges
from streamer.core.options.options import MIB
from streamer.plugins.contract.rules import rule
from streamer.plugins.contract.storage import (
    JOIN_S,
    LARGE_BYTES,
    ContractStorage,
    opened_object,
    pattern,
    read_whole,
    settings,
)

__all__ = ["ReadingContract"]


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
        assert not wrong, f"other bytes than the object's came from {wrong} of {size}"
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
        assert first is None, f"byte {first} is another"

    @rule
    def test_sources_outlive_the_store_that_gave_them(self) -> None:
        """Sources stay valid after their store is closed: bytes are read afterwards. No other store is closed."""
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
        assert not mixed, f"other bytes than the object's came for {mixed}"

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
